"""The presets `auto:SPEEDUPx` of lazyllm/pruner/recommended.hpp; a test compares them with those of the library."""

import math


def recommended(layers, speedup):
    """The cuts: {layers run: keep ratio}."""
    if layers == 1:
        return {}

    def points_of(x):
        points = {}
        for i, weight in enumerate((1, 1, 0.5, 0.5)):
            layer = min(max(math.floor((1 / 6 + i / 7) * layers + 0.5), 1), layers - 1)
            if not points or layer > max(points):
                points[layer] = round(x**weight * 1000) / 1000
        return points

    def speedup_of(points):
        active, work = 1.0, 0.0
        for layer in range(1, layers + 1):
            work += 0.2 * active + 0.1 * active * active
            active *= points.get(layer, 1)
            work += 0.7 * active
        return layers / work

    slow, fast = 1.0, 0.05
    for _ in range(30):
        x = (slow + fast) / 2
        if speedup_of(points_of(x)) >= speedup:
            fast = x
        else:
            slow = x
    return {layer: keep for layer, keep in points_of(fast).items() if keep < 1}


def options(speedup):
    """The members beside the schedule, as a schedule file has them."""
    first = {"first_revived": 32} if speedup >= 2 else {}
    return {"score": "mean:32+heads:max+pool:15", "protect_first": 4, "protect_last": 32, "decode_revived": 2, **first}
