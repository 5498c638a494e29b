"""Schedules and what they cost: floating-point operations until the first token, as lazyllm-evaluate counts them.

A schedule is a list of (layer, keep): after `layer` layers have run, the share `keep` of the active tokens stays.
"""

import json
import math
import pathlib
import sys
from dataclasses import dataclass, field

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import recommended  # noqa: E402


@dataclass(frozen=True)
class Preset:
    """How a run prunes, as a preset file has it; `options` are the members beside the schedule."""

    schedule: tuple
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "options", {"score": "last", "protect_first": 0, "protect_last": 1, **self.options})


def parse(text):
    if text == "dense":
        return ()
    return tuple((int(layer), float(keep)) for layer, keep in (point.split(":") for point in text.split(",")))


def text_of(schedule):
    return ",".join(f"{layer}:{keep:g}" for layer, keep in schedule) or "dense"


def paper(layers):
    """The paper's layers for a model of `layers` layers, as `lazyllm::PaperPolicy`."""
    return tuple((layer, 0.7) for layer in sorted({3 * layers // 10, 6 * layers // 10, 9 * layers // 10} - {0}))


def read_presets(path, layers):
    """{name: Preset} of a preset file, and the name of its default, which may be None."""
    file = json.loads(path.read_text())
    if file.get("layers") != layers:
        raise ValueError(f"{path} was made for a model of {file.get('layers')} layers, this one has {layers}")
    return {name: Preset(parse(preset["schedule"]),
                         {member: value for member, value in preset.items() if member not in ("schedule", "measured")})
            for name, preset in file["presets"].items()}, file.get("default")


def automatic(config):
    """{name: Preset} of those that the programs have for a model that nobody has calibrated; a name is a --schedule."""
    layers, widths = config["num_hidden_layers"], recommended.widths_of(config)
    presets = {}
    for speedup in (1.5, 2.34, 3):
        cuts = recommended.recommended(layers, speedup, widths)
        presets[f"auto:{speedup:g}x"] = Preset(tuple(cuts.items()), recommended.options(cuts, speedup))
    return presets


class Cost:
    """Operations of a model's prefill; `config` is its config.json."""

    def __init__(self, config):
        self.layers = config["num_hidden_layers"]
        width, heads = config["hidden_size"], config["num_attention_heads"]
        head_dim = config.get("head_dim") or width // heads
        self.query_width = heads * head_dim
        key_value_width = (config.get("num_key_value_heads") or heads) * head_dim
        self.key_value = 2 * width * 2 * key_value_width
        self.query_output = 2 * width * 2 * self.query_width
        self.mlp = 2 * width * 3 * config["intermediate_size"]

    def prefill(self, tokens, schedule=()):
        """Two for each multiply-add of linear layers and attention. Rows that go after a layer's attention do not run
        its MLP; of the last layer only one row goes on from K/V."""
        keep_after = dict(schedule)

        def kept(layers_run, rows):
            return max(1, math.ceil(keep_after.get(layers_run, 1) * rows - 1e-9))

        rows, total = kept(0, tokens), 0.0
        for layer in range(self.layers - 1):
            total += rows * (self.key_value + self.query_output) + 2 * rows * (rows + 1) * self.query_width
            rows = kept(layer + 1, rows)
            total += rows * self.mlp
        return total + rows * self.key_value + self.query_output + self.mlp + 4 * rows * self.query_width

    def speedup(self, tokens, schedule):
        return self.prefill(tokens) / self.prefill(tokens, schedule)

    def solve(self, tokens, target, schedule_of):
        """The schedule `schedule_of(h)` with a speedup of `target`, which must grow with the harshness `h` in [0, 1];
        None if it does not get there. Shares have three decimals."""
        def rounded(h):
            return tuple((layer, max(0.005, round(keep, 3))) for layer, keep in schedule_of(h))

        low, high = 0.0, 1.0
        if self.speedup(tokens, rounded(high)) < target:
            return None
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (low, middle) if self.speedup(tokens, rounded(middle)) >= target else (middle, high)
        return rounded(high)


def same_keep(layers):
    """For `Cost.solve`: the same share after each of `layers`."""
    return lambda h: tuple((layer, 1 - h) for layer in layers)


def powers(schedule):
    """For `Cost.solve`: the shares of `schedule` raised to the same power, so that all become harsher or milder."""
    return lambda h: tuple((layer, keep ** (h / (1 - h)) if h < 1 else 0) for layer, keep in schedule)
