#!/usr/bin/env python3
"""Why few-shot prompts break first: what becomes of the labels of their examples, and what the labels are worth.

`labels.py MODEL LONGBENCH [OPTION of lazyllm-generate...]`, with the packages torch, transformers and tokenizers. Each prompt
runs with lazyllm-generate; then transformers runs it with the tokens that went on after each pruning layer, and with others, and
says how many nats a token of the right answer has. README.md says what was found.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import tempfile

import torch
import transformers
from tokenizers import Tokenizer

CONTEXT = 4096
# Data set: tokens of its answers, and what follows the cue of a label up to the line's end.
DATA_SETS = {"trec": (64, r"(?<=\nType:)[^\n]+"), "triviaqa": (32, r"(?<=\nAnswer:\n)[^\n]+"),
             "samsum": (128, r"(?<=\nSummary: )[^\n]+")}


def cut_middle(tokens, longest):
    """As lazyllm-generate --context."""
    return tokens if len(tokens) <= longest else tokens[:longest // 2] + tokens[-(longest // 2):]


def read(path, tokenizer, count):
    """(token ids, positions of labels, ids of the answer) of the first prompts."""
    answer_tokens, label = DATA_SETS[path.stem]
    for line in path.read_text().splitlines()[:count]:
        item = json.loads(line)
        encoding = tokenizer.encode(item["prompt"])
        spans = [match.span() for match in re.finditer(label, item["prompt"])]
        of_label = [any(start < high and end > low for low, high in spans) for start, end in encoding.offsets]
        longest = CONTEXT - answer_tokens
        labels = {i for i, is_label in enumerate(cut_middle(of_label, longest)) if is_label}
        space = "" if item["prompt"][-1].isspace() else " "
        answer = tokenizer.encode(space + item["answers"][0]).ids[:16]
        yield item["prompt"], cut_middle(encoding.ids, longest), labels, answer


def active(options, prompt, answer_tokens):
    """The positions that each layer ran with, in the prompt's step."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "prompt").write_text(prompt)
        subprocess.run([options.binary, "--model", options.model, "--prompt-file", folder / "prompt", "--context",
                        str(CONTEXT), "--max-tokens", str(answer_tokens), "--dtype", "bf16", "--trace",
                        folder / "trace", *options.pruning], check=True, capture_output=True)
        return json.loads((folder / "trace").read_text())[0]["active"]


class Model:
    def __init__(self, folder):
        self.whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def nats(self, tokens, answer, cuts):
        """Per token of the answer, when after `layer` layers only the prompt's positions cuts[layer] go on."""
        model = self.whole.model
        positions = torch.arange(len(tokens) + len(answer))[None]
        hidden = model.embed_tokens(torch.tensor([tokens + answer]))
        for i, layer in enumerate(model.layers):
            if i in cuts:
                rows = [row for row, position in enumerate(positions[0].tolist())
                        if position >= len(tokens) or position in cuts[i]]
                hidden, positions = hidden[:, rows], positions[:, rows]
            # Without a mask attention is causal; the rows are in ascending order.
            hidden = layer(hidden, position_embeddings=model.rotary_emb(hidden, positions), attention_mask=None,
                           position_ids=positions)
        logits = self.whole.lm_head(model.norm(hidden[:, -len(answer) - 1:-1])).float()
        return torch.nn.functional.cross_entropy(logits[0], torch.tensor(answer)).item()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("longbench", type=pathlib.Path)
    p.add_argument("--binary", default="build/release/bin/lazyllm-generate")
    p.add_argument("--sets", nargs="+", choices=list(DATA_SETS), default=list(DATA_SETS), help="data sets (default: all)")
    p.add_argument("--items", type=int, default=3, help="of each data set")
    options, options.pruning = p.parse_known_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    model = Model(options.model)
    print("| data set | labels, % of the prompt | of these kept after each pruning layer, % | of all tokens, % | nats: dense "
          "| pruned | labels back | as many others back | dense without labels | without as many others |", flush=True)
    print("|" + " --- |" * 10, flush=True)
    for name in options.sets:
        answer_tokens, _ = DATA_SETS[name]
        rows = []
        for prompt, tokens, labels, answer in read(options.longbench / f"{name}.jsonl", tokenizer, options.items):
            layers = [set(positions) for positions in active(options, prompt, answer_tokens)]
            cuts = {i: layer for i, layer in enumerate(layers) if i and len(layer) < len(layers[i - 1])}
            whole = set(range(len(tokens)))
            others = set(random.Random(1).sample(sorted(whole - labels), len(labels)))
            nats = [model.nats(tokens, answer, these) for these in (
                {}, cuts, {i: kept | labels for i, kept in cuts.items()}, {i: kept | others for i, kept in cuts.items()},
                {min(cuts): whole - labels}, {min(cuts): whole - others})]
            rows.append([100 * len(labels) / len(tokens), *(100 * len(kept & labels) / len(labels) for kept in cuts.values()),
                         *(100 * len(kept) / len(tokens) for kept in cuts.values()), *nats])
        means = [sum(column) / len(column) for column in zip(*rows)]
        share, kept, nats = means[0], [f"{value:.0f}" for value in means[1:-6]], means[-6:]
        half = len(kept) // 2
        print(f"| {name} | {share:.0f} | {', '.join(kept[:half])} | {', '.join(kept[half:])} | "
              + " | ".join(f"{value:.2f}" for value in nats) + " |", flush=True)


if __name__ == "__main__":
    main()
