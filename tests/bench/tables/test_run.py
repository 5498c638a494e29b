"""Tests of bench/run.sh, its tables and bench/quality/run.sh, in repositories with stand-ins for the build and programs."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True

import make_tables  # noqa: E402

DOCUMENT = "<!-- attention begin -->\nold\n<!-- attention end -->\n"
CASE = {"isa": "avx2", "dtype": "f32", "products": "library", "head_dim": 64, "group": 1, "keys": 1000,
        "rows": 1000, "scattered": False, "kept_percent": 100, "attention_gflops": 1.0, "product_gflops": 2.0, "share_percent": 50.0, "threads": 2, "repeats": 5}


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
                       capture_output=True)

    def commit_all(self):
        self.git("add", "-A")
        self.git("commit", "-qm", "a commit")


class Run(Repository):
    def setUp(self):
        super().setUp()
        for path in ("bench/run.sh", "bench/machine.sh", "bench/make_tables.py"):
            self.write(path, (ROOT / path).read_text())
        self.write("cmake/build_release.sh", "")
        self.write("build/release/CMakeCache.txt", "CMAKE_CXX_COMPILER:STRING=echo\n")
        self.write("docs/benchmarks.md", DOCUMENT)
        self.write(".gitignore", "/build/\n")
        # Fails in call number `fail_at`, which is a file beside it.
        self.write("build/release/bin/attention_bench", f"""#!{sys.executable}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with open(here / "calls", "a+") as calls:
    print(*sys.argv[1:], file=calls)
    calls.seek(0)
    count = len(calls.readlines())
if (here / "fail_at").exists() and count == int((here / "fail_at").read_text()):
    sys.exit(1)
name = next(argument for argument in sys.argv if argument.startswith("--json=")).removeprefix("--json=")
pathlib.Path(name).write_text(json.dumps([{CASE!r}]))
""")
        (self.folder / "build/release/bin/attention_bench").chmod(0o755)
        self.commit_all()

    def run_script(self, **environment):
        return subprocess.run(["bash", "bench/run.sh", "attention"], cwd=self.folder, capture_output=True, text=True,
                              env=os.environ | environment)

    def calls(self):
        path = self.folder / "build/release/bin/calls"
        return path.read_text().splitlines() if path.exists() else []

    def document(self):
        return (self.folder / "docs/benchmarks.md").read_text()

    def test_goes_on_after_a_case_that_failed(self):
        self.write("build/release/bin/fail_at", "3")
        self.assertNotEqual(self.run_script().returncode, 0)
        self.assertEqual(self.document(), DOCUMENT)
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = self.calls()
        self.assertEqual(calls[2], calls[3])  # the failed one again
        self.assertEqual(len(set(calls)), len(calls) - 1)  # and no other
        self.assertIn("| 64 | 1 | 1000 | 100 % | all | 1 | 2 | 50 % |", self.document())
        self.assertEqual(self.run_script().returncode, 0)
        self.assertEqual(self.calls(), calls)

    def test_the_time_is_bounded(self):
        done = self.run_script(SECONDS_AT_MOST="0")
        self.assertEqual(done.returncode, 3)
        self.assertIn("the same command goes on", done.stderr)
        self.assertEqual(self.calls(), [])
        self.assertEqual(self.document(), DOCUMENT)

    def test_the_commit_is_that_of_the_sources(self):
        self.write("cmake/other", "changed")
        done = self.run_script()
        self.assertEqual(done.returncode, 1)
        self.assertIn("changes that are not committed", done.stderr)
        self.commit_all()
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=self.folder, text=True).strip()
        self.assertEqual(self.run_script().returncode, 0)
        self.assertIn(f"commit {commit};", self.document())
        calls = self.calls()
        self.git("commit", "-qam", "the table")
        self.assertEqual(self.run_script().returncode, 0)
        self.assertEqual(self.calls(), calls)
        self.assertIn(f"commit {commit};", self.document())
        self.write("cmake/other", "changed again")
        self.git("commit", "-qam", "third")
        self.assertEqual(self.run_script().returncode, 0)
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
        one = {"name": "few_rows<bf16>/rows:1/in:576/out:3072/min_time:0.200/manual_time", "real_time": 4.0, "of_read": 0.96,
               "read": 30e9}
        nine = one | {"name": one["name"].replace("rows:1", "rows:9"), "real_time": 5.0, "of_read": 0.8, "read": 36e9}
        text = self.table(nine, one)
        self.assertIn("| weights | in | out | plain read, GB/s | 1 row | 9 rows |", text)
        self.assertIn("| bf16 | 576 | 3072 | 30 to 36 | 0.96, 1.00x | 0.80, 1.25x |", text)

    def test_another_benchmark_is_refused(self):
        with self.assertRaisesRegex(ValueError, "attend<bf16>"):
            self.table({"name": "attend<bf16>/rows:1"})


class TtftTables(unittest.TestCase):
    RUN = {name: 1.0 for name in (
        "dense_ms", "lazy_ms", "speedup", "ideal_speedup", "overhead_percent", "library_percent", "dense_gflops",
        "gemm_gflops", "dense_share_of_gemm_percent", "dense_generation_ms", "lazy_generation_ms", "generation_speedup",
        "dense_decode_ms", "lazy_decode_ms")} | {"dtype": "bf16", "prompt_tokens": 64, "schedule": "2:0.5", "threads": 2}

    def tables(self, *runs):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / str(i) for i in range(len(runs))]
            for path, run in zip(paths, runs, strict=True):
                path.write_text(json.dumps(self.RUN | run))
            return make_tables.ttft_tables(paths)

    def test_each_case_has_one_row_and_generation_has_tables_of_its_own(self):
        text = self.tables({"shape": "alone", "repeats": 5, "generated_tokens": 1},
                           {"shape": "more", "repeats": 3, "generated_tokens": 9})
        self.assertIn("Medians of 3 or 5 runs.", text)
        for shape in ("alone", "more"):
            self.assertEqual(text.count(f"| {shape} |"), 1)
        self.assertNotIn("after the first token", text)


class Quality(Repository):
    """bench/quality/run.sh with a stand-in for quality.py."""

    SOURCES = ("include/a.hpp", "examples/a.cpp", "bench/evaluate/a.cpp", "bench/quality/a.py", "cmake/a.cmake", "CMakeLists.txt",
               "CMakePresets.json")

    def setUp(self):
        super().setUp()
        for path in ("bench/quality/run.sh", "bench/machine.sh"):
            self.write(path, (ROOT / path).read_text())
        self.write("bench/quality/quality.py", "import os\nprint('measures', os.environ['COMMIT'])\n")
        self.write("docs/text.md", "text")
        for path in self.SOURCES:
            self.write(path, "first")
        self.commit_all()

    def test_changes_of_the_sources_are_refused(self):
        run = ["bash", "bench/quality/run.sh"]
        options = {"cwd": self.folder, "capture_output": True, "text": True, "env": os.environ | {"BIN": "bin"}}
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
