"""Reads results: means over items, data sets and categories, as lazyllm-evaluate forms them."""

import functools
import json
import random
from dataclasses import dataclass

import paper

# Categories in which dense scores less have no percentages of dense.
LEAST_DENSE = 5
DRAWS = 1000
FIELDS = ("score", "ideal", "filtered", "computed", "reserved", "filled", "prompt_tokens", "answer_tokens")


class Failure(Exception):
    """A program has failed."""


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
    scores: tuple = ()  # of the items, of a data set alone
    ttft: float = None  # measured TTFT speedup
    generation: float = None


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def mean_figures(several, all_timed=False):
    """Speedups are of those that were timed, or with `all_timed` of none unless all were."""
    several = list(several)
    result = Figures(sum(f.items for f in several), *(mean(getattr(f, name) for f in several) for name in FIELDS))
    timed = [f for f in several if f.ttft is not None]
    if timed and (not all_timed or len(timed) == len(several)):
        result.ttft = mean(f.ttft for f in timed)
        result.generation = mean(f.generation for f in timed)
    return result


def drawn(by_set):
    """Bootstrap: {category, and "average": the scores of DRAWS sets of items}. Items are drawn within a category, where
    they count as in the mean over its data sets. The same items give the same draws, whatever the method. A category of
    one item has nothing to draw from; it is left out, and then so is the average."""
    found, whole = {}, True
    for category in paper.CATEGORIES:
        sets = [f for data_set, f in by_set.items() if data_set.category == category]
        count = sum(f.items for f in sets)
        weighted = [score * count / (f.items * len(sets)) for f in sets for score in f.scores]
        whole = whole and count != 1
        if count > 1:
            generator = random.Random(category)
            found[category] = [mean(generator.choices(weighted, k=count)) for _ in range(DRAWS)]
    return found | {"average": [mean(scores) for scores in zip(*found.values())]} if whole else found


def interval(values):
    """The middle 95 % of the values."""
    values = sorted(values)
    return values[round(0.025 * (len(values) - 1))], values[round(0.975 * (len(values) - 1))]


def finished(path, limit):
    """The result at `path` if it has the items that are wanted, `limit` of them or all there are; else None."""
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    return result if result["data"]["limit"] >= limit else None


def figures_of(items, cost):
    """Of the items of one data set; None if there are none."""
    if not items:
        return None

    def of_runs(field):
        return mean(mean(run[field] for run in item["runs"]) for item in items)

    dense = mean(item["dense_operations"] for item in items)
    kept = mean(mean(cost.prefill(round(item["prompt_tokens"] * run["computed_percent"] / 100)) for run in item["runs"])
                for item in items)
    return Figures(len(items), 100 * of_runs("score"), dense / of_runs("operations"), dense / kept,
                   of_runs("computed_percent"), of_runs("reserved_percent"), of_runs("filled_percent"),
                   mean(item["prompt_tokens"] for item in items), of_runs("tokens"),
                   tuple(100 * mean(run["score"] for run in item["runs"]) for item in items))


class Results:
    """The results of a part. Where the time was bounded, those of the items that all its runs have."""

    def __init__(self, plan, part):
        self.plan, self.part = plan, part

    @functools.cached_property
    def common(self):
        """{data set: how many items all runs have}"""
        found = {}
        for run in self.plan.runs(self.part):
            for data_set in run.collection.data_sets:
                result = finished(self.plan.place(run, data_set), 0)
                count = result["data"]["limit"] if result else 0
                found[data_set] = min(found.get(data_set, count), count)
        return found

    def limit(self, run, data_set):
        limit = run.limit(data_set)
        return min(limit, self.common[data_set]) if self.plan.bounded else limit

    def load(self, run, data_set):
        """The items that count."""
        limit = self.limit(run, data_set)
        if not limit:
            return []
        result = finished(self.plan.place(run, data_set), limit)
        if result is None:
            raise Missing(f"{run.title} on {data_set.path.stem}")
        return result["items"][:limit]

    def by_data_set(self, run):
        """{data set: Figures}"""
        found = {}
        for data_set in run.collection.data_sets:
            figures = figures_of(self.load(run, data_set), self.plan.cost)
            if figures is not None:
                found[data_set] = figures
        if not found:
            raise Missing(f"any item of {run.title}")
        return found

    def by_category(self, run, timed=None):
        """{category: Figures} in the paper's order, and their mean as "average"; `timed`, a run of the same method, adds
        the measured speedups where they are."""
        by_set = self.by_data_set(run)
        for data_set, figures in by_set.items():
            result = finished(self.plan.place(timed, data_set), 1) if timed and data_set in self.timed else None
            if result:
                figures.ttft, figures.generation = (result["overall"][f"{kind}_speedup"] for kind in ("ttft", "generation"))
        found = {category: mean_figures(f for data_set, f in by_set.items() if data_set.category == category)
                 for category in paper.CATEGORIES if category in (data_set.category for data_set in by_set)}
        found["average"] = mean_figures(found.values(), all_timed=True)
        return found

    @functools.cached_property
    def timed(self):
        """The data sets of which all methods have times: of those alone speedups can be compared."""
        def has(run, data_set):
            result = finished(self.plan.place(run, data_set), 1)
            return bool(result and result["items"])

        runs = list(self.plan.speed().values())
        return {data_set for data_set in runs[0].collection.data_sets if all(has(run, data_set) for run in runs)}


def relative(figures, dense):
    """Score in percent of dense for each category in which dense scores LEAST_DENSE, and the mean of these as
    "average"."""
    found = {category: 100 * f.score / dense[category].score for category, f in figures.items()
             if category != "average" and dense[category].score >= LEAST_DENSE}
    if not found:
        raise Missing(f"a dense score of at least {LEAST_DENSE}")
    found["average"] = mean(found.values())
    return found
