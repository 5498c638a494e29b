"""Tests of bench/peers/compare.py with stand-ins for the host's benchmark, PyTorch and llama-bench, and of its tables."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True

import make_tables  # noqa: E402

HOST = {"isa": "avx512_bf16", "weights": "bf16", "dense_decode_ms": 80.0, "dense_ms": 100.0, "lazy_ms": 40.0,
        "speedup": 2.5, "ideal_speedup": 2.6, "overhead_percent": 0.2, "library_percent": 0.1, "dense_share_of_gemm_percent": 70.0}


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        # Takes 100 ms, 110 ms, 120 ms, ... for the dense prefill, one more with each call.
        self.program("ttft_bench", f"import json, sys\nlines = open({str(self.log)!r}, 'a+')\nlines.seek(0)\n"
                     "calls = sum(line.startswith('host') for line in lines)\nprint('host', *sys.argv[1:], file=lines)\n"
                     f"print(json.dumps({HOST} | {{'dense_ms': 100.0 + 10 * calls}}))\n")

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)

    def compare(self, *options, torch="raise ImportError('no torch here')\n"):
        # The stand-in hides a PyTorch that may be installed.
        (self.folder / "torch.py").write_text(torch)
        done = subprocess.run(
            [sys.executable, "-B", str(ROOT / "bench/peers/compare.py"), "--ttft-bench", str(self.folder / "ttft_bench"),
             *options], capture_output=True, text=True, env=os.environ | {"PATH": str(self.folder),
                                                                        "PYTHONPATH": str(self.folder)})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_without_peers(self):
        results = self.compare("--shape", "smollm2", "--prompt", "64", "128", "--repeats", "3")
        self.assertEqual([case["prompt_tokens"] for case in results], [64, 128])
        self.assertEqual(results[0]["dense_ms"], 110)
        self.assertEqual(results[0]["left_out"],
                         ["transformers: no torch here", "llama.cpp: llama-bench is not on the PATH"])
        self.assertNotIn("transformers_ms", results[0])

    def test_llama_bench_takes_turns_with_the_host(self):
        self.program("llama-bench", f"import json, sys\nprint('llama', *sys.argv[1:], file=open({str(self.log)!r}, 'a'))\n"
                     "time = 60e6 if '-d' in sys.argv else 330e6\n"
                     "print(json.dumps([{'avg_ns': time, 'model_type': 'llama BF16'}]))\n")
        case, = self.compare("--shape", "smollm2", "--prompt", "64", "--repeats", "3", "--generate", "20",
                             "--weights", "int8", "--gguf", "smollm2=model.gguf")
        self.assertEqual(case["llama_cpp_ms"], 330)
        self.assertEqual(case["dense_over_llama_cpp"], 3)  # the median of 330 / 100, 330 / 110 and 330 / 120
        self.assertEqual(case["llama_cpp_type"], "llama BF16")
        self.assertEqual(case["left_out"], ["transformers: no torch here"])
        lines = self.log.read_text().splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["host", "llama", "llama"] * 3)
        self.assertIn("--generate 21", lines[0])  # the first of them is the prefill's
        self.assertIn("--weights int8", lines[0])
        self.assertIn("-ngl 0", lines[1])  # a build with CUDA stays on the CPU
        self.assertIn("-p 64 -n 0", lines[1])
        self.assertIn("-p 0 -n 20 -d 64", lines[2])
        self.assertEqual(case["dense_decode_ms"], 4)  # 80 ms for 20 steps
        self.assertEqual(case["llama_cpp_decode_ms"], 3)
        self.assertEqual(case["dense_over_llama_cpp_decode"], 0.75)

    def test_transformers_take_turns_with_the_host(self):
        log = f"open({str(self.log)!r}, 'a')"
        torch = ("import contextlib\n__version__ = '2.0+cpu'\nbfloat16, float32 = 'bfloat16', 'float32'\n"
                 f"def set_num_threads(n): print('threads', n, file={log})\n"
                 "def manual_seed(seed): pass\ntype_now = 'default'\ndef get_default_dtype(): return type_now\n"
                 f"def set_default_dtype(dtype):\n    global type_now\n    type_now = dtype\n    print('type', dtype, file={log})\n"
                 "device = inference_mode = lambda *_: contextlib.nullcontext()\n"
                 "class randint:\n    def __init__(self, low, high, shape): self.shape, self.device = shape, device_of\n"
                 "class device_of: type = 'cpu'\n")
        (self.folder / "transformers.py").write_text(
            "import time, torch, types\n__version__ = '5.0'\nclass LlamaConfig(types.SimpleNamespace): pass\n"
            "class Model:\n    def __init__(self, config): self.config, self.dtype = config, torch.get_default_dtype()\n"
            "    def eval(self): return self\n    def __call__(self, input_ids, **_):\n"
            f"        print('transformers', *input_ids.shape, self.config.hidden_size, self.dtype, file={log})\n"
            "        if self.dtype == torch.slow: time.sleep(0.1)\n"
            "        return types.SimpleNamespace(logits=None)\n"
            "class AutoModelForCausalLM:\n    @staticmethod\n    def from_config(config, attn_implementation):\n"
            f"        print('attention', attn_implementation, file={log})\n        return Model(config)\n")
        for slow, fast, name in (("float32", "bfloat16", "bf16"), ("bfloat16", "float32", "f32")):
            with self.subTest(slow=slow):
                self.log.unlink(missing_ok=True)
                self.in_turn(torch + f"slow = {slow!r}\n", fast, name)

    def in_turn(self, torch, fast, name):
        case, = self.compare("--shape", "smollm2", "--prompt", "64", "--repeats", "2", "--threads", "3", torch=torch)
        self.assertEqual(case["transformers"], "transformers 5.0, PyTorch 2.0")
        self.assertEqual(case["transformers_dtype"], name)
        self.assertEqual(case["left_out"], ["llama.cpp: llama-bench is not on the PATH"])
        self.assertGreater(case["transformers_ms"], 0)
        self.assertLess(case["dense_over_transformers"], 1)  # the stand-in takes no time
        lines = self.log.read_text().splitlines()
        self.assertEqual(lines[:7], ["threads 3", "type bfloat16", "attention sdpa", "type default", "type float32",
                                     "attention sdpa", "type default"])
        # Each type twice, then a warm-up of the faster, then in turn with the host.
        self.assertEqual(lines[7:11], ["transformers 1 256 576 bfloat16"] * 2 + ["transformers 1 256 576 float32"] * 2)
        self.assertEqual([line.split()[0] for line in lines[11:]], ["transformers"] + ["host", "transformers"] * 2)
        self.assertEqual(lines[11], f"transformers 1 64 576 {fast}")

    def test_a_shape_without_a_file(self):
        self.program("llama-bench", "raise SystemExit(1)\n")
        case, = self.compare("--shape", "smollm2", "--prompt", "64", "--repeats", "1", "--gguf", "tiny=model.gguf")
        self.assertIn("llama.cpp: no --gguf smollm2=FILE", case["left_out"])


class Tables(unittest.TestCase):
    CASE = HOST | {"shape": "smollm2", "prompt_tokens": 2000, "dtype": "bf16", "threads": 2, "repeats": 5,
                   "schedule": "8:0.3", "left_out": [], "transformers": "transformers 5, PyTorch 2", "transformers_dtype": "f32",
                   "transformers_ms": 150.0, "dense_over_transformers": 1.5}

    def bars(self, *cases):
        return {row[0]: row[1:] for row in make_tables.peer_bars(cases)}

    def test_bars_take_the_worst_case(self):
        slow = self.CASE | {"prompt_tokens": 4000, "dense_over_transformers": 1.1, "library_percent": 1.5}
        bars = self.bars(self.CASE, slow)
        self.assertEqual(bars["dense prefill at least 1.2x as fast as transformers"], ["1.10x", "smollm2, 4000", "no"])
        self.assertEqual(bars["library's share of the lazy prefill at most 1 %"], ["1.50 %", "smollm2, 4000", "no"])
        self.assertEqual(bars["dense at 60 % of the product rate, 2000 tokens"], ["70 %", "smollm2, 2000", "yes"])
        self.assertEqual(bars["dense at 50 % of the product rate, 8000 tokens"][0], "not measured")

    def table(self, maker, results):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.json"
            path.write_text(json.dumps(results))
            return maker([path])

    def test_peers(self):
        text = self.table(make_tables.peer_tables, [self.CASE | {"left_out": ["llama.cpp: not there"]}])
        self.assertIn("| smollm2 | bf16 | 2000 | 5 | 100 | 150 | 1.50 |", text)
        self.assertIn("| smollm2 | bf16 | 2000 | 5 | 40 | 2.50 | 2.60 | 0.2 % | 0.10 % | 70 % |", text)
        self.assertIn("avx512-bf16, 2 threads, medians of the turns. transformers 5, PyTorch 2, in f32.", text)
        self.assertIn("Left out: smollm2: llama.cpp: not there.", text)

    def test_decode_steps_and_int8(self):
        case = self.CASE | {"weights": "int8", "dense_decode_ms": 9.0, "llama_cpp_ms": 250.0, "dense_over_llama_cpp": 2.5,
                            "llama_cpp_type": "llama Q8_0", "llama_cpp_decode_ms": 18.0,
                            "dense_over_llama_cpp_decode": 2.0}
        text = self.table(make_tables.peer_tables, [case])
        self.assertIn("| smollm2 | int8 | 2000 | 5 | 100 | 150 | 1.50 | 250 | 2.50 | llama Q8_0 | 9.0 | 18.0 | 2.00 |", text)
        # The products' rate is that of --dtype.
        self.assertEqual(self.bars(case)["dense at 60 % of the product rate, 2000 tokens"][0], "not measured")

    def test_attention_by_instruction_set(self):
        case = {"isa": "avx2", "dtype": "f32", "threads": 2, "repeats": 5, "products": "library", "head_dim": 64,
                "group": 3, "heads": 24, "keys": 1000, "rows": 1000, "scattered": False, "kept_percent": 100, "attention_gflops": 160.0,
                "product_gflops": 230.0, "share_percent": 69.6}
        few = case | {"isa": "avx512_bf16", "rows": 512}
        text = self.table(make_tables.attention_tables, [case, few, few | {"scattered": True}])
        self.assertIn("### f32, avx2\n", text)
        self.assertIn("### f32, avx512-bf16\n", text)
        for rows in ("all", "last 512", "any 512"):
            self.assertIn(f"| 64 | 3 | 1000 | 100 % | {rows} | 160 | 230 | 70 % |", text)


if __name__ == "__main__":
    unittest.main()
