"""Tests of bench/run.sh, its tables and bench/quality/run.sh, in repositories with stand-ins for the build and programs."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True

import make_tables  # noqa: E402

# Without what the scripts read, and what would lead git elsewhere.
OUTER = {name: value for name, value in os.environ.items()
         if name not in ("THREADS", "TOKENS", "REPEATS", "ISA", "SECONDS_AT_MOST", "COMMIT", "GGUF", "GGUF_INT8")
         and not name.startswith("GIT_")} | {"GIT_CONFIG_GLOBAL": os.devnull}
DOCUMENT = "".join(f"<!-- {kind} begin -->\nold\n<!-- {kind} end -->\n" for kind in ("attention", "ttft", "overhead", "int8", "generation", "short", "serving", "busy"))
CASE = {"isa": "avx2", "dtype": "f32", "products": "library", "head_dim": 64, "group": 1, "keys": 1000,
        "rows": 1000, "scattered": False, "kept_percent": 100, "attention_gflops": 1.0, "product_gflops": 2.0, "share_percent": 50.0, "threads": 2, "repeats": 5}


TTFT = {name: 1.0 for name in (
    "dense_ms", "lazy_ms", "speedup", "ideal_speedup", "overhead_percent", "library_percent", "dense_gflops", "gemm_gflops",
    "dense_share_of_gemm_percent", "dense_generation_ms", "lazy_generation_ms", "generation_speedup", "dense_decode_ms",
    "lazy_decode_ms")} | {"overhead_turns": 81, "overhead_noise_percent": 0.25, "dtype": "bf16", "prompt_tokens": 64, "schedule": "2:0.5", "threads": 2}
INT8 = {"model": "/models/tiny", "dtype": "bf16", "threads": 2, "prompts": 16, "prompt_tokens": 2048, "tokens": 512,
        "kl": 0.01234, "equal_percent": 97.5, "prefill_ms": 800.0, "int8_prefill_ms": 700.0, "decode_ms": 9.0,
        "int8_decode_ms": 6.0}
SERVED = {"conversations_per_minute": 6.0, "first_token_ms": {"p50": 3000.0, "p90": 5000.0}, "second_turn_first_token_ms": {"p50": 300.0, "p90": 400.0},
          "between_tokens_ms": {"p50": 50.0, "p99": 500.0}}
SERVING = {"model": "/models/tiny", "weights": "bf16", "schedule": "@examples/models/presets/tiny.json#3x", "threads": 2,
           "conversations": 12, "slots": 4, "prompt_tokens": 2748.9, "follow_up_tokens": 64, "answer_tokens": 32, "repeats": 2,
           "loads": [{"load_percent": percent, "dense": SERVED, "lazy": SERVED | {"conversations_per_minute": 9.0}} for percent in (None, 80.0)]}
TIMES = {"second": 60.0, "third_to_9th": 10.0, "later": None, "p50": 10.0, "p99": 60.0}
GENERATION = {"model": "/models/tiny", "dtype": "bf16", "isa": "avx512_bf16", "schedule": "2:0.5", "preset": "@examples/models/presets/tiny.json#3x",
              "repeats": 3, "prompt_tokens": 64, "ttft_speedup": 2.0, "ideal_ttft_speedup": 2.0, "behind_dense_from": None} | {
                  kind: {"decode_ms_per_token": 12.0, "decode_ms": TIMES, "ttft_ms": 100.0, "tokens": [1, 2], "step_ms": [100.0, 60.0]}
                  for kind in ("dense", "lazy")}


@unittest.skipIf(shutil.which("git") is None, "git is not there")
class Repository(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.git("init", "-q")

    def write(self, path, text):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments], cwd=self.folder, check=True,
                       capture_output=True, env=OUTER)

    def commit_all(self):
        self.git("add", "-A")
        self.git("commit", "-qm", "a commit")


def is_running(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Run(Repository):
    def setUp(self):
        super().setUp()
        for path in ("bench/run.sh", "bench/commit.sh", "bench/make_tables.py"):
            self.write(path, (ROOT / path).read_text())
        self.write("bench/machine.sh", 'echo "Some, 2 cores, ISA: ${ISA:-avx2 avx512f avx512_bf16}"\n')
        self.write("cmake/build_release.sh", "")
        self.write("build/release/CMakeCache.txt", "CMAKE_CXX_COMPILER:STRING=echo\n")
        self.write("docs/benchmarks.md", DOCUMENT)
        self.write(".gitignore", "/build/\n")
        self.write("examples/models/fetch.sh", 'echo "/models/$1"\n')
        # Each fails in call number `fail_at`, which is a file beside it, and says which processes its parent has beside it.
        for name, result in {"attention_bench": [CASE], "ttft_bench": TTFT | {"shape": "tiny", "repeats": 3}, "int8_loss": INT8,
                             "lazyllm-generate": GENERATION, "serving_bench": SERVING}.items():
            self.write(f"build/release/bin/{name}", f"""#!{sys.executable}
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
with open(here / "calls", "a+") as calls:
    print(*sys.argv[1:], "ISA=" + os.environ.get("ONEDNN_MAX_CPU_ISA", ""), file=calls)
    calls.seek(0)
    count = len(calls.readlines())
children = []
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        _, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:  # it has ended
        continue
    if int(parent) == os.getppid() and stat.parent.name != str(os.getpid()):
        children.append(stat.parent.name)
print(*children, file=open(here / "beside", "a"))
if (here / "fail_at").exists() and count == int((here / "fail_at").read_text()):
    sys.exit(1)
name = next(argument for argument in sys.argv if argument.startswith("--json=")).removeprefix("--json=")
pathlib.Path(name).write_text(json.dumps({result!r}))
""")
            (self.folder / "build/release/bin" / name).chmod(0o755)
        self.commit_all()

    def run_script(self, *kinds, **environment):
        return subprocess.run(["bash", "bench/run.sh", *kinds], cwd=self.folder, capture_output=True, text=True,
                              env=OUTER | environment)

    def test_a_processor_without_tables_is_refused(self):
        done = self.run_script("overhead", ISA="asimd")
        self.assertEqual(done.returncode, 1)
        self.assertIn("docs/benchmarks.md has no tables for Some, 2 cores, ISA: asimd, expected AVX2 or better", done.stderr)
        self.assertEqual(self.calls(), [])
        self.assertEqual(self.document(), DOCUMENT)

    def calls(self):
        path = self.folder / "build/release/bin/calls"
        return path.read_text().splitlines() if path.exists() else []

    def document(self):
        return (self.folder / "docs/benchmarks.md").read_text()

    def test_goes_on_after_a_case_that_failed(self):
        self.write("build/release/bin/fail_at", "3")
        self.assertNotEqual(self.run_script("attention").returncode, 0)
        self.assertEqual(self.document(), DOCUMENT)
        done = self.run_script("attention")
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = self.calls()
        self.assertEqual(calls[2], calls[3])  # the failed one again
        self.assertEqual(len(set(calls)), len(calls) - 1)  # and no other
        self.assertIn("| 64 | 1 | 1000 | 100 % | all | 1 | 2 | 50 % |", self.document())
        self.assertEqual(self.run_script("attention").returncode, 0)
        self.assertEqual(self.calls(), calls)

    def test_the_document_has_a_place_for_every_table_of_every_machine(self):
        self.write("docs/benchmarks.md", (ROOT / "docs/benchmarks.md").read_text())
        for isa in ("avx2", "avx2 avx512f", "avx2 avx512f avx512_bf16", "avx2 avx512f avx512_bf16 amx_bf16"):
            begun = self.run_script(ISA=isa, SECONDS_AT_MOST="0")
            self.assertEqual(begun.returncode, 3, begun.stderr)
            self.assertIn("stopped after", begun.stderr)

    def test_other_instruction_sets_have_places_of_their_own(self):
        for isa, section in (("avx2", "-avx2"), ("avx2 avx512f", "-avx512"), ("avx2 avx512f avx512_bf16 amx_bf16", "-amx")):
            self.write("docs/benchmarks.md", DOCUMENT)
            done = self.run_script("overhead", ISA=isa)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"docs/benchmarks.md needs a line '<!-- overhead{section} begin -->' for Some, 2 cores, ISA: {isa}\n", done.stderr)
            self.assertEqual(self.document(), DOCUMENT)
            self.write("docs/benchmarks.md", f"{DOCUMENT}<!-- overhead{section} begin -->\n<!-- overhead{section} end -->\n")
            done = self.run_script("overhead", ISA=isa)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(self.document().startswith(DOCUMENT))
            self.assertIn(f"ISA: {isa};", self.document())
        self.assertTrue(self.calls())

    def test_what_a_processor_has_is_measured_once(self):
        for kind, isa, section, limits, count in (
                ("attention", "avx2", "-avx2", {"ALL"}, 9), ("short", "avx2", "-avx2", {"ALL"}, 10),
                ("attention", "avx2 avx512f", "-avx512", {"ALL", "AVX2"}, 14)):
            self.write("docs/benchmarks.md", f"<!-- {kind}{section} begin -->\n<!-- {kind}{section} end -->\n")
            before = len(self.calls())
            done = self.run_script(kind, ISA=isa, THREADS=str(len(limits)), LAZYLLM_TEST_DATA="none")
            self.assertEqual(done.returncode, 0, done.stderr)
            calls = self.calls()[before:]
            self.assertEqual(len(set(calls)), count)
            self.assertEqual(len(calls), count)
            self.assertEqual({call.split("ISA=")[1] for call in calls}, limits)

    def test_what_was_measured_with_other_settings_is_measured_again(self):
        self.assertEqual(self.run_script("busy", TOKENS="4").returncode, 0)
        count = len(self.calls())
        self.assertEqual(self.run_script("short", TOKENS="4", LAZYLLM_TEST_DATA="none").returncode, 0)
        once = len(self.calls()) - count
        self.assertEqual(self.run_script("short", TOKENS="5", LAZYLLM_TEST_DATA="none").returncode, 0)
        self.assertEqual(len(self.calls()), count + 2 * once)

    def test_the_time_is_bounded(self):
        done = self.run_script("attention", SECONDS_AT_MOST="0")
        self.assertEqual(done.returncode, 3)
        self.assertIn("the same command goes on", done.stderr)
        self.assertEqual(self.calls(), [])
        self.assertEqual(self.document(), DOCUMENT)

    def results(self):
        return [path.name for path in (self.folder / "build/release/bench-results").glob("*/*.json")]

    def test_presets_of_ttft(self):
        done = self.run_script("ttft")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(any("--schedule @examples/models/presets/smollm2.json#2.34x" in call for call in self.calls()))
        self.assertTrue(any(name.startswith("ttft-smollm2-bf16-4000--examples-models-presets-smollm2.json-2.34x-3-")
                            for name in self.results()), self.results())

    def test_overhead(self):
        done = self.run_script("overhead")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--shape smollm2 --prompt 2000 --threads 2 --repeats 1 --overhead-turns 40 --generate 1", self.calls()[0])
        self.assertIn("| tiny | bf16 | 64 | 81 | 1.0 | 1.00 ± 0.25 % | no |", self.document())

    def test_int8(self):
        done = self.run_script("int8", LAZYLLM_TEST_DATA="data")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call.split()[:4] for call in self.calls()],
                         [["--model", f"/models/{model}", "--data", "data/longbench"] for model in ("smollm2", "qwen2.5-coder-0.5b")])
        self.assertIn("| tiny | bf16 | 16 | 512 | 0.0123 | 97.5 % | 800.0 | 700.0 | 9.0 | 6.0 |", self.document())
        self.assertIn("Prompts of at most 2048 tokens; 2 threads;", self.document())

    def test_generation(self):
        done = self.run_script("generation", LAZYLLM_TEST_DATA="none")
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = self.calls()
        ask = "--chat --dtype bf16 --prompt-file examples/prompts/keepers_log.txt --max-tokens 256 --ignore-stop --compare --threads 2 --repeats 3"
        for start, isa in (("--model /models/smollm2 --schedule paper --context 4096", "ALL"),
                           ("--model /models/smollm2 --schedule @examples/models/presets/smollm2.json#2.34x --weights int8 --context 1280", "AVX2")):
            self.assertTrue(any(call.startswith(f"{start} {ask} --json=") and call.endswith(f" ISA={isa}") for call in calls), start)
        self.assertEqual(len(set(calls)), len(calls))
        self.assertIn("| tiny | `@presets/tiny.json#3x` | as the prompt | bf16 | avx512-bf16 | 64 | 2.00 of 2.00 |", self.document())

    def test_short_prompts(self):
        done = self.run_script("short", LAZYLLM_TEST_DATA="none")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(all(" --context 640 " in call for call in self.calls()))
        self.assertEqual({call.split("ISA=")[1] for call in self.calls()}, {"ALL", "AVX2"})
        short = self.document().split("<!-- short begin -->")[1].split("<!-- short end -->")[0]
        self.assertIn("| tiny | `@presets/tiny.json#3x` | as the prompt | bf16 | avx512-bf16 | 64 | 2.00 of 2.00 |", short)

    def test_serving(self):
        done = self.run_script("serving", LAZYLLM_TEST_DATA="data")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call.split(" --json=")[0] for call in self.calls()],
                         [f"--schedule {schedule} --model /models/{model} --data data/longbench "
                          "--dtype bf16 --threads 2 --slots 4 --load 80 --prompt-tokens 2048 --conversations 8"
                          for model in ("smollm2", "qwen2.5-coder-0.5b")
                          for schedule in ("auto:1.5x", f"@examples/models/presets/{model}.json#2.34x")])
        document = self.document()
        for load in ("all at once", "80 %"):
            self.assertIn(f"| tiny | `@presets/tiny.json#3x` | {load} | 6.0 → 9.0 | 3.00 → 3.00 | 5.00 → 5.00 | 0.30 → 0.30 | 0.40 → 0.40 | "
                          "50 → 50 | 500 → 500 |", document)
        self.assertEqual(document.count("12 conversations in each of 2 runs, at most 4 at once: a prompt of 2749 tokens on average"), 1)

    def busy_processes(self):
        """Those beside each call."""
        return [line.split() for line in (self.folder / "build/release/bin/beside").read_text().splitlines()]

    def assert_ended(self, processes):
        for process in sum(processes, []):
            deadline = time.monotonic() + 20
            while is_running(process):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

    def test_every_second_call_is_beside_a_busy_process(self):
        done = self.run_script("busy")
        self.assertEqual(done.returncode, 0, done.stderr)
        processes = self.busy_processes()
        self.assertEqual([len(each) for each in processes], [0, 1] * 3)
        calls = [call.split(" --json=")[0] for call in self.calls()]
        self.assertEqual(calls[::2], calls[1::2])
        self.assertIn("| tiny | bf16 | `@presets/tiny.json#3x` | 64 | 12.0 → 12.0 |", self.document())
        self.assert_ended(processes)

    def test_a_failure_leaves_no_busy_process(self):
        self.write("build/release/bin/fail_at", "2")
        self.assertNotEqual(self.run_script("busy").returncode, 0)
        processes = self.busy_processes()
        self.assertEqual([len(each) for each in processes], [0, 1])
        self.assert_ended(processes)
        self.assertEqual(self.document(), DOCUMENT)

    def test_the_commit_is_that_of_the_sources(self):
        self.write("cmake/other", "changed")
        done = self.run_script("attention")
        self.assertEqual(done.returncode, 1)
        self.assertIn("changes that are not committed", done.stderr)
        self.commit_all()
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=self.folder, text=True, env=OUTER).strip()
        self.assertEqual(self.run_script("attention").returncode, 0)
        self.assertIn(f"commit {commit};", self.document())
        calls = self.calls()
        self.git("commit", "-qam", "the table")
        self.assertEqual(self.run_script("attention").returncode, 0)
        self.assertEqual(self.calls(), calls)
        self.assertIn(f"commit {commit};", self.document())
        self.write("cmake/other", "changed again")
        self.git("commit", "-qam", "third")
        self.assertEqual(self.run_script("attention").returncode, 0)
        self.assertEqual(len(self.calls()), 2 * len(calls))


class Machine(unittest.TestCase):
    def line(self, lscpu):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "lscpu"
            path.write_text(f"#!/bin/sh\ncat <<'END'\n{lscpu}\nEND\n")
            path.chmod(0o755)
            return subprocess.check_output(["bash", ROOT / "bench/machine.sh"], text=True,
                                           env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"})

    def test_family_and_model_where_they_are_known(self):
        self.assertRegex(self.line("Model name:  AMD EPYC\n  CPU family:  26\n  Model:   2"),
                         r"^AMD EPYC \(family 26, model 2\), \d+ cores, ISA: .+\n$")
        self.assertRegex(self.line("Model name:  Some\nModel:   2"), r"^Some, \d+ cores, ISA: .+\n$")


class DecodeTables(unittest.TestCase):
    def table(self, *benchmarks):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "result"
            path.write_text(json.dumps({"benchmarks": benchmarks}))
            return make_tables.decode_tables([path])

    def test_of_the_plain_read_and_of_one_row(self):
        one = {"name": "few_rows<bf16>/rows:1/in:576/out:3072/min_time:0.200/manual_time", "label": "avx2",
               "of_read": 0.96, "of_one_row": 1.0, "read": 30e9}
        nine = one | {"name": one["name"].replace("rows:1", "rows:9"), "of_read": 0.8, "of_one_row": 1.25, "read": 36e9}
        text = self.table(nine, one)
        self.assertIn("| weights | ISA | in | out | plain read, GB/s | 1 row | 9 rows |", text)
        self.assertIn("| bf16 | avx2 | 576 | 3072 | 30 to 36 | 0.96, 1.00x | 0.80, 1.25x |", text)

    def test_attention_has_a_table_of_its_own(self):
        product = {"name": "few_rows<bf16>/rows:1/in:576/out:960/min_time:0.200/manual_time", "label": "avx2",
                   "of_read": 0.96, "of_one_row": 1.0, "read": 30e9}
        attention = product | {"name": "few_layers_attend<bf16>/rows:5/group:3/percent:30/min_time:0.200/manual_time", "of_read": 0.7,
                               "of_one_row": 1.1, "read": 40e9}
        text = self.table(attention, product)
        self.assertIn("| bf16 | avx2 | 576 | 960 | 30 to 30 | 0.96, 1.00x |\n\n", text)
        self.assertIn("| K and V | ISA | query heads a key head | % of 4000 tokens | plain read, GB/s | 5 rows |", text)
        self.assertIn("| bf16 | avx2 | 3 | 30 | 40 to 40 | 0.70, 1.10x |", text)

    def test_another_benchmark_is_refused(self):
        for name in ("attend<bf16>/rows:1", "few_rows<bf16>/rows:1/percent:30/"):
            with self.assertRaisesRegex(ValueError, name):
                self.table({"name": name})


class TtftTables(unittest.TestCase):
    def tables(self, *runs):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / str(i) for i in range(len(runs))]
            for path, run in zip(paths, runs, strict=True):
                path.write_text(json.dumps(TTFT | run))
            return make_tables.ttft_tables(paths)

    def test_each_case_has_one_row_and_generation_has_tables_of_its_own(self):
        text = self.tables({"shape": "alone", "repeats": 5, "generated_tokens": 1},
                           {"shape": "more", "repeats": 3, "generated_tokens": 9})
        self.assertIn("| shape | type | prompt tokens | schedule | turns |", text)
        for shape in ("alone", "more"):
            self.assertEqual(text.count(f"| {shape} |"), 1)
        self.assertRegex(text, r"\| alone \|[^\n]*\| 5 \|")
        self.assertRegex(text, r"\| more \|[^\n]*\| 3 \|")
        self.assertNotIn("after the first token", text)

    def test_missed_bars_of_generation_are_counted_and_named(self):
        dense, met = GENERATION["dense"], GENERATION | {"weights": "int8"}
        slow = met | {"lazy": dense | {"decode_ms": TIMES | {"p99": 72.0}, "step_ms": [90.0, 72.0]}, "behind_dense_from": 2}
        paper = {name: slow[name] for name in slow if name != "preset"} | {"schedule": "paper"}
        name = "tiny `@presets/tiny.json#3x` (int8, avx512-bf16, 64 tokens)"
        for runs, words in (((met, slow, paper), ("1 of these 2 rows of presets and `auto` meet both bars.", "1.00 to 1.20 times dense's.",
                                                  f"Above 1.15: {name} 1.200x.", f"Behind dense: {name} from token 2 on, 1.2 % at the end.")),
                            ((met,), ("1 of these 1 rows", "Above 1.15: none.", "Behind dense: none.")), ((paper,), ("",))):
            text = make_tables.bars_met(runs)
            for part in words:
                self.assertIn(part, text)
        self.assertEqual(text, "")

    def test_an_overhead_is_judged_with_its_noise(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "one.json"
            for percent, noise, met in ((0.5, 0.0, "yes"), (0.6, 0.2, "within noise"), (0.6, 0.05, "no"), (-1.0, 2.0, "yes")):
                path.write_text(json.dumps(TTFT | {"shape": "tiny", "overhead_percent": percent, "overhead_noise_percent": noise}))
                self.assertTrue(make_tables.overhead_table([path]).rstrip().endswith(f"{noise:.2f} % | {met} |"))

    def test_a_preset_has_a_short_name(self):
        text = self.tables({"shape": "tiny", "repeats": 3, "schedule": "@examples/models/presets/tiny.json#3x"})
        self.assertIn("| tiny | bf16 | 64 | `@presets/tiny.json#3x` |", text)


class GenerationTables(unittest.TestCase):
    def tables(self, maker, *runs):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / str(i) for i in range(len(runs))]
            for path, run in zip(paths, runs, strict=True):
                path.write_text(json.dumps(run))
            return maker(paths)

    def test_what_a_percentile_is_of(self):
        text = self.tables(make_tables.generation_tables, GENERATION)
        self.assertIn("The time of each step is the median of its times in 3 runs. p50 and p99 are over these steps.", text)
        self.assertIn("| tiny | `@presets/tiny.json#3x` | as the prompt | bf16 | avx512-bf16 | 64 | 100 | 60.0 | 10.0 | – | 10.0 | 60.0 |", text)

    def test_the_bars(self):
        def verdict(behind=None, p99=1.0, second=30.0):
            lazy = GENERATION["lazy"] | {"decode_ms": TIMES | {"p99": p99 * TIMES["p99"], "second": second}}
            text = self.tables(make_tables.generation_tables, GENERATION | {"lazy": lazy, "behind_dense_from": behind})
            return text.splitlines()[-3].split(" | ", 6)[-1]

        self.assertEqual(verdict(), "2.00 of 2.00 | 0.5x | 1.00x | never within 2 tokens | yes |")
        self.assertEqual(verdict(p99=1.15), "2.00 of 2.00 | 0.5x | 1.15x | never within 2 tokens | yes |")
        self.assertEqual(verdict(p99=1.16), "2.00 of 2.00 | 0.5x | 1.16x | never within 2 tokens | no |")
        self.assertEqual(verdict(behind=40), "2.00 of 2.00 | 0.5x | 1.00x | from token 40 on | no |")
        self.assertEqual(verdict(second=None), "2.00 of 2.00 | – | 1.00x | never within 2 tokens | yes |")

    def test_beside_a_busy_process(self):
        busy = GENERATION | {"dense": {"decode_ms_per_token": 30.0, "decode_ms": TIMES | {"p50": 31.0, "p99": 44.0}},
                             "lazy": {"decode_ms_per_token": 30.1, "decode_ms": TIMES | {"p50": 15.0}}}
        text = self.tables(make_tables.busy_tables, GENERATION, busy)
        self.assertIn("| mean | 2nd token | 3rd to 9th | later | p50 | p99 | mean, busy / quiet | bar met |", text)
        self.assertRegex(text, r"\| tiny \| bf16 \| dense \| 64 \| 12.0 → 30.0 \|.*\| 10.0 → 31.0 \| .* → 44.0 \| 2.50x \| yes \|")
        self.assertRegex(text, r"\| tiny \| bf16 \| `@presets/tiny.json#3x` \| 64 \| 12.0 → 30.1 \|.*\| 10.0 → 15.0 \| .* \| 2.51x \| no \|")
        with self.assertRaises(ValueError):
            self.tables(make_tables.busy_tables, GENERATION)


class Quality(Repository):
    """bench/quality/run.sh with a stand-in for quality.py."""

    SOURCES = ("include/a.hpp", "examples/a.cpp", "bench/evaluate/a.cpp", "bench/quality/a.py", "cmake/a.cmake", "CMakeLists.txt",
               "CMakePresets.json")

    def setUp(self):
        super().setUp()
        for path in ("bench/quality/run.sh", "bench/commit.sh", "bench/machine.sh"):
            self.write(path, (ROOT / path).read_text())
        self.write("bench/quality/quality.py", "import os\nprint('measures', os.environ['COMMIT'])\n")
        self.write("docs/text.md", "text")
        for path in self.SOURCES:
            self.write(path, "first")
        self.commit_all()

    def test_changes_of_the_sources_are_refused(self):
        run = ["bash", "bench/quality/run.sh"]
        options = {"cwd": self.folder, "capture_output": True, "text": True, "env": OUTER | {"BIN": "bin"}}
        self.write("docs/text.md", "changed")
        done = subprocess.run(run, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("measures", done.stdout)
        for path in (*self.SOURCES, "bench/quality/new.py"):
            self.write(path, "changed")
            done = subprocess.run(run, **options)
            self.assertEqual(done.returncode, 1, path)
            self.assertIn("changes that are not committed", done.stderr)
            self.assertNotIn("measures", done.stdout)
            self.commit_all()


if __name__ == "__main__":
    unittest.main()
