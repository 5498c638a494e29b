#!/usr/bin/env python3
"""model.py MEASURED [--svg FILE]: a model of TTFT over ranks, network, prompt and schedule.

MEASURED is what measure.sh wrote. The model is fitted to it, printed beside it, and then asked about devices. All that
it assumes of those stands in ASSUMED and is printed as a table."""

import argparse
import dataclasses
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from recommended import Widths, recommended  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int


SMOLLM2 = Model("SmolLM2-135M", 30, 576, 9, 3, 64, 1536)
LLAMA_7B = Model("7B", 32, 4096, 32, 32, 128, 11008)
LLAMA_70B = Model("70B", 80, 8192, 64, 8, 128, 28672)

ASSUMED = {
    "matrix products of a device": ("400 TFLOP/s", 400e12),
    "memory of a device": ("80 GB", 80e9),
    "reading weights": ("3.0 TB/s", 3.0e12),
    "launches of a layer": ("60 us", 60e-6),
    "devices in one node": ("8", 8),
    "bandwidth of a device within the node": ("300 GB/s", 300e9),
    "bandwidth of a device between nodes": ("40 GB/s: each has a network card", 40e9),
    "latency of a collective within the node": ("15 us", 15e-6),
    "latency of a collective between nodes": ("40 us, and 5 us for each doubling of nodes", (40e-6, 5e-6)),
    "copy to the host and back, selection, new plan": ("150 us for each layer that ranks", 150e-6),
    "bus between device and host": ("20 GB/s", 20e9),
    "scoring": ("reads K once for each 8 rows of the window, at the rate of reading weights", 8),
    "bytes of an element": ("2", 2),
}
VALUE = {name: value for name, (_, value) in ASSUMED.items()}


def points_of(text):
    """A schedule's text as {layers run: keep ratio}."""
    return {int(layer): float(keep) for layer, keep in (point.split(":") for point in text.split(","))}


def automatic(model):
    """The cuts of `auto:2.34x`."""
    return recommended(model.layers, 2.34,
                       Widths(model.hidden, model.heads, model.kv_heads, model.head_dim, model.intermediate))


def parts(count, ranks):
    """The largest of `ranks` parts of `count` things: the slowest rank sets the pace."""
    return max(count * (r + 1) // ranks - count * r // ranks for r in range(ranks))


def own_heads(model, ranks):
    """Most query heads and key heads on one rank, as shard.cpp splits them; None where a rank would have none."""
    if ranks > model.heads:
        return None
    if ranks <= model.kv_heads:
        kv = parts(model.kv_heads, ranks)
        return kv * model.heads // model.kv_heads, kv
    return parts(model.heads // model.kv_heads, ranks // model.kv_heads), 1


def layers_of(model, tokens, schedule, window=32, protected=36):
    """Rows, rows that go on, and numbers that the ranks exchange, of each layer."""
    active = tokens
    for layer in range(model.layers):
        rows = active
        keep = schedule.get(layer + 1)
        if layer + 1 == model.layers:
            yield rows, 1, 0
            return
        if keep is not None:
            active = max(math.ceil(keep * active - 1e-9), min(tokens, protected))
        yield rows, active, (rows * window if keep is not None else 0)


def queries_of(rows, going_on):
    """Rows whose attention is computed: in the last layer, from which one row goes on, that row."""
    return 1 if going_on == 1 else rows


def layer_operations(model, rows, going_on, ranks):
    """Of one layer, on the slowest rank."""
    heads, kv_heads = own_heads(model, ranks)
    queries = queries_of(rows, going_on)
    work = 4 * rows * model.hidden * kv_heads + 4 * queries * model.hidden * heads
    work += (4 * rows if queries == 1 else 2 * rows * (rows + 1)) * heads
    return work * model.head_dim + 6 * going_on * model.hidden * parts(model.intermediate, ranks)


def operations(model, tokens, schedule, ranks):
    """Of a prefill, on the slowest rank."""
    return sum(layer_operations(model, rows, going_on, ranks) for rows, going_on, _ in layers_of(model, tokens, schedule))


def summed(model, tokens, schedule):
    """Elements that the all-reduces of a prefill add up, and their number."""
    elements = sum(queries_of(rows, going_on) + going_on for rows, going_on, _ in layers_of(model, tokens, schedule))
    return elements * model.hidden, 2 * model.layers


def exchanged(model, tokens, schedule):
    """Whole numbers that make the scores the same, and their collectives."""
    counts = [numbers for _, _, numbers in layers_of(model, tokens, schedule) if numbers]
    return sum(counts), len(counts)


def fit(runs, collectives):
    """The rate of one rank alone, how many such ranks the machine can feed at once, and a factor on the bandwidth that was
    measured alone; by a search for the least squares of relative errors."""
    bandwidth = {}
    for ranks in {c["ranks"] for c in collectives if c["ranks"] > 1}:
        largest = max((c for c in collectives if c["ranks"] == ranks), key=lambda c: c["tokens"])
        bandwidth[ranks] = largest["tokens"] * 64 * 4 / (largest["rows_of_64_us"] * 1e-6)

    def predict(run, lazy, rate, fed, network):
        points = points_of(run["schedule"]) if lazy else {}
        share = min(1.0, fed / run["ranks"])
        seconds = operations(SMOLLM2, run["prompt"], points, run["ranks"]) / (rate * share)
        if run["ranks"] > 1:
            elements, _ = summed(SMOLLM2, run["prompt"], points)
            numbers, _ = exchanged(SMOLLM2, run["prompt"], points)
            seconds += (4 * elements + 8 * numbers) / (bandwidth[run["ranks"]] * network)
        return seconds * 1e3

    def error(parameters):
        return sum(math.log(predict(run, lazy, *parameters) / run["lazy_ms" if lazy else "dense_ms"]) ** 2
                   for run in runs for lazy in (False, True))

    best = min(((rate * 1e9, fed / 20, network) for rate in range(100, 1000, 10) for fed in range(20, 41)
                for network in (0.1, 0.2, 0.5, 1.0, 2.0)), key=error)
    return best, bandwidth, predict


def seconds_on_devices(model, tokens, schedule, devices):
    """TTFT on so many devices; None where the model does not fit or cannot be split."""
    if own_heads(model, devices) is None:
        return None
    element = VALUE["bytes of an element"]
    _, kv_heads = own_heads(model, devices)
    layer_weights = (2 * model.hidden * (model.heads + model.kv_heads) * model.head_dim + 3 * model.hidden * model.intermediate)
    kv = 2 * tokens * model.layers * kv_heads * model.head_dim
    if (layer_weights * model.layers / devices + kv + 4 * tokens * model.hidden) * element > VALUE["memory of a device"]:
        return None
    nodes = math.ceil(devices / VALUE["devices in one node"])
    first, doubling = VALUE["latency of a collective between nodes"]
    latency = VALUE["latency of a collective within the node"] if nodes == 1 else first + doubling * math.log2(nodes)
    within = min(devices, VALUE["devices in one node"])

    def collective(size):
        """Each device adds up its part within the node, then with the same part of the other nodes."""
        if devices == 1:
            return 0
        inside = 2 * (within - 1) / within * size / VALUE["bandwidth of a device within the node"]
        return latency + inside + 2 * (nodes - 1) / nodes * size / within / VALUE["bandwidth of a device between nodes"]

    total = 0.0
    for rows, going_on, numbers in layers_of(model, tokens, schedule):
        work = layer_operations(model, rows, going_on, devices)
        reading = layer_weights / devices * element / VALUE["reading weights"]
        total += max(work / VALUE["matrix products of a device"], reading) + VALUE["launches of a layer"]
        total += collective(queries_of(rows, going_on) * model.hidden * element) + collective(going_on * model.hidden * element)
        if numbers:
            passes = 32 / VALUE["scoring"]
            total += passes * rows * kv_heads * model.head_dim * element / VALUE["reading weights"]
            total += VALUE["copy to the host and back, selection, new plan"] + 2 * 8 * numbers / VALUE["bus between device and host"]
            total += collective(8 * numbers)
    return total


DEVICES = (1, 2, 4, 8, 16, 32, 64)
PROMPTS = (4096, 32768, 131072)


def curves():
    for model in (LLAMA_7B, LLAMA_70B):
        schedule = automatic(model)
        for tokens in PROMPTS:
            points = [(d, seconds_on_devices(model, tokens, {}, d), seconds_on_devices(model, tokens, schedule, d)) for d in DEVICES]
            yield model, tokens, points


def stops_paying(model, devices, speedup):
    """The shortest prompt that pruning makes so much faster; None where the model cannot run."""
    schedule = automatic(model)
    for tokens in (2**power * part // 4 for power in range(5, 16) for part in (4, 5, 6, 7)):
        dense = seconds_on_devices(model, tokens, {}, devices)
        if dense is None:
            return None
        if dense / seconds_on_devices(model, tokens, schedule, devices) >= speedup:
            return tokens
    return None


def plot(model, tokens, points, x0, y0, width=300, height=230):
    """TTFT over devices, both logarithmic."""
    known = [p for p in points if p[1]]
    low = math.floor(math.log10(min(p[2] for p in known)))
    high = math.ceil(math.log10(max(p[1] for p in known)))

    def place(devices, seconds):
        return (x0 + 8 + math.log2(devices) / 6 * (width - 60),
                y0 + 20 + (height - 46) * (high - math.log10(seconds)) / (high - low))

    out = [f'<text x="{x0}" y="{y0 + 8}">{model.name}, {tokens // 1024}k tokens</text>']
    for power in range(low, high + 1):
        y = place(1, 10.0**power)[1]
        label = f"{10**power} s" if power >= 0 else f"{round(1000 * 10.0**power)} ms"
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + width - 40}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{x0 - 4}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{label}</text>')
    for devices in DEVICES:
        x = place(devices, 10.0**low)[0]
        out.append(f'<text x="{x:.1f}" y="{y0 + height + 2}" text-anchor="middle" fill="#555">{devices}</text>')
    for column, color in ((1, "#777"), (2, "#1f5fbf")):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(p[0], p[column]) for p in known))
        out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
    for devices, dense, lazy in known:
        x, y = place(devices, lazy)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f5fbf"/>'
                   f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle" font-size="10" fill="#1f5fbf">{dense / lazy:.2f}x</text>')
    return out


def svg():
    """Two rows of three plots."""
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="980" height="570" font-family="sans-serif" font-size="12">',
           '<rect width="980" height="570" fill="white"/>',
           '<text x="56" y="20" font-size="14">TTFT by a model, not measured: dense (grey), pruned with auto:2.34x (blue), and the speedup; below, the number of devices</text>']
    for number, (model, tokens, points) in enumerate(curves()):
        out += plot(model, tokens, points, 56 + number % 3 * 312, 46 + number // 3 * 260)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def pipeline_rows():
    for model in (LLAMA_7B, LLAMA_70B):
        for tokens in PROMPTS:
            schedule = automatic(model)
            cut = model.layers // 2
            going_on = list(layers_of(model, tokens, schedule))[cut - 1][1]
            before = sum(rows for rows, _, numbers in layers_of(model, tokens, schedule) if numbers)
            yield model, tokens, tokens * model.hidden * 2, going_on * model.hidden * 2, 8 * before


def size(count):
    return f"{count / 2**20:.0f} MiB" if count >= 10 * 2**20 else f"{count / 2**20:.1f} MiB"


def markdown(measured):
    runs = [line for line in measured if "prompt" in line]
    collectives = [line for line in measured if "whole_numbers_us" in line]
    machine = next(line for line in measured if "alone_ms" in line)
    out = ["# Figures", "",
           "`python3 bench/scale/model.py bench/scale/measured.jsonl --svg bench/scale/scale.svg` prints these tables and draws.",
           f"Measured: {machine['machine']}; commit {machine['commit']}; {machine['date']}.",
           "", "## Collectives, microseconds, the median of 200", "",
           "| ranks | tokens | whole numbers added | floats gathered | one rank adds and tells | hidden rows of 64 added |",
           "|---|---|---|---|---|---|"]
    out += [f"| {c['ranks']} | {c['tokens']} | {c['whole_numbers_us']} | {c['gather_us']} | {c['reduce_broadcast_us']} | "
            f"{c['rows_of_64_us']} |" for c in collectives]
    best, bandwidth, predict = fit(runs, collectives)
    rate, fed, network = best
    out += ["", "## TTFT here, and the model that is fitted to it", "",
            f"SmolLM2, bf16, one thread for each rank, two processors, of which others used {machine['others_use_percent']} % in the three seconds before. "
            f"A dense prompt of 1024 tokens takes one process {machine['alone_ms']:.0f} ms; two at once, which know nothing of "
            f"each other, {machine['two_at_once_ms']:.0f} ms. So two ranks have a processor each, four share them, and memory is "
            f"between them, no network. With two ranks one has two of the three key heads. Fitted: {rate / 1e9:.0f} GFLOP/s of a rank alone, "
            f"{fed:.2f} such ranks that the two processors feed at once, and {network:g} of the bandwidth "
            "that the all-reduce of 32768 rows reached alone ("
            + ", ".join(f"{b / 1e9:.1f} GB/s with {r} ranks" for r, b in sorted(bandwidth.items())) + ").", "",
            "| ranks | prompt | dense ms, model | lazy ms, model | speedup, model |", "|---|---|---|---|---|"]
    for run in runs:
        dense, lazy = predict(run, False, *best), predict(run, True, *best)
        out.append(f"| {run['ranks']} | {run['prompt']} | {run['dense_ms']:.0f}, {dense:.0f} | {run['lazy_ms']:.0f}, {lazy:.0f} | "
                   f"{run['dense_ms'] / run['lazy_ms']:.2f}x, {dense / lazy:.2f}x |")
    out += ["", "## What is assumed of devices", "", "| | |", "|---|---|"]
    out += [f"| {name} | {text} |" for name, (text, _) in ASSUMED.items()]
    out += ["", "## What the model says", "", "TTFT dense, pruned with `auto:2.34x`, and the speedup; -: does not fit or cannot be split.", "",
            "| | " + " | ".join(f"{d} device{'s' * (d > 1)}" for d in DEVICES) + " |", "|---|" + "---|" * len(DEVICES)]
    for model, tokens, points in curves():
        cells = [f"{1e3 * dense:.0f} ms, {1e3 * lazy:.0f} ms, {dense / lazy:.2f}x" if dense else "-" for _, dense, lazy in points]
        out.append(f"| {model.name}, {tokens // 1024}k | " + " | ".join(cells) + " |")
    out += ["", "## Where pruning stops paying", "", "The shortest prompt, in tokens, that pruning makes 1.1 times or twice as "
            "fast. Below it, launches, collectives and reading the weights take the time, not the rows.", "",
            "| | " + " | ".join(f"{d} device{'s' * (d > 1)}" for d in DEVICES) + " |", "|---|" + "---|" * len(DEVICES)]
    for model in (LLAMA_7B, LLAMA_70B):
        for speedup in (1.1, 2):
            cells = [str(stops_paying(model, d, speedup) or "-") for d in DEVICES]
            out.append(f"| {model.name}, {speedup}x | " + " | ".join(cells) + " |")
    out += ["", "## Bytes between two stages of a pipeline", "", "| | rows, dense | rows, pruned | scores |", "|---|---|---|---|"]
    out += [f"| {model.name}, {tokens // 1024}k | {size(dense)} | {size(lazy)} | {size(scores)} |"
            for model, tokens, dense, lazy, scores in pipeline_rows()]
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    arguments = parser.parse_args()
    measured = [json.loads(line) for line in arguments.measured.read_text(encoding="utf-8").splitlines() if line.strip()]
    print(markdown(measured), end="")
    if arguments.svg:
        arguments.svg.write_text(svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
