"""Tests of examples/run.sh, with stand-ins for the build, fetch.sh and lazyllm-generate."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
FETCH = """mkdir -p cache/$1
echo "Fetching $1" >&2
echo cache/$1
"""
GENERATE = """#!/bin/sh
printf '%s\\n' "$@" > arguments
"""


class ExampleRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("cmake/build_release.sh", "echo build $@\n")
        self.write("examples/models/fetch.sh", FETCH)
        self.write("examples/models/models.txt", "# model licence\ntoy      MIT  1  a\ntoy      MIT  1  b\nother.1  MIT  1  c\n")
        self.write("build/release/bin/lazyllm-generate", GENERATE)
        (self.root / "build/release/bin/lazyllm-generate").chmod(0o755)
        shutil.copy(ROOT / "examples/run.sh", self.root / "examples/run.sh")

    def write(self, path, text=""):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def arguments(self, *options):
        """What lazyllm-generate gets, its paths without those of the script."""
        done = subprocess.run(["bash", "examples/run.sh", *options], cwd=self.root, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("build lazyllm-generate\n", done.stdout)
        lines = (self.root / "arguments").read_text().splitlines()
        return " ".join(lines).replace(f"{self.root.resolve()}/", "")

    def test_without_a_model_the_embedded_one(self):
        tiny = "--model examples/models/tiny{} --compare --dtype bf16 --schedule @examples/models/tiny/schedules.json --max-tokens 16"
        self.assertEqual(self.arguments(), tiny.format(" --prompt-file examples/prompts/documents.txt"))
        self.assertEqual(self.arguments("--dtype", "f32"), tiny.format(" --prompt-file examples/prompts/documents.txt") + " --dtype f32")
        self.assertEqual(self.arguments("--prompt", "Who?"), tiny.format("") + " --prompt Who?")

    def test_a_named_model_is_fetched_and_has_its_preset_and_its_template(self):
        self.write("examples/models/presets/toy.json")
        named = ("--model cache/toy{} --compare --chat --dtype bf16 --max-tokens 32 --schedule @examples/models/presets/toy.json")
        log = " --prompt-file examples/prompts/keepers_log.txt"
        self.assertEqual(self.arguments("toy"), named.format(log))
        self.assertEqual(self.arguments("toy", "--dtype", "f32"), named.format(log) + " --dtype f32")
        self.assertEqual(self.arguments("toy", "mine.txt", "--threads", "2"),
                         named.format("") + " --prompt-file mine.txt --threads 2")
        for own in (["--prompt", "Who?"], ["--prompt=Who?"], ["--prompt-file=mine.txt"], ["--token-ids", "ids"]):
            self.assertEqual(self.arguments("toy", *own), named.format("") + " " + " ".join(own))

    def test_a_named_model_that_was_not_calibrated_has_the_programs_own_schedule(self):
        self.assertEqual(self.arguments("other.1"), "--model cache/other.1 --prompt-file examples/prompts/keepers_log.txt "
                                                    "--compare --chat --dtype bf16 --max-tokens 32")

    def test_a_folder_runs_in_bf16_and_one_with_the_name_of_a_model_is_written_with_a_slash(self):
        (self.root / "toy").mkdir()
        (self.root / "mine").mkdir()
        lighthouse = " --prompt-file examples/prompts/lighthouse.txt"
        for folder in ("mine", "./toy"):
            self.assertEqual(self.arguments(folder), f"--model {folder}{lighthouse} --compare --dtype bf16")
        self.assertEqual(self.arguments("mine", "--chat"), f"--model mine{lighthouse} --compare --dtype bf16 --chat")
        self.assertEqual(self.arguments("mine", "mine.txt"), "--model mine --compare --dtype bf16 --prompt-file mine.txt")
        self.assertIn("--model cache/toy ", self.arguments("toy"))

    def test_a_llama2c_file_comes_with_the_one_tokenizer_beside_it(self):
        self.write("files/stories.bin")
        lighthouse = "--prompt-file examples/prompts/lighthouse.txt --compare"
        self.assertEqual(self.arguments("files/stories.bin"), f"--model files/stories.bin {lighthouse}")
        self.write("files/tok512.bin")
        self.assertEqual(self.arguments("files/stories.bin", "--max-tokens", "8"),
                         f"--model files/stories.bin --tokenizer files/tok512.bin {lighthouse} --max-tokens 8")
        self.write("files/tokenizer.bin")
        self.assertEqual(self.arguments("files/stories.bin"), f"--model files/stories.bin {lighthouse}")

    def test_what_is_neither_a_path_nor_a_name_is_refused_before_the_build(self):
        for name in ("to", "oth", "otherx1", "mine/none"):
            done = subprocess.run(["bash", "examples/run.sh", name], cwd=self.root, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(done.stderr, f'run.sh: there is no file or folder "{name}", nor a model of this name; '
                                          "known are: other.1 toy\n")

    def test_help_names_the_models(self):
        done = subprocess.run(["bash", "examples/run.sh", "--help"], cwd=self.root, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertIn("one of other.1 toy,", done.stdout)
        self.assertFalse((self.root / "arguments").exists())


if __name__ == "__main__":
    unittest.main()
