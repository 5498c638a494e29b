"""Tests of the GPU benchmarks' scripts: tables of made-up results, and run.sh with stand-ins for the tools and the GPU."""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/peers")]
sys.dont_write_bytecode = True

import make_tables  # noqa: E402
import transformers_ttft  # noqa: E402


def case(**fields):
    """A result of ttft_bench that passes all bars."""
    return {"device": "cuda", "gpu": "Made-up GPU", "shape": "llama-2-7b", "dtype": "bf16", "schedule": "6:0.3,16:0.5",
            "decode_revived": 16, "prompt_tokens": 4096, "batch": 1, "repeats": 5, "prefills": 10, "dense_ms": 100.0, "keep_one_ms": 100.5, "lazy_ms": 35.0,
            "speedup": 2.86, "ideal_speedup": 2.98, "overhead_percent": 0.5, "overhead_noise_percent": 0.1, "library_percent": 0.75,
            "dense_tflops": 560.0, "gemm_tflops": 700.0, "copy_gbytes_per_second": 2900.0, "gemm_ms": 78.0,
            "attention_ms": 7.0, "dense_of_floor": 1.18, "generated_tokens": 17, "dense_decode_ms": 5.0,
            "lazy_decode_ms": 4.5, "graph_decode_ms": 4.2, "decode_ratio": 0.9, "slowest_decode_ratio": 0.98, "decode_floor_ms": 4.7,
            "revived_per_step": 12.0} | fields


def peer(**fields):
    return {"peer": "transformers", "version": "5.0", "torch": "2.9", "attention": "sdpa", "device": "cuda",
            "gpu": "Made-up GPU", "shape": "llama-2-7b", "dtype": "bf16", "prompt_tokens": 4096, "batch": 1,
            "dense_ms": 130.0, "fastest_ms": 128.0} | fields


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def written(self, entries, name="results.json"):
        path = self.folder / name
        path.write_text(json.dumps(entries, indent=2) + "\n")
        return path


class Tables(Folder):
    def bars(self, *entries):
        rows = make_tables.cuda_bars(make_tables.CudaResults([self.written(entries)]))
        return {row[0]: row[1:] for row in rows}

    def met(self, *entries):
        return [row[-1] for row in self.bars(*entries).values()]

    def test_good_results_pass_all_bars(self):
        unrevived = case(decode_revived=0, lazy_decode_ms=4.4)
        self.assertEqual(self.met(case(), unrevived, case(prompt_tokens=16384), peer()), ["passed"] * 9)

    def test_each_bar_can_be_missed(self):
        bad = [{"dense_of_floor": 1.26}, {"dense_ms": 131.0}, {"overhead_percent": 1.11}, {"speedup": 2.74},
               {"library_percent": 1.01}, {"slowest_decode_ratio": 1.06}]
        missed = []
        for fields in bad:
            met = self.met(case(), case(schedule="paper", **fields), case(prompt_tokens=16384), peer())
            self.assertEqual(met.count("missed"), 1, fields)
            missed.append(met.index("missed"))
        self.assertEqual(missed, [0, 1, 2, 3, 6, 7])
        self.assertEqual(self.met(case(), case(prompt_tokens=16384, speedup=2.82), peer())[4], "missed")
        slow = {"speedup": 2.3, "ideal_speedup": 2.5}
        self.assertEqual(self.met(case(**slow), case(prompt_tokens=16384), peer())[5], "passed")  # the other one
        self.assertEqual(self.met(case(**slow), case(prompt_tokens=16384, **slow), peer())[5], "missed")
        self.assertEqual(self.met(case(), case(decode_revived=0, lazy_decode_ms=3.9))[8], "missed")

    def test_bars_are_of_the_shape_and_the_lengths_that_they_name(self):
        bad = {"dense_of_floor": 2.0, "dense_ms": 999.0, "overhead_percent": 9.0, "speedup": 1.0,
               "library_percent": 9.0, "slowest_decode_ratio": 9.0}
        good = [case(), case(decode_revived=0, lazy_decode_ms=4.4), case(prompt_tokens=16384), peer()]
        for other in ({"shape": "1.1b"}, {"shape": "llama-3-8b", "prompt_tokens": 16384}, {"prompt_tokens": 2048},
                      {"prompt_tokens": 32768, "batch": 8}):
            self.assertEqual(self.met(*good, case(**bad, **other)), ["passed"] * 9, other)

    def test_the_decode_bar_is_of_the_budget_that_it_names(self):
        for budget in (None, 0, 32):
            slow = case(decode_revived=budget, slowest_decode_ratio=3.0)
            self.assertEqual(self.met(case(), slow)[7], "passed")
            self.assertEqual(self.met(slow)[7], "not measured")
        self.assertEqual(self.met(case(slowest_decode_ratio=1.05))[7], "passed")

    def test_noise_is_told_from_overhead(self):
        def overhead(percent, noise):
            return list(self.bars(case(overhead_percent=percent, overhead_noise_percent=noise)).values())[2]

        self.assertEqual(overhead(1.2, 0.3)[0::2], ["1.20 % ± 0.30", "within noise"])
        self.assertEqual(overhead(1.2, 0.1)[2], "missed")
        self.assertEqual(overhead(0.9, 0.3)[2], "passed")

    def test_an_ideal_below_two_and_a_half_does_not_count(self):
        self.assertEqual(self.met(case(speedup=2.4, ideal_speedup=2.45))[5], "not measured")

    def test_says_what_was_not_measured(self):
        bars = self.bars(case(prompt_tokens=2048))
        self.assertEqual({row[-1] for row in bars.values()}, {"not measured"})
        self.assertEqual(list(bars.values())[0], ["not measured", "", "not measured"])
        self.assertEqual(self.met(case())[1], "not measured")  # no peer
        self.assertEqual(self.met(case(), peer(device="cpu"))[1], "not measured")
        self.assertEqual(self.met(case(), peer(batch=8))[1], "not measured")

    def test_names_the_worst_case(self):
        overhead = list(self.bars(case(), case(batch=8, overhead_percent=2.5)).values())[2]
        self.assertEqual(overhead, ["2.50 % ± 0.10", "llama-2-7b, 4096, batch 8, `6:0.3,16:0.5`", "missed"])

    def test_writes_tables_between_their_markers(self):
        document = self.folder / "document.md"
        document.write_text("before\n<!-- cuda begin -->\nold\n<!-- cuda end -->\nafter\n")
        entries = [case(), case(schedule="paper"), case(decode_revived=0, prefills=12), peer(), case(prompt_tokens=32768) |
                   {"left_out": "no time was left of 60 s"}]
        arguments = ["make_tables.py", "cuda", str(self.written(entries)), str(document), "--command", "run it",
                     "--context", "here"]
        with mock.patch("sys.argv", arguments):
            make_tables.main()
        text = document.read_text()
        self.assertTrue(text.startswith("before\n<!-- cuda begin -->\n```\nrun it\n```\n\nhere\n\nMade-up GPU."), text)
        self.assertTrue(text.endswith("<!-- cuda end -->\nafter\n"))
        self.assertNotIn("old", text)
        self.assertIn("transformers 5.0 with PyTorch 2.9 and SDPA", text)
        self.assertIn("| llama-2-7b | bf16 | 4096 | 1 | `paper` | 100.0 | 35.0 | 2.86 | 2.98 | 96 % | 0.50 ± 0.10 % "
                      "| 0.75 % | 130.0 |", text)
        prefill = "| llama-2-7b | bf16 | 4096 | 1 | `6:0.3,16:0.5` | 100.0 | 35.0 |"
        self.assertEqual(text.count(prefill), 1)  # once, not for each budget
        for budget in ("0", "16"):
            self.assertIn(f"| llama-2-7b | bf16 | 4096 | 1 | `6:0.3,16:0.5` | {budget} | 5.00 | 4.50 |", text)
        self.assertIn("Medians of 10 to 12 prefills and of 5 runs of the decode steps", text)
        self.assertIn("| llama-2-7b, 32768, `6:0.3,16:0.5` | no time was left of 60 s |", text)
        floor = "| llama-2-7b | bf16 | 4096 | 1 | 100.0 | 78.0 | 7.0 | 1.18 | 560 | 700 | 2900 |"
        self.assertEqual(text.count(floor), 1)  # once, not for each schedule

    def test_graphs_that_failed_are_named(self):
        text = make_tables.cuda_tables([self.written([case(graph_decode_ms=None)])])
        self.assertIn("| 16 | 5.00 | 4.50 | failed | 0.90 |", text)

    def test_figures_with_cudnn_have_a_table_of_their_own(self):
        entries = [case(dense_of_floor=1.1, speedup=2.5), case(prompt_tokens=16384) | {"left_out": "no time was left"}]
        text = make_tables.cuda_cudnn_table([self.written(entries)])
        self.assertIn("With cuDNN's attention", text)
        self.assertIn("| llama-2-7b | bf16 | 4096 | 1 | `6:0.3,16:0.5` | 100.0 | 1.10 | 35.0 | 0.40 |", text)
        self.assertIn("Left out: llama-2-7b, 16384, `6:0.3,16:0.5` (no time was left)", text)

    def test_refuses_results_of_two_gpus(self):
        with self.assertRaisesRegex(ValueError, "several GPUs, Made-up GPU and Other"):
            make_tables.CudaResults([self.written([case(), case(gpu="Other")])])

    def test_micro_tables_show_all_sizes_beside_cub_and_copies(self):
        def benchmark(name, time):
            return {"name": name, "run_type": "iteration", "real_time": time, "time_unit": "us",
                    "bytes_per_second": 1e12}

        rows = self.written({"benchmarks": [
            benchmark("gather<bf16>/width:4096/tokens:2048/manual_time", 10),
            benchmark("gather_memory<bf16>/width:4096/tokens:2048/manual_time", 9)]}, "rows.json")
        select = self.written({"benchmarks": [
            benchmark("select_top_k/keep:30/batch:8/tokens:8192/manual_time", 20),
            benchmark("select_top_k_plain/keep:30/batch:8/tokens:8192/manual_time", 200)]}, "select.json")
        text = make_tables.cuda_micro_tables([rows, select])
        self.assertIn("| operation | type | width | tokens | µs | GB/s | same bytes µs |", text)
        self.assertIn("| gather | bf16 | 4096 | 2048 | 10 | 1000 | 9 |", text)
        self.assertIn("| select top k | 30 | 8 | 8192 | 20 | 1000 | 200 |", text)
        self.assertIn("CUB alone µs", text)


# Stand-ins. `device` prints what DEVICE says, programs that measure write what a results folder would have.
TOOLS = {
    "nvcc": """
if [[ $1 == --version ]]; then echo "Cuda compilation tools, release 13.0, V13.0"; exit; fi
printf '#!/bin/sh\\n[ -n "$DEVICE" ] || { echo no device >&2; exit 1; }\\necho "$DEVICE"\\n' >"$2"; chmod +x "$2"
""",
    "cmake": """
echo "cmake $*" >>"$CALLS"
case " $* " in
  *" help "*) printf '%s\\n' $TARGETS; exit ;;
  *" -n "*) [[ " $* " == *" ${BROKEN:-} "* ]] || echo "ninja: no work to do."; exit ;;
  *" --build "*)
    [[ ${CUDNN_BREAKS:-} != build || $(cat "$CALLS.cudnn") != ON ]] || { echo "no cuDNN here"; exit 1; }
    [[ -z ${BROKEN:-} ]] || { echo "broken: $BROKEN"; exit 1; }; exit ;;
esac
if [[ " $* " == *"-DLAZYLLM_CUDNN=ON"* ]]; then echo ON; else echo OFF; fi >"$CALLS.cudnn"
if [[ ${CUDNN_BREAKS:-} == configure && $(cat "$CALLS.cudnn") == ON ]]; then echo "CMake Error: no cuDNN here" >&2; exit 1; fi
for part in ${MISSING_PARTS:-EXAMPLES}; do
  if [[ -n ${MISSING:-} && " $* " == *"-DLAZYLLM_BUILD_$part=ON"* ]]; then
    printf 'CMake Error at examples/CMakeLists.txt:1 (find_package):\\n  Could not find %s\\n' "$MISSING" >&2
    exit 1
  fi
done
""",
    "ctest": """
echo "ctest $*" >>"$CALLS"
echo "${CTEST_LINE:-100% tests passed, 0 tests failed out of 2}"
exit "${CTEST_STATUS:-0}"
""",
    "compute-sanitizer": """
echo "compute-sanitizer $*" >>"$CALLS"
[[ ${LAZYLLM_TEST_RUNS:-} == 0.02 && ${LLAMA_OWN_ATTENTION:-} == 1 ]] || exit 9
[[ $* != ${STOPPED:-} ]] || exit 124
[[ $* != ${WRONG:-} ]] || exit 9
""",
    # A program that HANGS is stopped at once, at the limit that it had.
    "timeout": f"""
if [[ ${{*:3}} == ${{HANGS:-}} ]]; then echo "$2" >>"$CALLS.limits"; exit 124; fi
exec {shutil.which("timeout")} "$@"
""",
    "git": """
case " $* " in
  *" rev-parse "*) [[ -z ${NO_GIT:-} ]] || exit 128; echo "${COMMIT:-abc1234}" ;;
  *" diff "*) exit "${CHANGED:-0}" ;;
  *" status "*) [[ -z ${CHANGED:-}${UNTRACKED:-} ]] || echo "?? include/new.hpp" ;;
esac
""",
    "python": """
[[ -n ${TORCH:-} ]] || { echo no torch here >&2; exit 1; }
[[ $1 != -c ]] || exit 0
echo "peers $*" >>"$CALLS"
while (($#)); do [[ $1 != --json ]] || cp "$PEERS" "$2"; shift; done
""",
}
PROGRAMS = {
    "ttft_bench": """
echo "ttft_bench $*" >>"$CALLS"
[[ -z ${LAZYLLM_TEST_RUNS:-} ]] || exit 9
if [[ -z ${LLAMA_OWN_ATTENTION:-} ]]; then echo "by cuDNN" >>"$CALLS"; fi
if [[ ${CUDA_VISIBLE_DEVICES-all} == "" ]]; then echo "${DRY:-no CUDA device}"; exit 1; fi
while (($#)); do [[ $1 != --json ]] || cp "$CASES" "$2"; shift; done
exit "${TTFT_STATUS:-0}"
""",
    "lazyllm_cuda_micro_bench": """
echo "micro $*" >>"$CALLS"
if [[ ${CUDA_VISIBLE_DEVICES-all} == "" ]]; then echo "no CUDA device"; exit; fi
[[ $* != ${STOPPED:-} ]] || exit 124
while (($#)); do [[ $1 != --benchmark_out=* ]] || cp "$MICRO" "${1#*=}"; shift; done
""",
}


class Run(Folder):
    targets = "all test_cuda: test_cuda_properties test_cuda_emulated test_llama_cuda test_backend ttft_bench"

    def setUp(self):
        super().setUp()
        tools = self.folder / "tools"
        (self.folder / "build/bin").mkdir(parents=True)
        tools.mkdir()
        for folder, programs in [(tools, TOOLS), (self.folder / "build/bin", PROGRAMS)]:
            for name, text in programs.items():
                (folder / name).write_text("#!/usr/bin/env bash\n" + text.lstrip())
                (folder / name).chmod(0o755)
        self.results = self.folder / "build/results"
        outer = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
        self.environment = outer | {
            "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(self.folder / "calls"), "DEVICE": "",
            "TARGETS": self.targets, "CASES": str(self.written([case(), case(prompt_tokens=16384)], "cases.json")),
            "MICRO": str(self.written({"benchmarks": [{
                "name": "gather<bf16>/width:4096/tokens:2048/manual_time", "run_type": "iteration", "real_time": 10,
                "time_unit": "us", "bytes_per_second": 1e12}]}, "micro.json")),
            "PEERS": str(self.written([peer()], "peers.json")), "PYTHON": str(tools / "python")}

    def run_script(self, *arguments, script=ROOT / "bench/cuda/run.sh", **environment):
        """Runs it; `calls` are those of this run."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        done = subprocess.run(["bash", script, "--build", self.folder / "build", *arguments],
                              env=self.environment | environment, capture_output=True, text=True, check=False)
        self.calls = calls.read_text() if calls.exists() else ""
        return done

    def run_on_device(self, *arguments, **environment):
        return self.run_script(*arguments, **({"DEVICE": "Made-up GPU|90"} | environment))

    def test_without_a_device_builds_only(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("no CUDA device: no device: built only", done.stdout)  # with the reason
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=80;90", self.calls)
        self.assertIn("-DLAZYLLM_WERROR=OFF", self.calls)
        self.assertIn("--target test_cuda test_cuda_properties test_llama_cuda ttft_bench -- -k\n", self.calls)
        self.assertNotIn("ctest", self.calls)

    def test_with_a_device_runs_all_there_is(self):
        done = self.run_script("--prefix", self.folder, DEVICE="Made-up GPU|90")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=90", self.calls)
        self.assertIn(f"-DCMAKE_PREFIX_PATH={self.folder}", self.calls)
        self.assertIn("-R ^(test_cuda|test_cuda_properties|test_llama_cuda)$", self.calls)
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            self.assertEqual(self.calls.count(f"compute-sanitizer --tool {tool}"), 3)
        for line in self.calls.splitlines():  # not cuBLAS's, but what they write must be seen to be written
            if line.startswith("compute-sanitizer"):
                ours_only = "--kernel-name kns=lazyllm --kernel-name kns=llama" in line
                self.assertEqual(ours_only, "initcheck" not in line, line)
                self.assertEqual("--track-stream-ordered-races all" in line, "memcheck" in line, line)
        self.assertIn("micro        left out: Google Benchmark was not found", done.stdout)
        self.assertEqual(done.stdout.splitlines().count("peers        left out: no torch here"), 1)
        self.assertRegex(
            done.stdout, "tests        done in [0-9]+ s; 100% tests passed, 0 tests failed out of 2")
        # The table comes last, and the last line says the time.
        last = done.stdout.splitlines()
        self.assertRegex(last[-1], "^[0-9]+ of 480 s; results in ")
        archive = self.folder / "build/results.tar.gz"
        self.assertEqual(last[-2], f"All of it: {archive}")
        self.assertTrue(last[-3].startswith("| lazy decode with a budget of 16"), last[-3])
        with tarfile.open(archive) as files:
            names = files.getnames()
        self.assertIn("results/context.txt", names)
        self.assertEqual(sum(name.endswith(".json") for name in names), len(list(self.results.glob("*.json"))))
        self.assertEqual((self.folder / "build/results/context.txt").read_text().split(";")[0], "Made-up GPU")

    def test_measures_again_only_what_there_was_no_time_for(self):
        self.run_on_device("--parts", "ttft")
        results = sorted(self.results.glob("ttft-*.json"))
        self.assertEqual(self.calls.count("ttft_bench --device cuda"), len(results))
        self.written([case() | {"left_out": "no time was left"}], results[0])
        self.run_on_device("--parts", "ttft")
        self.assertEqual(self.calls.count("ttft_bench --device cuda"), 1)

    def test_keeps_what_a_stopped_program_had_measured(self):
        def missing():
            return [sum("left_out" in entry for entry in json.loads(path.read_text()))
                    for path in sorted(self.results.glob("ttft-*.json"))]

        left_out = {"left_out": "no time was left"}
        all_left = str(self.written([case() | left_out, case() | left_out], "all_left.json"))
        one_left = str(self.written([case(), case() | left_out], "one_left.json"))
        self.run_on_device("--parts", "ttft", TTFT_STATUS="124", CASES=one_left)
        count = len(missing())
        self.assertEqual(missing(), [1] * count)
        for status in ("124", "0", "1"):  # a later run that did less, or failed, costs nothing
            done = self.run_on_device("--parts", "ttft", TTFT_STATUS=status, CASES=all_left)
            self.assertEqual(self.calls.count("ttft_bench --device cuda"), count)
            self.assertEqual(missing(), [1] * count)
            self.assertEqual(done.returncode, int(status == "1"))
        self.run_on_device("--parts", "ttft")
        self.assertEqual(missing(), [0] * count)
        self.assertFalse(list(self.results.glob("*.before")))

    def test_removes_what_a_stopped_program_had_not_ended(self):
        half = self.folder / "half.json"
        half.write_text(json.dumps([case()], indent=2)[:-2])
        done = self.run_on_device("--parts", "ttft", TTFT_STATUS="124", CASES=str(half))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertFalse(list(self.results.glob("*.json")))

    def test_a_run_that_measured_nothing_leaves_the_document(self):
        document = self.folder / "document.md"
        document.write_text("<!-- cuda begin -->\nold\n<!-- cuda end -->\n")
        places = ("device", "gpu", "shape", "dtype", "schedule", "prompt_tokens", "batch")
        left_out = self.written([{key: case()[key] for key in places} | {"left_out": "no time was left"}], "left.json")
        done = self.run_on_device("--parts", "ttft", "--document", document, CASES=str(left_out))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("old", document.read_text())

    def test_changes_that_are_not_committed_come_into_no_document(self):
        document = self.folder / "document.md"
        document.write_text("<!-- cuda begin -->\nold\n<!-- cuda end -->\n")
        for changes in ({"CHANGED": "1"}, {"UNTRACKED": "1"}):
            done = self.run_on_device("--parts", "ttft", "--document", document, **changes)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("changes that are not committed", done.stderr)
            self.assertEqual(self.calls, "")  # before anything is built
            self.assertIn("old", document.read_text())
            self.assertFalse((self.results / "context.txt").exists())
        done = self.run_on_device("--parts", "ttft", "--document", document)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("old", document.read_text())

    def test_refuses_results_of_another_gpu_or_commit(self):
        self.run_on_device("--parts", "ttft")
        context = self.results / "context.txt"
        first = context.read_text().rsplit(";", 1)[0] + "; 2001-01-01\n"
        context.write_text(first)
        self.assertEqual(self.run_on_device("--parts", "ttft").returncode, 0)  # on another day
        self.assertEqual(context.read_text(), first)
        for other in ({"COMMIT": "def5678"}, {"DEVICE": "Other GPU|90"}, {"CHANGED": "1"}):
            done = self.run_on_device("--parts", "ttft", **other)
            self.assertEqual(done.returncode, 1, other)
            self.assertIn("holds results of Made-up GPU; CUDA 13.0; commit abc1234, and this is "
                          f"{other.get('DEVICE', 'Made-up GPU|').split('|')[0]}; CUDA 13.0; commit "
                          f"{other.get('COMMIT', 'abc1234')}", done.stderr)
            self.assertIn("give another --results, or remove them", done.stderr)
            self.assertEqual(self.calls, "")  # before anything is built
            self.assertEqual(context.read_text(), first)
        done = self.run_on_device("--parts", "ttft", "--results", self.folder / "other", COMMIT="def5678")
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in self.results.glob("*.json"):
            path.unlink()
        self.assertEqual(self.run_on_device("--parts", "sanitizer", COMMIT="def5678").returncode, 0)
        self.assertIn("commit def5678", context.read_text())
        self.assertEqual(self.run_on_device("--parts", "sanitizer").returncode, 1)  # what passed is a result too

    def test_refuses_results_of_other_changes(self):
        script = self.folder / "repository/bench/cuda/run.sh"
        script.parent.mkdir(parents=True)
        script.write_text((ROOT / "bench/cuda/run.sh").read_text())
        source = self.folder / "repository/include/source.hpp"
        source.parent.mkdir()
        statuses = []
        for text in ("one", "one", "two"):
            source.write_text(text)
            statuses.append(self.run_on_device("--parts", "sanitizer", script=script, CHANGED="1").returncode)
        self.assertEqual(statuses, [0, 0, 1])

    def test_measures_what_the_bars_need_first(self):
        targets = self.targets + " lazyllm_cuda_micro_bench"
        done = self.run_on_device(TARGETS=targets, TORCH="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        programs = [line.split()[0] for line in self.calls.splitlines() if not line.startswith("cmake")]
        order = [(program, len(list(group))) for program, group in itertools.groupby(programs)]
        rest = self.calls.count("ttft_bench --device cuda") - 1
        self.assertEqual(order, [("ctest", 1), ("ttft_bench", 1), ("peers", 1), ("compute-sanitizer", 12), ("micro", 4),
                                 ("ttft_bench", rest), ("peers", 2)])
        for line in self.calls.split("compute-sanitizer")[0].splitlines():
            if line.startswith(("ttft_bench", "peers")):
                self.assertIn("--shape llama-2-7b", line)

    def test_asks_for_all_shapes_lengths_and_batches_that_can_fit(self):
        self.run_on_device("--parts", "ttft")
        asked = set()
        for line in self.calls.splitlines():
            if line.startswith("ttft_bench"):
                words = line.split()
                shape, batch = (words[words.index(option) + 1] for option in ("--shape", "--batch"))
                prompts = words[words.index("--prompt") + 1:words.index("--dtype")]
                asked |= {(shape, batch, prompt) for prompt in prompts}
            if "--shape llama-2-7b --batch 1 --decode-revived 16" in line and "4096" in line:
                first = line
        for words in ("--prompt 4096 16384", "--schedule 6:0.3,16:0.5 --schedule paper --schedule 9:0.5,17:0.5,25:0.5"):
            self.assertIn(words, first)  # in one process, which loads the weights once
        self.assertIn("--decode-revived 0 ", self.calls)
        every = set(itertools.product(("llama-2-7b", "llama-3-8b", "1.1b"), "18",
                                      ("2048", "4096", "8192", "16384", "32768")))
        self.assertEqual(every - asked, {("llama-2-7b", "8", "16384"), ("llama-2-7b", "8", "32768")})

    def test_sanitizers_go_on_with_what_has_not_passed(self):
        sanitize = ("--parts", "sanitizer")
        done = self.run_on_device(*sanitize, STOPPED="*memcheck*/test_cuda", WRONG="*racecheck*/test_llama_cuda")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "memcheck     test_cuda stopped after [0-9]+ s")
        self.assertIn("racecheck    test_llama_cuda FAILED", done.stdout)
        done = self.run_on_device(*sanitize)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.calls.count("compute-sanitizer"), 2)
        self.assertIn("memcheck     test_cuda_properties was passed", done.stdout)
        self.assertIn("racecheck    test_llama_cuda done in", done.stdout)
        self.run_on_device(*sanitize)
        self.assertNotIn("compute-sanitizer", self.calls)

    def test_sanitizers_share_the_time(self):
        hanging = {"HANGS": "*memcheck*", "TARGETS": "test_cuda"}
        limits = self.folder / "calls.limits"
        done = self.run_on_device("--parts", "sanitizer", "--seconds", "405", **hanging)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("memcheck     test_cuda stopped", done.stdout)
        self.assertIn(int(limits.read_text()), range(85, 101))  # a quarter of 400 s, less what a slow machine takes
        self.assertIn("initcheck    test_cuda done", done.stdout)
        # What was stopped comes after what had no turn, and gets twice the time, more than its share.
        for path in self.results.glob("*check*"):
            path.unlink()
        for tool, seconds in (("memcheck", "150"), ("racecheck", "160")):
            (self.results / f"{tool}-test_cuda.stopped").write_text(seconds)
        limits.unlink()
        done = self.run_on_device("--parts", "sanitizer", "--seconds", "405", **hanging)
        self.assertEqual(limits.read_text(), "300\n")
        self.assertRegex(done.stdout, "(?s)initcheck    test_cuda done.*memcheck     test_cuda stopped"
                                      ".*racecheck    test_cuda done")

    def test_without_time_fails_and_says_so(self):
        done = self.run_script("--seconds", "1", DEVICE="Made-up GPU|90")
        self.assertEqual(done.returncode, 1)
        self.assertIn("within the time there was", done.stderr)
        self.assertNotIn("built only", done.stdout)

    def test_a_missing_package_costs_its_parts_only(self):
        done = self.run_script(MISSING="CLI11")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"cannot build examples tests bench: .*Could not find CLI11")
        self.assertIn("-DLAZYLLM_BUILD_EXAMPLES=OFF", self.calls)

    def test_without_cublaslt_the_tests_run(self):
        done = self.run_on_device("--parts", "tests", MISSING="cublasLt", MISSING_PARTS="EXAMPLES BENCH",
                                  TARGETS="test_cuda")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("-DLAZYLLM_BUILD_EXAMPLES=OFF -DLAZYLLM_BUILD_TESTS=ON -DLAZYLLM_BUILD_BENCH=OFF", self.calls)
        self.assertIn("-R ^(test_cuda)$", self.calls)
        done = self.run_on_device(MISSING="Eigen", MISSING_PARTS="EXAMPLES BENCH TESTS")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cmake failed", done.stderr)

    def test_finds_the_toolkit_beside_the_path(self):
        tools = self.folder / "tools"
        toolkit = self.folder / "toolkit"
        for name, folder in (("nvcc", toolkit / "bin"), ("compute-sanitizer", toolkit / "compute-sanitizer")):
            folder.mkdir(parents=True)
            (tools / name).rename(folder / name)
        done = self.run_on_device("--parts", "sanitizer", PATH=f"{tools}:/usr/bin:/bin", CUDA_HOME=str(toolkit))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("compute-sanitizer --tool synccheck", self.calls)

    def with_cudnn(self, version):
        include = self.folder / "include"
        include.mkdir(exist_ok=True)
        (include / "cudnn.h").touch()
        (include / "cudnn_version.h").write_text(f"#define CUDNN_MAJOR {version}\n#define CUDNN_MINOR 1\n")

    def test_cudnn_from_version_9_on_is_measured_beside_the_own_kernels(self):
        self.with_cudnn(9)
        done = self.run_on_device("--parts", "ttft,sanitizer")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("-DLAZYLLM_CUDNN=ON", self.calls)
        self.assertEqual(self.calls.count("by cuDNN"), 1)
        self.assertTrue((self.results / "cudnn-llama-2-7b.json").exists())
        bars, with_cudnn = done.stdout.split("With cuDNN's attention:")
        self.assertIn("lazy decode with a budget of 16", bars)
        self.assertIn("| llama-2-7b | bf16 | 16384 | 1 | `6:0.3,16:0.5` | 100.0 | 1.18 | 35.0 | 0.35 |", with_cudnn)
        self.with_cudnn(8)
        done = self.run_on_device("--parts", "ttft", "--results", self.folder / "other")
        self.assertNotIn("-DLAZYLLM_CUDNN=ON", self.calls)
        self.assertIn("cudnn        left out: cuDNN 9 was not found", done.stdout)

    def test_goes_on_without_a_cudnn_that_does_not_build(self):
        self.with_cudnn(9)
        for step, reason in (("configure", "configuring failed with cuDNN: CMake Error: no cuDNN here"),
                             ("build", "the build failed with cuDNN")):
            done = self.run_on_device("--parts", "tests,ttft", "--results", self.folder / step, CUDNN_BREAKS=step)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"cudnn        {reason}", done.stdout)
            self.assertIn("goes on without it", done.stdout)
            self.assertIn("-DLAZYLLM_CUDNN=OFF -DLAZYLLM_BUILD_EXAMPLES=ON", self.calls)
            self.assertIn("cudnn        left out: " + reason, done.stdout)
            self.assertNotIn("by cuDNN", self.calls)
            self.assertNotIn("With cuDNN's attention:", done.stdout)

    def test_a_tree_without_git_is_told_its_commit(self):
        done = self.run_on_device("--parts", "ttft", "--commit", "v1.2 of a tarball", NO_GIT="1", CHANGED="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("; commit v1.2 of a tarball; ", (self.results / "context.txt").read_text())
        done = self.run_on_device("--results", self.folder / "other", NO_GIT="1", CHANGED="1")
        self.assertIn("--commit TEXT gives one", done.stderr)

    def test_micro_benchmarks_that_are_stopped_cost_only_their_part(self):
        targets = self.targets + " lazyllm_cuda_micro_bench"
        done = self.run_on_device("--parts", "micro", TARGETS=targets, STOPPED="*micro-rows*")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(path.name for path in self.results.glob("*.json")),
                         ["micro-aux.json", "micro-score.json", "micro-select.json"])
        self.assertIn("| gather | bf16 | 4096 | 2048 | 10 | 1000 |", done.stdout)  # without --document
        self.assertIn("--benchmark_filter=^(gather|scatter|merge)", self.calls)
        self.run_on_device("--parts", "micro", TARGETS=targets)
        self.assertEqual(self.calls.count("micro "), 1)

    def test_a_dry_run_walks_all_steps_and_measures_nothing(self):
        targets = self.targets + " lazyllm_cuda_micro_bench"
        for device in ("", "Made-up GPU|90"):
            done = self.run_script("--dry-run", DEVICE=device, TARGETS=targets)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            commands = [line for line in done.stdout.splitlines() if line.startswith("+ ")]
            for program, count in (("'cmake'", 2), ("'ctest'", 1), ("'compute-sanitizer'", 12), ("ttft_bench'", 10),
                                   ("lazyllm_cuda_micro_bench'", 4), ("transformers_ttft.py'", 3)):
                self.assertEqual(sum(program in " ".join(line.split()[:3]) for line in commands), count, program)
            self.assertNotIn("compute-sanitizer", self.calls)
            self.assertNotIn("peers", self.calls)
            self.assertIn("-n\n", self.calls)  # shows what would be built
            self.assertIn(" -N\n", self.calls)  # and which tests would run
            self.assertEqual(list(self.folder.glob("build/**/*.json")), [])
            self.assertTrue((self.folder / "build/results/dry-run.tar.gz").exists())
        done = self.run_script("--dry-run", "--parts", "ttft", DRY="The following argument was not expected: --shape")
        self.assertEqual(done.returncode, 1)
        self.assertIn("was not expected: --shape", done.stdout)

    def test_failures_are_its_own(self):
        done = self.run_script("--parts", "tests,ttft", DEVICE="Made-up GPU|90", BROKEN="test_llama_cuda")
        self.assertEqual(done.returncode, 1)
        self.assertIn("broken: test_llama_cuda", done.stdout)
        self.assertIn("left out: not built", done.stdout)
        self.assertIn("-R ^(test_cuda|test_cuda_properties)$", self.calls)  # the others run
        self.assertIn("ttft_bench --device cuda", self.calls)
        done = self.run_script("--parts", "tests", DEVICE="Made-up GPU|90", CTEST_STATUS="8",
                               CTEST_LINE="50% tests passed, 1 tests failed out of 2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED", done.stdout)

    def test_names_tests_that_were_skipped(self):
        done = self.run_script("--parts", "tests", DEVICE="Made-up GPU|90", CTEST_LINE="\t  5 - test_cuda (Skipped)")
        self.assertIn("tests        skipped: test_cuda", done.stdout)

    def test_bad_options_are_named(self):
        for arguments, message in [(["--parts", "foo"], "part 'foo' is none of"), (["--seconds", "x"], "'x' is not a whole"),
                                   (["--prefix", "/nowhere"], "/nowhere is not a folder"), (["--what"], "option '--what'"),
                                   (["--jobs"], "--jobs needs a value"), (["--commit"], "--commit needs a value")]:
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)
        self.assertIn("--results DIR", self.run_script("--help").stdout)


class Peer(Folder):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "bench/peers/transformers_ttft.py", *arguments],
                              capture_output=True, text=True, check=False)

    def test_bad_options_are_named(self):
        self.assertIn("--batch: 0 is out of range", self.run_script("--batch", "0").stderr)
        self.assertIn("--shape", self.run_script("--shape", "tinier").stderr)
        self.assertIn("prefill of Hugging Face transformers", self.run_script("--help").stdout)

    def test_the_type_needs_no_argument_of_one_version(self):
        torch = mock.MagicMock(bfloat16="bf16")
        defaults = ["f32"]
        torch.get_default_dtype = lambda: defaults[-1]
        torch.set_default_dtype = defaults.append
        transformers = mock.MagicMock()

        def from_config(config, *, attn_implementation):
            self.assertEqual((attn_implementation, defaults[-1]), ("sdpa", "bf16"))
            return mock.MagicMock()

        transformers.AutoModelForCausalLM.from_config = from_config
        transformers_ttft.make_model(torch, transformers,
                                     types.SimpleNamespace(shape="tiny", prompt=[8], device="cpu", dtype="bf16"))
        self.assertEqual(defaults, ["f32", "bf16", "f32"])

    def test_writes_after_each_case_what_there_is(self):
        torch = mock.MagicMock(__version__="2.9", OutOfMemoryError=MemoryError)
        torch.device.return_value.type = "cpu"
        transformers = mock.MagicMock(__version__="5.0")
        path = self.folder / "peers.json"
        no_time = {"left_out": "no time was left"}
        figures = [{"dense_ms": 2.0}, {"left_out": "not enough device memory"}]
        seen = []

        def measure(*_):
            """One that is measured, one without memory, and one in which the program is stopped."""
            seen.append([{key: entry[key] for key in ("dense_ms", "left_out") if key in entry}
                         for entry in json.loads(path.read_text())])
            if len(seen) == 1:
                return figures[0]
            raise MemoryError if len(seen) == 2 else KeyboardInterrupt

        arguments = ["transformers_ttft.py", "--shape", "tiny", "--prompt", "1", "2", "3", "--json", str(path)]
        with mock.patch.dict(sys.modules, torch=torch, transformers=transformers), mock.patch("sys.argv", arguments), \
                mock.patch.object(transformers_ttft, "make_model") as model, \
                mock.patch.object(transformers_ttft, "measure", measure), self.assertRaises(KeyboardInterrupt):
            model.return_value.config._attn_implementation = "sdpa"
            transformers_ttft.main()
        self.assertEqual(seen, [[no_time] * 3, [figures[0], no_time, no_time], [*figures, no_time]])
        self.assertEqual(list(self.folder.iterdir()), [path])


if __name__ == "__main__":
    unittest.main()
