"""The tables, in Markdown."""

import pathlib

import figures
import paper
import results as reading
from plan import BASELINES, NoSchedules, plural
from results import mean, relative

ROWS = {"dense": "dense", "random": "random drop", "static": "static pruning", "compress": "prompt compression",
        "lazy": "LazyLLM as in the paper"}


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def command(run, plan):
    o = plan.options
    files = "".join(f"--{option} {pathlib.PurePath(file).name} "
                    for option, file in (("prompts", o.prompts), ("lengths", o.lengths)) if file)
    return (f"lazyllm-evaluate --model {plan.shown_model()} --data {run.collection.name} {files}"
            f"{' '.join(plan.common())} {run.method.command()}")


def code(*lines):
    return "```\n" + "\n".join(lines) + "\n```"


def counted(run, results):
    """How many items of each category, and of each of its data sets."""
    if results.plan.bounded:
        by_set = results.by_data_set(run)
        counts = [f.items for f in by_set.values()]
        of_each = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(min(counts))
        return f"{plural(sum(counts), 'item')}, {of_each} of each of {plural(len(by_set), 'data set')}"
    by_category = {}
    for data_set in run.collection.data_sets:
        by_category.setdefault(data_set.category, []).append(run.limit(data_set))
    return f"At most {plural(max(sum(limits) for limits in by_category.values()), 'item')} of each category"


# Dense scores


def dense(plan, results):
    runs = plan.dense()
    by_category = {name: results.by_category(run) for name, run in runs.items()}
    by_set = {name: {data_set.path.stem: f for data_set, f in results.by_data_set(run).items()}
              for name, run in runs.items()}
    some = next(iter(runs.values()))
    rows = []
    for category in next(iter(by_category.values())):
        rows.append([f"**{category}**"])
        for name in runs:
            f = by_category[name][category]
            rows[-1] += [f"**{f.score:.1f}**", str(f.items), f"{f.prompt_tokens:.0f}"]
        sets = [data_set.path.stem for data_set in some.collection.data_sets if data_set.category == category]
        for data_set in sets if len(sets) > 1 else ():
            rows.append([data_set])
            for name in runs:
                f = by_set[name].get(data_set)
                rows[-1] += [f"{f.score:.1f}", str(f.items), f"{f.prompt_tokens:.0f}"] if f else ["", "", ""]
    header = ["category"]
    for name in runs:
        header += [f"{name}: score", "items", "mean prompt tokens"]
    return f"### Dense scores\n\n{code(command(some, plan))}\n\n{table(header, rows)}"


# The paper's tables


def between(values):
    """The interval of draws, if there are any."""
    if not values:
        return ""
    low, high = reading.interval(values)
    return f" [{low:.0f}, {high:.0f}]"


def name_of(row):
    return ROWS.get(row, f"LazyLLM, preset {row}")


def speedup(value):
    return "–" if value is None else f"{value:.2f}x"


def of_paper(entries, categories):
    """The paper's pairs for `categories`, whose last one is "average": the mean over the others."""
    chosen = [entries[paper.CATEGORIES.index(category)] for category in categories[:-1]]
    return [*chosen, tuple(mean(values) for values in zip(*chosen))]


def table_1(plan, results):
    rows, runs, timed = [], plan.table(), plan.speed()
    dense_figures = results.by_category(runs["dense"])
    dense_drawn = reading.drawn(results.by_data_set(runs["dense"])).get("average", ())
    categories = list(dense_figures)
    commands, was_timed = [], False
    for row, run in runs.items():
        measured = results.by_category(run, timed.get(row))
        was_timed = was_timed or measured["average"].ttft is not None
        drawn = reading.drawn(results.by_data_set(run))
        share = f"{100 * measured['average'].score / dense_figures['average'].score:.1f} %"
        shares = [100 * own / of for own, of in zip(drawn.get("average", ()), dense_drawn) if of > 0]
        share += between(shares) if row != "dense" else ""
        shown = [f"{f.score:.1f}{between(drawn.get(category))}"
                 + ("" if row == "dense" else f" / {speedup(f.ttft)} / {speedup(f.ideal)}")
                 for category, f in measured.items()]
        rows.append([f"**{name_of(row)}**", *shown, share])
        commands.append(command(run, plan))
        for model in paper.MODELS if row in paper.TABLE_1 else ():
            theirs, of_dense = (of_paper(paper.TABLE_1[name][model], categories) for name in (row, "dense"))
            rows.append([f"paper, {model}", *(f"{points:.2f}" + (f" / {speed:.2f}x" if row != "dense" else "")
                                              for points, speed in theirs),
                         f"{100 * theirs[-1][0] / of_dense[-1][0]:.1f} %"])
    o, run = plan.options, runs["dense"]
    times = (f"times of at most {o.timed_items} of each data set on {plural(o.threads, 'thread')}" if was_timed else
             "speedups (–) have not been measured")
    note = (f"Score [95 % interval by bootstrap over the items] / measured TTFT speedup / ideal TTFT speedup by operation "
            f"count; of the paper score / measured TTFT speedup. {counted(run, results)}, prompts of "
            f"{run.collection.name}; {times}.{limits(o)} Random drop is the mean of {plural(o.seeds, 'seed')}. The keep "
            f"shares of random drop and static pruning are solved for an ideal speedup of {plan.baseline_speedup:.2f}x, to "
            f"be compared with preset {plan.best}; compression keeps the share of random drop, and its own time counts. All "
            "three protect the first and last tokens that the preset protects. Last column: the average in percent of dense.")
    return (f"### The paper's Table 1\n\n{code(*commands)}\n\n{note}\n\n"
            f"{table(['method', *categories, 'of dense'], rows)}")


def limits(options):
    """What prompts and answers are cut to."""
    text = f" Prompt and answer have at most {options.context} tokens; longer prompts lose their middle." * (
        options.context > 0)
    return text + f" Answers are capped at {options.longest_answer} tokens." * (options.longest_answer > 0)


def table_2(plan, results):
    runs, timed, rows = plan.table(), plan.speed(), []
    ours = {row: results.by_category(run, timed.get(row)) for row, run in runs.items() if row != "dense"}
    categories = list(ours["lazy"])
    for row, measured in ours.items():
        rows.append([f"**{name_of(row)}**", *(f"{f.computed:.1f} % / {speedup(f.generation)} / {f.reserved:.0f} % / {f.filled:.0f} %"
                                             for f in measured.values())])
        for model in paper.MODELS if row == "lazy" else ():
            rows.append([f"paper, {model}", *(f"{computed:.1f} % / {speed:.2f}x"
                                              for computed, speed in of_paper(paper.TABLE_2[model], categories))])
    note = ("(Token, layer) pairs of the prompt computed until the end of the answer / speedup of prompt and answer / peak of K/V "
            "and Aux Cache in percent of the dense run's K/V / the same with only the K/V that were computed; of the paper the first two.")
    return f"### The paper's Table 2\n\nFrom the runs of Table 1. {note}\n\n{table(['method', *categories], rows)}"


# The bars


def at_speedup(points, speedup):
    """The score at `speedup` on the lines between neighbouring points (speedup, score); that of the nearest point
    outside of them, which then is said by the second value."""
    points = sorted(points)
    if speedup <= points[0][0] or speedup >= points[-1][0]:
        nearest = points[0] if speedup <= points[0][0] else points[-1]
        return nearest[1], abs(nearest[0] / speedup - 1) < 0.02
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x0 <= speedup <= x1:
            share = (speedup - x0) / (x1 - x0) if x1 > x0 else 0
            return y0 + share * (y1 - y0), True


def losses(plan, results):
    """{row: (loss of the average, category of the worst, its loss, ideal speedup)} in percent of dense, of Table 1's
    LazyLLM."""
    runs = plan.table()
    dense_figures = results.by_category(runs["dense"])
    found = {}
    for row in ("lazy", *plan.presets):
        measured = results.by_category(runs[row])
        shares = relative(measured, dense_figures)
        del shares["average"]
        worst = min(shares, key=shares.get)
        found[row] = (100 - 100 * measured["average"].score / dense_figures["average"].score, worst,
                      100 - shares[worst], measured["average"].ideal)
    return found


def compared_speedup(baseline, figures):
    """The speedup at which a baseline is compared: compression's without its own time."""
    return figures.filtered if baseline == "compress" else figures.ideal


def margins_in_table(plan, results):
    """As `margins`, of Table 1, whose random drop and static pruning are solved for the preset's ideal speedup; on these
    items it is a little different, and the last value says so."""
    runs = plan.table()
    measured = {row: results.by_category(run) for row, run in runs.items()}
    shares = {row: relative(figures, measured["dense"]) for row, figures in measured.items()}
    found = {}
    for baseline in (row for row in BASELINES if row in runs):
        by_category = {category: share - shares[baseline][category]
                       for category, share in shares[plan.best].items() if category != "average"}
        worst = min(by_category, key=by_category.get)
        note = f", {ROWS[baseline]} at {compared_speedup(baseline, measured[baseline]['average']):.2f}x"
        found[baseline] = (by_category[worst], worst, sum(margin > 0 for margin in by_category.values()),
                           len(by_category), note)
    return measured[plan.best]["average"].ideal, found


def margins(plan, results):
    """{baseline: (lowest margin, its category, how many categories LazyLLM wins, of how many, note)} in points of
    percent of dense, where the preset stands in the sweep."""
    runs = plan.sweep()
    dense_figures = results.by_category(runs["dense"][0])
    collection = runs["dense"][0].collection
    best = plan.cost.speedup(collection.tokens, plan.presets[plan.best].schedule)
    preset = plan.at("best", best, collection.tokens, 1)
    own = next(results.by_category(run) for run in runs["best"] if run.method.arguments == preset.arguments)
    ours = relative(own, dense_figures)
    found = {}
    for baseline in BASELINES:
        measured = [results.by_category(run) for run in runs[baseline]]
        scores = [relative(f, dense_figures) for f in measured]
        by_category, reached = {}, True
        for category in (c for c in ours if c != "average"):
            points = [(compared_speedup(baseline, f[category]), s[category]) for f, s in zip(measured, scores)]
            score, inside = at_speedup(points, own[category].ideal)
            by_category[category] = ours[category] - score
            reached = reached and inside
        worst = min(by_category, key=by_category.get)
        wins = sum(margin > 0 for margin in by_category.values())
        note = "" if reached else "; its nearest point is compared, as it has none on both sides"
        found[baseline] = (by_category[worst], worst, wins, len(by_category), note)
    return own["average"].ideal, found


def met(yes, missed):
    return "yes" if yes else f"no: {missed}"


def dense_bars(plan, results):
    rows = []
    for name, run in plan.dense().items():
        scores = {c: f.score for c, f in results.by_category(run).items() if c != "average"}
        lowest = min(scores, key=scores.get)
        high = sum(score >= 90 for score in scores.values())
        missed = [f"{max(0, 4 - high)} fewer at 90"] * (high < 4)
        missed += [f"{70 - scores[lowest]:.1f} points in {lowest}"] * (scores[lowest] < 70)
        rows.append([f"dense score at {name}: >= 90 on four categories, >= 70 on the rest",
                     f"{high} of {len(scores)} at 90 or more; lowest {scores[lowest]:.1f} ({lowest})",
                     met(not missed, ", ".join(missed))])
    return rows


def margin_bars(plan, results):
    ideal, found = (margins_in_table if plan.bounded else margins)(plan, results)
    rows = []
    for baseline, (lowest, category, wins, of, note) in found.items():
        own_time = ", its own time not counted" if baseline == "compress" else ""
        rows.append([f"LazyLLM (preset {plan.best}) above {ROWS[baseline]} in every category at equal ideal speedup"
                     f"{own_time}",
                     f"{wins} of {of} categories at {ideal:.2f}x{note}; smallest margin {lowest:+.1f} points of percent of "
                     f"dense ({category})",
                     met(wins == of, f"equal in {category}" if lowest == 0 else f"{-lowest:.1f} points in {category}")])
    return rows


def loss_bars(plan, results):
    found = losses(plan, results)

    def reached(row):
        average, worst, loss, ideal = found[row]
        return f"average {average:.1f} %, worst {loss:.1f} % ({worst}), ideal {ideal:.2f}x"

    def shortfall(row, bar_average, bar_worst, bar_speedup):
        average, _, loss, ideal = found[row]
        return ([f"{average - bar_average:.1f} % more on average"] * (average > bar_average)
                + [f"{loss - bar_worst:.1f} % more in the worst"] * (loss > bar_worst)
                + [f"{bar_speedup - ideal:.2f}x slower"] * (ideal < bar_speedup))

    rows = []
    first = ("loss <= 1 % of the average and <= 3 % in every category at >= 2.34x", 1, 3, 2.34)
    if plan.bounded:
        first = ("loss <= 1 % of the average at >= 2.34x", 1, 100, 2.34)
    for text, *bar in (first, ("loss <= 10 % of the average at >= 3.0x", 10, 100, 3.0)):
        presets = list(plan.presets)
        # The fewest misses; of these, among presets that are fast enough, the smallest loss.
        row = min(presets, key=lambda name: (len(shortfall(name, *bar)), found[name][3] < bar[2], found[name][0]))
        missed = shortfall(row, *bar)
        rows.append([text, f"preset {row}: {reached(row)}", met(not missed, ", ".join(missed))])
    rows += [[f"preset {name}", reached(name), "no bar"] for name in plan.presets]
    rows.append(["LazyLLM as in the paper, whatever it gives", reached("lazy"), "no bar"])
    return rows


def bars(plan, results):
    rows = []
    for part in (margin_bars, loss_bars) if plan.bounded else (dense_bars, margin_bars, loss_bars):
        try:
            rows += part(plan, results)
        except (reading.Missing, NoSchedules):
            pass
    if not rows:
        raise reading.Missing("any run with a bar")
    margins_from = "as are margins" if plan.bounded else "margins from the sweep, between whose points scores are interpolated"
    note = (f"Losses in percent of the dense score of the same items, from the runs of Table 1; {margins_from}. "
            f"Categories in which dense scores below {reading.LEAST_DENSE} count in averages alone.")
    return f"### What was to be reached\n\n{note}\n\n{table(['bar', 'reached', 'met'], rows)}"


# Figures with what they say


def sweep(plan, results):
    runs = plan.sweep()
    collection = runs["dense"][0].collection
    commands = [command(runs[line][0], plan) for line in figures.LINES if runs[line]]
    presets = "; that of our score has the presets" if plan.bounded else ""
    return ("### Speed against quality, as the paper's Figure 5\n\n"
            f"{code(*commands)}\n\nThe first point of each line; the others differ in their keep shares{presets}. "
            f"{counted(runs['dense'][0], results)}, prompts of {collection.name}; random drop is the mean of "
            f"{plural(plan.options.sweep_seeds, 'seed')}. The time of compression's own language model counts."
            f"\n\n![Score against TTFT speedup]({plan.section}-sweep.svg)")


def location(plan, results):
    runs = plan.location()
    some = next(iter(next(by_layer for key, by_layer in runs.items() if key != "dense").values()))
    return ("### Where to prune, as the paper's Figure 6\n\n"
            f"{code(command(some, plan))}\n\nOne pruning layer and what it keeps; {counted(some, results).lower()}, mean "
            f"over the categories.\n\n![Score against the pruning layer]({plan.section}-location.svg)")


def usage(plan, results):
    runs = plan.usage()
    o = plan.options
    own = [*["--chat"] * o.chat, *["--context", str(o.context)] * (o.context > 0), "--dtype", o.dtype]
    commands = [f"lazyllm-generate --model {plan.shown_model()} {' '.join(own)} --trace FILE "
                f"--prompt-file FILE {' '.join(run.method.arguments[2:])}" for run in runs.values()]
    return ("### Tokens used, as the paper's Figure 7\n\n"
            f"{code(*commands)}\n\nShare of the prompt's tokens that a layer has used at least once, mean over "
            f"at most {plural(o.usage_items, 'prompt')} of each data set; layers between two pruning layers form a stage. An "
            f"answer that has ended uses nothing more.\n\n![Share of the prompt used]({plan.section}-usage.svg)")


# Part -> its tables.
TABLES = {"dense": (dense,), "table": (table_1, table_2), "speed": (), "sweep": (sweep,), "location": (location,), "usage": (usage,)}
