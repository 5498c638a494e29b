"""Which share of the prompt each layer has used, step after step (the paper's Figure 7)."""

import json
import pathlib
import subprocess
import tempfile

import paper
from results import Failure

MOST_GROUPS = 4
TOO_LONG = "(prompt "  # what lazyllm-generate says of a prompt that the model cannot run has its length in brackets


def used_shares(trace, prompt_tokens):
    """`[layer][step]`: share of the prompt's tokens that the layer has used in this step or one before."""
    layers = len(trace[0]["active"])
    used = [set() for _ in range(layers)]
    shares = [[] for _ in range(layers)]
    for step in trace:
        for layer, positions in enumerate(step["active"]):
            used[layer].update(position for position in positions if position < prompt_tokens)
            shares[layer].append(len(used[layer]) / prompt_tokens)
    return shares


def groups(layers, schedule):
    """Layers that run with the same tokens, as ranges; neighbours together where there are too many."""
    starts = [0, *(layer for layer, _ in schedule)]
    if len(starts) > MOST_GROUPS:
        starts = [starts[len(starts) * i // MOST_GROUPS] for i in range(MOST_GROUPS)]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], layers])]


def mean_curves(items, ranges):
    """One curve for each range of layers: the mean over its layers and the items. An item whose answer has ended uses
    nothing more, so its share stays."""
    steps = max(len(item["shares"][0]) for item in items)
    curves = []
    for layers in ranges:
        shares = [item["shares"][layer] for item in items for layer in layers]
        curves.append([sum(share[min(step, len(share) - 1)] for share in shares) / len(shares)
                       for step in range(steps)])
    return curves


def prompt_of(line, data_set, options):
    """The prompt of a line and the most tokens of its answer."""
    name = line.get("dataset") or data_set.path.stem
    if "prompt" in line:
        prompt = line["prompt"]
    else:
        prompt = json.loads(pathlib.Path(options.prompts).read_text())[name].format(**line)
    length = line.get("max_tokens")
    if length is None:
        if not options.lengths:
            raise Failure(f"{data_set.path}: a line has no max_tokens, and there is no file of answer lengths")
        length = json.loads(pathlib.Path(options.lengths).read_text())[name]
    return prompt, min(length, options.longest_answer or length)


def measure(plan, run, data_set, limit):
    """Writes the shares of the first items of a data set. Prompts that are too long for the model are left out."""
    o, place, items = plan.options, plan.place(run, data_set), []
    arguments = run.method.arguments[2:]  # without --method, which lazyllm-generate has not
    with open(data_set.path) as file, tempfile.TemporaryDirectory() as folder:
        prompt_file, trace_file = f"{folder}/prompt", f"{folder}/trace.json"
        for line in file:
            if len(items) == limit:
                break
            prompt, length = prompt_of(json.loads(line), data_set, o)
            pathlib.Path(prompt_file).write_text(prompt)
            chat = o.chat and data_set.category not in paper.WITHOUT_CHAT
            result = subprocess.run([o.binaries / "lazyllm-generate", "--model", o.model, "--prompt-file", prompt_file,
                                     *arguments, "--max-tokens", str(length), *["--chat"] * chat,
                                     *["--context", str(o.context)] * (o.context > 0), "--dtype", o.dtype,
                                     "--threads", str(max(1, o.threads // o.jobs)), "--trace", trace_file],
                                    capture_output=True, text=True, errors="replace", check=False)
            if result.returncode and TOO_LONG in result.stderr:
                continue
            if result.returncode:
                raise Failure(f"lazyllm-generate failed for {run.title} on {data_set.path}: {result.stderr.strip()[-600:]}")
            trace = json.loads(pathlib.Path(trace_file).read_text())
            items.append({"shares": used_shares(trace, trace[0]["new_tokens"])})
    partial = place.with_suffix(".partial")
    partial.write_text(json.dumps({"data": {"limit": limit}, "items": items}))
    partial.replace(place)
