"""Writes what Python's packages make of LongBench's prompts with the pretrained models that examples/models/fetch.sh makes:
`make_pretrained_fixtures.py LONGBENCH_FOLDER [PART...]`, and with the tokenizers of make_pretrained_reference.py. The
prompts themselves are not written. Formats: README.md.

fixtures/pretrained_ids.json has hashes of token ids; fixtures/pretrained has some logits of SmolLM2.
"""

import argparse
import hashlib
import json
import pathlib
import shutil
import tempfile

import naive_lazyllm
import numpy as np
import torch
from make_pretrained_reference import CACHE, TOKENIZERS
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
STEPS = FIXTURES / "pretrained"
PRESETS = pathlib.Path(__file__).parents[2] / "examples" / "models" / "presets" / "smollm2.json"
PROMPT_TOKENS = 2000
GENERATED = 4
STRIDE = 97  # of the logits that are kept


def longbench(folder):
    """(file name, line number, prompt) of every prompt."""
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield path.name, number, json.loads(line)["prompt"]


def chat_ids(folder, prompt):
    return AutoTokenizer.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True)["input_ids"]


def digest(ids):
    return hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()


def make_ids(prompts):
    content = {}
    for folder in [CACHE / "smollm2", CACHE / "qwen2.5-coder-0.5b", *sorted(TOKENIZERS.iterdir())]:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        content[folder.name] = {
            "prompts": {f"{file}:{line}": digest(tokenizer.encode(text).ids) for file, line, text in prompts}}
        if "chat_template" in json.loads((folder / "tokenizer_config.json").read_text()):
            content[folder.name]["chat"] = digest(chat_ids(folder, prompts[0][2]))
    (FIXTURES / "pretrained_ids.json").write_text(json.dumps(content, indent=0) + "\n")


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
    """The first prompt of a file that is long enough, without its middle: which it is, and its tokens."""
    for other, line, text in prompts:
        ids = tokenizer.encode(text).ids
        if other == file and len(ids) > count:
            return {"file": file, "line": line, "count": count}, ids[:count // 2] + ids[-count // 2:]
    raise SystemExit(f"{file} has no prompt of {count} tokens")


def write(case, prompt, steps, logits, **options):
    """The first step's tokens are not here: they are `prompt`'s."""
    del steps[0]["tokens"]
    for step, row in zip(steps, logits):
        step["largest"] = float(np.abs(row).max())
    content = {"name": case, "model": "smollm2", "prompt": prompt, "logits": f"cases/{case}.f32", "stride": STRIDE, **options,
               "steps": steps}
    (STEPS / "cases" / f"{case}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")
    np.concatenate([row[::STRIDE] for row in logits]).astype("<f4").tofile(STEPS / content["logits"])
    print(case, flush=True)


def make_dense(case, model, prompt, tokens):
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
    write(case, prompt, steps, logits, schedule="dense", score="last", protect_first=0, protect_last=1,
          computed_total=total)


def make_pruned(naive, prompt, tokens):
    """Steps of the naive LazyLLM with the model's preset, in the same format."""
    options = {name: value for name, value in json.loads(PRESETS.read_text())["presets"]["2.34x"].items()
               if name != "measured"}
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
    write("pruned", prompt, steps, logits, **options, computed_total=len(lazy.computations))


def make_all_dense(prompts, tokenizer, model):
    for file in ["hotpotqa.jsonl", "gov_report.jsonl", "lcc.jsonl"]:
        make_dense(f"dense_{file.removesuffix('.jsonl')}", model, *tokens_of(prompts, tokenizer, file, PROMPT_TOKENS))


def make_one_pruned(prompts, tokenizer, model):
    with tempfile.TemporaryDirectory() as f32:  # NumPy has no bf16
        model.save_pretrained(f32)
        shutil.copy(CACHE / "smollm2" / "config.json", f32)
        naive = Model(f32)
    make_pruned(naive, *tokens_of(prompts, tokenizer, "hotpotqa.jsonl", PROMPT_TOKENS))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("longbench", type=pathlib.Path)
    p.add_argument("part", nargs="*", help="ids, dense, pruned (by default all)")
    options = p.parse_args()
    parts = options.part or ["ids", "dense", "pruned"]
    prompts = list(longbench(options.longbench))
    if "ids" in parts:
        make_ids(prompts)
    if {"dense", "pruned"} & set(parts):
        (STEPS / "cases").mkdir(parents=True, exist_ok=True)
        tokenizer = Tokenizer.from_file(str(CACHE / "smollm2" / "tokenizer.json"))
        model = AutoModelForCausalLM.from_pretrained(CACHE / "smollm2", dtype=torch.float32, attn_implementation="eager")
        if "dense" in parts:
            make_all_dense(prompts, tokenizer, model)
        if "pruned" in parts:
            make_one_pruned(prompts, tokenizer, model)
        names = sorted(path.stem for path in (STEPS / "cases").glob("*.json"))
        (STEPS / "cases.json").write_text(json.dumps(names) + "\n")


if __name__ == "__main__":
    main()
