"""Reads results: means over items, data sets and categories, as lazyllm-evaluate forms them."""

import json
from dataclasses import dataclass

import paper

FIELDS = ("score", "ideal", "filtered", "computed", "reserved", "filled", "prompt_tokens", "answer_tokens")


class Missing(Exception):
    """A result that a table needs is not there."""


@dataclass
class Figures:
    """Of a data set, or the mean over those of a category, or over the categories."""

    items: int
    score: float
    ideal: float  # TTFT speedup by operation count
    filtered: float  # the same without the time of the filter, for methods that shorten the prompt
    computed: float  # percent of the prompt's (token, layer) pairs
    reserved: float  # peak of K/V for all tokens and parked rows, percent of dense K/V
    filled: float  # the same counting only K/V that were computed
    prompt_tokens: float
    answer_tokens: float
    ttft: float = None  # measured TTFT speedup
    generation: float = None


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def mean_figures(several):
    several = list(several)
    result = Figures(sum(f.items for f in several), *(mean(getattr(f, name) for f in several) for name in FIELDS))
    if all(f.ttft is not None for f in several):
        result.ttft = mean(f.ttft for f in several)
        result.generation = mean(f.generation for f in several)
    return result


def finished(path, limit):
    """The result at `path` if it has the items that are wanted, `limit` of them or all there are; else None."""
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    return result if result["data"]["limit"] >= limit else None


def figures_of(result, limit, cost):
    """Of the first `limit` items of a result on one data set; None if it has none."""
    items = result["items"][:limit]
    if not items:
        return None

    def of_runs(field):
        return mean(mean(run[field] for run in item["runs"]) for item in items)

    dense = mean(item["dense_operations"] for item in items)
    kept = mean(mean(cost.prefill(round(item["prompt_tokens"] * run["computed_percent"] / 100)) for run in item["runs"])
                for item in items)
    return Figures(len(items), 100 * of_runs("score"), dense / of_runs("operations"), dense / kept,
                   of_runs("computed_percent"), of_runs("reserved_percent"), of_runs("filled_percent"),
                   mean(item["prompt_tokens"] for item in items), of_runs("tokens"))


class Results:
    def __init__(self, plan):
        self.plan = plan

    def load(self, run, data_set):
        result = finished(self.plan.place(run, data_set), run.limit(data_set))
        if result is None:
            raise Missing(f"{run.title} on {data_set.path.stem}")
        return result

    def by_data_set(self, run, timed=None):
        """{data set: Figures}; `timed`, a run of the same method, adds the measured speedups."""
        found = {}
        for data_set in run.collection.data_sets:
            figures = figures_of(self.load(run, data_set), run.limit(data_set), self.plan.cost)
            if figures is None:
                continue
            if timed is not None:
                measured = self.load(timed, data_set)["overall"]
                figures.ttft, figures.generation = measured["ttft_speedup"], measured["generation_speedup"]
            found[data_set] = figures
        if not found:
            raise Missing(f"any item of {run.title}")
        return found

    def by_category(self, run, timed=None):
        """{category: Figures} in the paper's order, and their mean as "average"."""
        by_set = self.by_data_set(run, timed)
        found = {category: mean_figures(f for data_set, f in by_set.items() if data_set.category == category)
                 for category in paper.CATEGORIES if category in (data_set.category for data_set in by_set)}
        found["average"] = mean_figures(found.values())
        return found


def relative(figures, dense):
    """Score in percent of dense for each category that dense has points in, and the mean of these as "average"."""
    found = {category: 100 * f.score / dense[category].score for category, f in figures.items()
             if category != "average" and dense[category].score > 0}
    if not found:
        raise Missing("a dense score above 0")
    found["average"] = mean(found.values())
    return found
