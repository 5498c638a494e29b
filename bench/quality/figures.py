"""The figures: which lines and panels, from the results."""

import math

import plot
import usage
from results import Missing, relative

LINES = {"best": "LazyLLM, our score", "paper": "LazyLLM, the paper's score", "static": "static pruning",
         "random": "random drop", "compress": "prompt compression"}


def sweep(plan, results):
    """The paper's Figure 5."""
    runs = plan.sweep()
    dense = results.by_category(runs["dense"][0])
    panels = {category: [] for category in relative(dense, dense)}
    for style, (line, name) in enumerate(LINES.items()):
        measured = [results.by_category(run) for run in runs[line]]
        points = [(figures, relative(figures, dense)) for figures in measured]
        for category, lines in panels.items():
            of_category = sorted((figures[category].ideal, scores[category]) for figures, scores in points)
            if of_category:
                lines.append(plot.Line(name, of_category, style))
    collection = runs["dense"][0].collection
    speedups = [x for lines in panels.values() for line in lines for x, _ in line.points]
    scores = [y for lines in panels.values() for line in lines for _, y in line.points]
    return plot.Chart(f"Score against speed, {collection.name} prompts", "ideal TTFT speedup (x)",
                      "score (% of dense)", [plot.Panel(category, lines) for category, lines in panels.items()],
                      x_range=(0, math.ceil(max(speedups) * 2) / 2), y_range=(0, max(105, max(scores) + 5)))


def location(plan, results):
    """The paper's Figure 6."""
    runs = plan.location()
    dense = results.by_category(runs["dense"][0])
    scorers = {"best": "our score", "paper": "the paper's score"}
    panels = []
    for scorer, name in scorers.items():
        lines = []
        for style, (key, by_layer) in enumerate((key, r) for key, r in runs.items() if key[0] == scorer):
            points = [(layer, relative(results.by_category(run), dense)["average"]) for layer, run in by_layer.items()]
            lines.append(plot.Line(f"keep {100 * key[1]:g} %", points, style))
        panels.append(plot.Panel(name, lines))
    highest = max(y for panel in panels for line in panel.lines for _, y in line.points)
    return plot.Chart(f"One pruning layer of {plan.layers}, {runs['dense'][0].collection.name} prompts",
                      "pruned after layer", "score (% of dense)", panels, panel_size=(400, 260),
                      x_range=(0, plan.layers), y_range=(0, max(105, highest + 5)))


def use(plan, results):
    """The paper's Figure 7."""
    panels = []
    for scorer, run in plan.usage().items():
        items = [item for data_set in run.collection.data_sets for item in results.load(run, data_set)]
        if not items:
            raise Missing(f"any prompt of {run.title}, which are too long for the model")
        ranges = usage.groups(plan.layers, run.method.schedule)
        lines = []
        for style, (_, curve) in enumerate(zip(ranges, usage.mean_curves(items, ranges))):
            points = [(step, 100 * share) for step, share in enumerate(curve)]
            lines.append(plot.Line(f"stage {style + 1}", points, style, len(curve) <= 12))
        stages = ", ".join(f"{layers.start + 1}" if len(layers) == 1 else f"{layers.start + 1}-{layers.stop}"
                           for layers in ranges)
        name = "the paper's schedule" if scorer == "paper" else f"preset {plan.best}"
        panels.append(plot.Panel(f"{name}: stages of layers {stages}", lines))
    return plot.Chart(f"Prompt tokens used at least once, {plan.collections[-1].name} prompts",
                      "decode step (0 is the prefill)", "% of the prompt", panels, panel_size=(430, 280),
                      y_range=(0, 105))


FIGURES = {"sweep": sweep, "location": location, "usage": use}
