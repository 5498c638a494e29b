"""The presets `auto:SPEEDUPx` of lazyllm/pruner/recommended.hpp; a test compares them with those of the library."""

import math
import typing


class Widths(typing.NamedTuple):
    """Of a model's layers, by default those of a model of a billion parameters."""

    hidden_size: int = 2048
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 64
    intermediate_size: int = 8192


def widths_of(config):
    """Those in a model's config.json."""
    heads = config["num_attention_heads"]
    return Widths(config["hidden_size"], heads, config.get("num_key_value_heads") or heads,
                  config.get("head_dim") or config["hidden_size"] // heads, config["intermediate_size"])


def recommended(layers, speedup, widths=None):
    """The cuts: {layers run: keep ratio}."""
    if layers == 1:
        return {}
    widths = widths or Widths()
    width = widths.heads * widths.head_dim
    key_value, query_output = 2 * widths.kv_heads * widths.head_dim, 2 * width
    attention, feed_forward = 2048 * width / widths.hidden_size, 3 * widths.intermediate_size

    def points_of(x):
        points = {}
        for i, weight in enumerate((1, 1, 0.5, 0.5)):
            layer = min(max(math.floor((1 / 6 + i / 7) * layers + 0.5), 1), layers - 1)
            if not points or layer > max(points):
                points[layer] = math.floor(x**weight * 1000 + 0.5) / 1000
        return points

    def work_of(points):
        active, work = 1.0, 0.0
        for layer in range(1, layers):
            work += (key_value + query_output) * active + attention * active * active
            active *= points.get(layer, 1)
            work += feed_forward * active
        return work + key_value * active

    dense = work_of({})
    slow, fast = 1.0, 0.2 if layers < 5 else 0.05
    for _ in range(30):
        x = (slow + fast) / 2
        if dense / work_of(points_of(x)) >= speedup:
            fast = x
        else:
            slow = x
    return {layer: keep for layer, keep in points_of(fast).items() if keep < 1}


def options(cuts, speedup):
    """The members beside the schedule `cuts`, as a preset file has them."""
    revived = ({"decode_revived": 3, "first_revived": 32, "continuations": 2} if speedup >= 2 else
               {"decode_revived": 4, "continuations": 4})
    last = {"revive_from": max(cuts)} if cuts else {}
    return {"score": "mean:32+heads:max+pool:15", "protect_first": 4, "protect_last": 32, "max_revived": 8,
            **revived, **last, "min_tokens": 384}
