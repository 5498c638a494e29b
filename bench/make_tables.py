#!/usr/bin/env python3
"""Writes benchmark results as tables into a Markdown file.

make_tables.py micro RESULT.json DOCUMENT.md --command TEXT --context TEXT
make_tables.py ttft RESULT.json... DOCUMENT.md --command TEXT --context TEXT
make_tables.py overhead RESULT.json... DOCUMENT.md --command TEXT --context TEXT    (of ttft_bench)
make_tables.py attention RESULT.json... DOCUMENT.md --command TEXT --context TEXT
make_tables.py decode RESULT.json... DOCUMENT.md --command TEXT --context TEXT      (of kernels_bench, its few_rows<)
make_tables.py decode-attention RESULT.json... DOCUMENT.md --command TEXT --context TEXT  (its few_layers_attend<)
make_tables.py int8 RESULT.json... DOCUMENT.md --command TEXT --context TEXT        (of int8_loss)
make_tables.py peers RESULT.json... DOCUMENT.md --command TEXT --context TEXT       (of bench/peers/compare.py)
make_tables.py generation RESULT.json... DOCUMENT.md --command TEXT --context TEXT  (of lazyllm-generate --compare)
make_tables.py short RESULT.json... DOCUMENT.md --command TEXT --context TEXT       (the same, after 384 tokens)
make_tables.py serving RESULT.json... DOCUMENT.md --command TEXT --context TEXT     (of serving_bench)
make_tables.py busy QUIET.json BUSY.json... DOCUMENT.md --command TEXT --context TEXT  (the same, in pairs)
make_tables.py cuda-micro RESULT.json... DOCUMENT.md --command TEXT --context TEXT
make_tables.py cuda RESULT.json... DOCUMENT.md --command TEXT --context TEXT       (of ttft_bench and bench/peers)
make_tables.py cuda-summary RESULT.json... -                                       (the same, in short)
make_tables.py cuda-cudnn RESULT.json... DOCUMENT.md --command TEXT --context TEXT (the same, with cuDNN's attention)

Each kind replaces what stands between its markers `<!-- KIND begin -->` and `<!-- KIND end -->` and nothing else. With
`-` for the document it prints the tables.
"""

import argparse
import json
import pathlib
import re
import sys

REFERENCES = {"plain": "plain", "memory": "same bytes", "threshold": "nth_element"}
CUDA_REFERENCES = {"plain": "CUB alone", "memory": "same bytes"}
GROUPS = [
    ("Rows gathered and scattered", ("gather", "scatter", "merge")),
    ("Scores", ("score",)),
    ("Selection", ("select_top_k", "select_top_p")),
    ("Scores pooled, and half of the tokens kept", ("prune",)),
    ("Pooling", ("pool",)),
    ("Aux Cache", ("park", "revive")),
    ("A step whose blocks do nothing", ("prefill", "decode")),
]
TOKENS_SHOWN = ("1024", "131072")
TYPES = {"float": "f32", "Eigen::bfloat16": "bf16", "Dense": "bf16, dense", "Pooled": "bf16, pooled",
         "Pinned": "bf16, pinned"}


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value):
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def parse_micro(benchmarks):
    """{(operation, type, arguments): benchmark}, the arguments as a tuple of (name, value)."""
    results = {}
    for benchmark in benchmarks:
        if benchmark.get("error_occurred") or benchmark["run_type"] != "iteration":
            continue
        match = re.fullmatch(r"(\w+)(?:<(.*)>)?((?:/\w+:\d+)*)/(?:real|manual)_time", benchmark["name"])
        if not match:
            raise ValueError(f"benchmark name {benchmark['name']!r} is not NAME<TYPE>/ARGUMENT:VALUE/.../real_time")
        operation, type_name, arguments = match.groups()
        pairs = tuple(tuple(pair.split(":")) for pair in arguments.split("/")[1:])
        results[operation, TYPES.get(type_name, type_name or ""), pairs] = benchmark
    return results


def micro_tables(paths, references=REFERENCES, tokens_shown=TOKENS_SHOWN):
    results = {}
    for path in paths:
        results |= parse_micro(json.loads(path.read_text())["benchmarks"])
    scale = {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}

    def microseconds(benchmark):
        return number(benchmark["real_time"] * scale[benchmark["time_unit"]])

    def reference(operation, type_name, arguments, suffix):
        one_thread = tuple((name, "1" if name == "threads" else value) for name, value in arguments)
        benchmark = results.get((f"{operation}_{suffix}", type_name, one_thread))
        return microseconds(benchmark) if benchmark else ""

    parts = []
    for title, operations in GROUPS:
        chosen = [
            key for key in results
            if key[0] in operations and (tokens_shown is None or dict(key[2]).get("tokens") in tokens_shown)
        ]
        if not chosen:
            continue
        names = [name for name, _ in chosen[0][2]]
        suffixes = [s for s in references if any(f"{o}_{s}" in (key[0] for key in results) for o in operations)]
        with_bytes = "bytes_per_second" in results[chosen[0]]
        with_layers = "ns_per_layer" in results[chosen[0]]
        header = ["operation", "type", *(name.replace("_", " ") for name in names), "µs"]
        header += ["GB/s"] * with_bytes + ["ns per layer"] * with_layers
        header += [f"{references[suffix]} µs" for suffix in suffixes]
        rows = []
        for key in chosen:
            operation, type_name, arguments = key
            benchmark = results[key]
            row = [operation.replace("_", " "), type_name, *(value for _, value in arguments), microseconds(benchmark)]
            if with_bytes:
                row.append(number(benchmark["bytes_per_second"] / 1e9))
            if with_layers:
                row.append(number(benchmark["ns_per_layer"]))
            rows.append(row + [reference(operation, type_name, arguments, suffix) for suffix in suffixes])
        if not any(row[1] for row in rows):  # the same type everywhere
            header.pop(1)
            rows = [row[:1] + row[2:] for row in rows]
        parts.append(f"### {title}\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def schedule_of(run):
    """The schedule, or the preset that it is of, for a cell."""
    return f"`{run.get('preset', run['schedule'])}`".replace("examples/models/", "")


def ttft_tables(paths):
    runs = [json.loads(path.read_text()) for path in paths]
    time_rows = []
    for run in runs:
        name = [run["shape"], run["dtype"], str(run["prompt_tokens"]), schedule_of(run), str(run["repeats"])]
        time_rows.append(name + [
            f"{run['dense_ms']:.1f}",
            f"{run['lazy_ms']:.1f}",
            f"{run['speedup']:.2f}",
            f"{run['ideal_speedup']:.2f}",
            f"{100 * run['speedup'] / run['ideal_speedup']:.0f} %",
            f"{run['overhead_percent']:.1f} %",
            f"{run['library_percent']:.2f} %",
            f"{run['dense_gflops']:.0f}",
            f"{run['gemm_gflops']:.0f}",
            f"{run['dense_share_of_gemm_percent']:.0f} %",
        ])
    name = ["shape", "type", "prompt tokens", "schedule", "turns"]
    time_header = name + ["dense ms", "lazy ms", "speedup", "ideal speedup", "share of ideal", "overhead at keep 1",
                          "library's share of lazy", "dense GFLOP/s", "GEMM library GFLOP/s", "dense share of GEMM"]
    threads = sorted({run["threads"] for run in runs})
    settings = f"Threads: {', '.join(map(str, threads))}. Medians of the turns, in which dense and lazy alternate."
    return f"{settings}\n\n### Time to first token\n\n{table(time_header, time_rows)}"


OVERHEAD_BAR = 0.5  # percent


def verdict(met, value, noise, yes, no):
    """What is missed by less than its noise is "within noise"."""
    return yes if met(value) else "within noise" if met(value - noise) else no


def overhead_table(paths):
    """Of a prefill through the library with everything kept, against the host's own loop."""
    def met(run):
        return verdict(lambda percent: percent <= OVERHEAD_BAR, run["overhead_percent"], run["overhead_noise_percent"],
                       "yes", "no")

    runs = [json.loads(path.read_text()) for path in paths]
    return table(["shape", "type", "prompt tokens", "turns", "dense ms", "overhead at keep 1", f"at most {OVERHEAD_BAR} %"],
                 [[run["shape"], run["dtype"], str(run["prompt_tokens"]), str(run["overhead_turns"]), f"{run['dense_ms']:.1f}",
                   f"{run['overhead_percent']:.2f} ± {run['overhead_noise_percent']:.2f} %", met(run)] for run in runs])


def attention_tables(paths):
    """One table for each instruction set, type and way to multiply, in the order of the results."""
    results = [result for path in paths for result in json.loads(path.read_text())]
    groups = {}
    for result in results:
        groups.setdefault((result["isa"], result["dtype"], result["products"]), []).append(result)
    parts = []
    for (isa, dtype, products), group in groups.items():
        rows = [[str(case["head_dim"]), str(case["group"]), str(case["keys"]), f"{case['kept_percent']} %",
                 "all" if case["rows"] == case["keys"] else f"{'any' if case['scattered'] else 'last'} {case['rows']}",
                 f"{case['attention_gflops']:.0f}", f"{case['product_gflops']:.0f}", f"{case['share_percent']:.0f} %"]
                for case in group]
        own = "" if products == "library" else ", products without the library"
        settings = sorted({(case["threads"], case["repeats"]) for case in group})
        said_settings = "; ".join(f"{threads} threads, medians of {repeats}" for threads, repeats in settings)
        parts.append(f"### {dtype}, {isa.replace('_', '-')}{own}\n\n{said_settings}.\n\n" + table(
            ["head_dim", "query heads a key head", "keys", "of all tokens", "rows", "attention GFLOP/s",
             "product GFLOP/s", "share"], rows))
    return f"<details><summary>All {len(results)} cases</summary>\n\n" + "\n\n".join(parts) + "\n\n</details>"


def decode_tables(paths):
    """Products and attention of few rows: the rate of reading the weights, or K and V, over that of a plain read, and the
    time over that of one row, both in turn with the rows."""
    kinds = {"few_rows": (r"few_rows<(\w+)>/rows:(\d+)/in:(\d+)/out:(\d+)/", ["weights", "ISA", "in", "out"]),
             "few_layers_attend": (r"few_layers_attend<(\w+)>/rows:(\d+)/group:(\d+)/percent:(\d+)/",
                                   ["K and V", "ISA", "query heads a key head", "% of 4000 tokens"])}
    cases = {kind: {} for kind in kinds}
    for path in paths:
        for benchmark in json.loads(path.read_text())["benchmarks"]:
            kind = benchmark["name"].split("<")[0]
            match = re.match(kinds[kind][0], benchmark["name"]) if kind in kinds else None
            if not match:
                raise ValueError(f"benchmark name {benchmark['name']!r} is not few_rows<TYPE>/rows:R/in:I/out:O/... or "
                                 "few_layers_attend<TYPE>/rows:R/group:G/percent:P/...")
            case = (match[1], benchmark["label"].replace("_", "-"), *match.groups()[2:])
            cases[kind].setdefault(case, {})[int(match[2])] = benchmark
    parts = []
    for kind, (_, name) in kinds.items():
        counts = sorted({rows for case in cases[kind].values() for rows in case})
        body = []
        for case, of_rows in cases[kind].items():
            plain = [benchmark["read"] / 1e9 for benchmark in of_rows.values()]
            body.append([*case, f"{min(plain):.0f} to {max(plain):.0f}",
                         *(f"{of_rows[rows]['of_read']:.2f}, {of_rows[rows]['of_one_row']:.2f}x" for rows in counts)])
        if body:
            parts.append(table([*name, "plain read, GB/s", *(f"{rows} row{'s' * (rows > 1)}" for rows in counts)], body))
    return "\n\n".join(parts)


def peer_bars(cases):
    """Rows (bar, worst figure, where, met)."""
    rows = []

    def bar(text, chosen, figure, form, met, of=min):
        if not chosen:
            rows.append([text, "not measured", "", "not measured"])
            return
        case = of(chosen, key=figure)
        rows.append([text, form.format(figure(case)), f"{case['shape']}, {case['prompt_tokens']}",
                     "yes" if met(figure(case)) else "no"])

    bar("dense prefill at least 1.2x as fast as transformers", [case for case in cases if "transformers_ms" in case],
        lambda case: case["dense_over_transformers"], "{:.2f}x", lambda value: value >= 1.2)
    for prompt, least in ((2000, 60), (8000, 50)):
        bar(f"dense at {least} % of the product rate, {prompt} tokens",
            [case for case in cases if case["prompt_tokens"] == prompt and case["weights"] == case["dtype"]],
            lambda case: case["dense_share_of_gemm_percent"], "{:.0f} %", lambda value, least=least: value >= least)
    bar("lazy speedup at least 0.95 of ideal", cases, lambda case: case["speedup"] / case["ideal_speedup"], "{:.3f}",
        lambda value: value >= 0.95)
    bar("library's share of the lazy prefill at most 1 %", cases, lambda case: case["library_percent"], "{:.2f} %",
        lambda value: value <= 1, of=max)
    bar(f"overhead at keep 1 at most {OVERHEAD_BAR} %", cases, lambda case: case["overhead_percent"], "{:.1f} %",
        lambda value: value <= OVERHEAD_BAR, of=max)
    return rows


def peer_tables(paths):
    cases = [case for path in paths for case in json.loads(path.read_text())]

    def peer(case, name):
        if f"{name}_ms" not in case:
            return ["", ""]
        return [f"{case[f'{name}_ms']:.0f}", f"{case[f'dense_over_{name}']:.2f}"]

    def share(case):
        return f"{case['dense_share_of_gemm_percent']:.0f} %" if case["weights"] == case["dtype"] else ""

    def decode(case):
        peers = [f"{case['llama_cpp_decode_ms']:.1f}", f"{case['dense_over_llama_cpp_decode']:.2f}"] \
            if "llama_cpp_decode_ms" in case else ["", ""]
        return [f"{case['dense_decode_ms']:.1f}", *peers]

    name = ["shape", "weights", "prompt tokens", "turns"]
    named = [[case["shape"], case["weights"], str(case["prompt_tokens"]), str(case["repeats"])] for case in cases]
    rows = [[f"{case['dense_ms']:.0f}", *peer(case, "transformers"), *peer(case, "llama_cpp"),
             case.get("llama_cpp_type", ""), *decode(case)] for case in cases]
    header = ["dense ms", "transformers ms", "over dense", "llama.cpp ms", "over dense", "llama.cpp's weights",
              "dense ms a decode step", "llama.cpp ms", "over dense"]
    lazy_rows = [[f"{case['lazy_ms']:.0f}", f"{case['speedup']:.2f}", f"{case['ideal_speedup']:.2f}",
                  f"{case['overhead_percent']:.1f} %", f"{case['library_percent']:.2f} %", share(case)] for case in cases]
    lazy_header = ["lazy ms", "speedup", "ideal speedup", "overhead at keep 1", "library's share of lazy",
                   "dense share of GEMM"]
    versions = sorted({f"{case['transformers']}, in {case['transformers_dtype']}" for case in cases
                       if "transformers" in case})
    settings = sorted({(case["isa"].replace("_", "-"), case["threads"]) for case in cases})
    said_settings = "; ".join(f"{isa}, {threads} threads, medians of the turns" for isa, threads in settings)
    left_out = sorted({f"{case['shape']}: {why}" for case in cases for why in case["left_out"]})
    parts = [f"{said_settings}. {'; '.join(versions) or 'transformers was not measured'}.",
             table(name + header, [left + right for left, right in zip(named, rows, strict=True)]),
             table(name + lazy_header, [left + right for left, right in zip(named, lazy_rows, strict=True)]),
             table(["bar", "worst case", "where", "met"], peer_bars(cases))]
    if left_out:
        parts.append("Left out: " + "; ".join(left_out) + ".")
    return "\n\n".join(parts)


def revived(run):
    """How many tokens the decode steps of a run, or of a preset, revive at each pruning layer, in words."""
    later = str(run.get("decode_revived", "as the prompt"))
    if "revive_from" in run:
        later += f" from layer {run['revive_from']} on"
    words = f"{run['first_revived']}, then {later}" if "first_revived" in run else later
    return words + (f"; {run['continuations']} continuations" if "continuations" in run else "")


P99_BAR = 1.15
STEP_CLASSES = ("second", "third_to_9th", "later", "p50", "p99")
STEP_TIMES = "The time of each step is the median of its times in {} runs. "


def form_ms(value):
    return "–" if value is None else f"{value:.1f}"


def p99_against_dense(run):
    return run["lazy"]["decode_ms"]["p99"] / run["dense"]["decode_ms"]["p99"]


def meets_bars(run):
    return p99_against_dense(run) <= P99_BAR and run["behind_dense_from"] is None


def case_of(run):
    """The cells that say which run of generation it is."""
    return [pathlib.Path(run["model"]).name, schedule_of(run), revived(run), run.get("weights", run["dtype"]),
            run["isa"].replace("_", "-")]


def bars_met(runs):
    """What of the presets and `auto` meets the bars of generation, and which cases do not: one paragraph."""
    shipped = [run for run in runs if schedule_of(run) != "`paper`"]
    if not shipped:
        return ""

    def where(run):
        model, schedule, _, weights, isa = case_of(run)
        return f"{model} {schedule} ({weights}, {isa}, {run['prompt_tokens']} tokens)"

    def end(run):
        lazy, dense = (sum(run[kind]["step_ms"]) for kind in ("lazy", "dense"))
        return f"{100 * (lazy / dense - 1):.1f} % at the end"

    ratios = [p99_against_dense(run) for run in shipped]
    late = [f"{where(run)} {ratio:.3f}x" for run, ratio in zip(shipped, ratios, strict=True) if ratio > P99_BAR]
    behind = [f"{where(run)} from token {run['behind_dense_from']} on, {end(run)}" for run in shipped
              if run["behind_dense_from"] is not None]
    return (f"{sum(map(meets_bars, shipped))} of these {len(shipped)} rows of presets and `auto` meet both bars. p99 is "
            f"{min(ratios):.2f} to {max(ratios):.2f} times dense's. Above {P99_BAR}: {'; '.join(late) or 'none'}. Behind "
            f"dense: {'; '.join(behind) or 'none'}.")


def generation_tables(paths):
    """Of dense and each schedule: until the first token, between tokens, and from where on lazy is behind dense."""
    runs = [json.loads(path.read_text()) for path in paths]
    rows, bars = [], []
    for run in runs:
        name = case_of(run)
        for kind in ("dense", "lazy"):
            times = run[kind]["decode_ms"]
            rows.append([*(name if kind == "lazy" else [name[0], "dense", "", *name[3:]]), str(run["prompt_tokens"]),
                         f"{run[kind]['ttft_ms']:.0f}",
                         *(form_ms(times[time]) for time in STEP_CLASSES)])
        tokens = min(len(run["dense"]["tokens"]), len(run["lazy"]["tokens"]))
        behind = run["behind_dense_from"]
        second = [run[kind]["decode_ms"]["second"] for kind in ("lazy", "dense")]
        bars.append([*name, str(run["prompt_tokens"]), f"{run['ttft_speedup']:.2f} of {run['ideal_ttft_speedup']:.2f}",
                     "–" if None in second else f"{second[0] / second[1]:.1f}x", f"{p99_against_dense(run):.2f}x",
                     f"never within {tokens} tokens" if behind is None else f"from token {behind} on",
                     "yes" if meets_bars(run) else "no"])
    names = ["model", "schedule", "revived in a decode step", "weights", "ISA"]
    times = ["prompt tokens", "first token ms", "2nd token ms", "3rd to 9th", "later", "p50", "p99"]
    repeats = " or ".join(sorted({str(run["repeats"]) for run in runs}))
    settings = (f"{STEP_TIMES.format(repeats)}p50 and p99 are over these steps. The steps of dense and of the schedule take "
                "turns.")
    return (f"{settings}\n\n{table(names + times, rows)}\n\nThe bars: no step slower than {P99_BAR}x the dense one at "
            "p99, and prompt and answer never slower than dense.\n\n"
            + table([*names, "prompt tokens", "TTFT speedup", "2nd token against dense", "p99 against dense", "behind dense", "bars met"], bars)
            + "\n\n" + bars_met(runs))


def int8_tables(paths):
    """What weights in int8 change in the distribution of the next token, and in the times."""
    runs = [json.loads(path.read_text()) for path in paths]
    rows = [[pathlib.Path(run["model"]).name, run["dtype"], str(run["prompts"]), str(run["tokens"]), f"{run['kl']:.4f}",
             f"{run['equal_percent']:.1f} %",
             *(f"{run[time]:.1f}" for time in ("prefill_ms", "int8_prefill_ms", "decode_ms", "int8_decode_ms"))]
            for run in runs]
    threads, longest = ({str(run[name]) for run in runs} for name in ("threads", "prompt_tokens"))
    return (f"Prompts of at most {' or '.join(sorted(longest))} tokens; {' or '.join(sorted(threads))} threads; times are medians "
            "over the prompts and over the decode steps.\n\n"
            + table(["model", "type", "prompts", "tokens compared", "KL, nats a token", "top-1 agreement", "prefill ms",
                     "int8: prefill ms", "decode ms", "int8: decode ms"], rows))


def serving_tables(paths):
    """What the users of a server see, dense and pruned under the same load."""
    runs = [json.loads(path.read_text()) for path in paths]
    rows = []
    for run in runs:
        for load in run["loads"]:
            def both(form, *names, load=load):
                values = []
                for kind in ("dense", "lazy"):
                    value = load[kind]
                    for name in names:
                        value = value[name]
                    values.append(format(value / 1000 if form == ".2f" else value, form))
                return " → ".join(values)

            percent = load["load_percent"]
            rows.append([pathlib.Path(run["model"]).name, schedule_of(run), "all at once" if percent is None else f"{percent:g} %",
                         both(".1f", "conversations_per_minute"),
                         *(both(".2f", f"{turn}first_token_ms", at) for turn in ("", "second_turn_") for at in ("p50", "p90")),
                         *(both(".0f", "between_tokens_ms", at) for at in ("p50", "p99"))])
    settings = []
    for run in runs:
        text = (f"{run['conversations']} conversations in each of {run['repeats']} runs, at most {run['slots']} at once: a prompt of "
                f"{run['prompt_tokens']:.0f} tokens on average, an answer of {run['answer_tokens']}, a second prompt of "
                f"{run['follow_up_tokens']} and a second answer; {run['weights']}, {run['threads']} threads.")
        settings += [] if text in settings else [text]
    return ("\n\n".join(settings) + "\n\nEach cell is dense → pruned. The load is in percent of what dense inference serves where all "
            "come at once.\n\n"
            + table(["model", "schedule", "load", "conversations a minute", "first token p50, s", "p90", "second turn's first token p50, s",
                     "p90", "between tokens p50, ms", "p99"], rows))


BUSY_BAR = 2.5


def busy_tables(paths):
    """Decode steps beside a busy process against those on a quiet machine; a quiet result is followed by its busy one."""
    runs = [json.loads(path.read_text()) for path in paths]

    def steps(run, kind):
        return [run[kind]["decode_ms_per_token"], *(run[kind]["decode_ms"][time] for time in STEP_CLASSES)]

    rows = []
    for quiet, busy in zip(runs[::2], runs[1::2], strict=True):
        for kind in ("dense", "lazy"):
            times = zip(steps(quiet, kind), steps(busy, kind), strict=True)
            ratio = busy[kind]["decode_ms_per_token"] / quiet[kind]["decode_ms_per_token"]
            rows.append([pathlib.Path(quiet["model"]).name, quiet.get("weights", quiet["dtype"]),
                         schedule_of(quiet) if kind == "lazy" else "dense", str(quiet["prompt_tokens"]),
                         *(f"{form_ms(alone)} → {form_ms(beside)}" for alone, beside in times), f"{ratio:.2f}x",
                         "yes" if ratio <= BUSY_BAR else "no"])
    repeats = " or ".join(sorted({str(run["repeats"]) for run in runs}))
    return (f"ms of a decode step, on a quiet machine → beside a busy process. {STEP_TIMES.format(repeats)}The mean, p50 and p99 are "
            "over these steps.\n\n"
            + table(["model", "weights", "schedule", "prompt tokens", "mean", "2nd token", "3rd to 9th", "later", "p50", "p99",
                     "mean, busy / quiet", "bar met"], rows)
            + f"\n\nThe bar: the mean beside a busy process at most {BUSY_BAR}x of that on a quiet machine.")


def cuda_micro_tables(paths):
    return micro_tables(paths, CUDA_REFERENCES, None)


class CudaResults:
    """What ttft_bench --device cuda and bench/peers measured: `cases` and `peers`, and `left_out`, with the reasons."""

    def __init__(self, paths):
        entries = [entry for path in paths for entry in json.loads(path.read_text())]
        self.left_out = [entry for entry in entries if "left_out" in entry]
        measured = [entry for entry in entries if "left_out" not in entry and entry["device"] == "cuda"]
        self.gpus = sorted({entry["gpu"] for entry in measured})
        if len(self.gpus) > 1:
            raise ValueError(f"results of several GPUs, {' and '.join(self.gpus)}, cannot share a table")
        self.cases = sorted((entry for entry in measured if "peer" not in entry), key=self.order)
        self.peers = {self.place(entry): entry for entry in measured if "peer" in entry}

    @staticmethod
    def place(entry):
        return entry["shape"], entry["dtype"], entry["prompt_tokens"], entry["batch"]

    @classmethod
    def order(cls, case):
        return *cls.place(case), case["schedule"], -1 if case["decode_revived"] is None else case["decode_revived"]

    def peer_ms(self, case):
        peer = self.peers.get(self.place(case))
        return peer["dense_ms"] if peer else None

    def once(self):
        """One case for each place, since dense figures do not depend on the schedule."""
        return list({self.place(case): case for case in reversed(self.cases)}.values())[::-1]

    def without_revivals(self, case):
        """The same case with a budget of 0 for its decode steps, or None."""
        def key(case):
            return *self.place(case), case["schedule"]

        return next((other for other in self.cases if key(other) == key(case) and other["decode_revived"] == 0), None)


def name_of(entry, schedule=True):
    name = [entry["shape"], entry["dtype"], str(entry["prompt_tokens"]), str(entry["batch"])]
    return name + [f"`{entry['schedule']}`"] if schedule else name


NAME = ["shape", "type", "prompt tokens", "batch"]


def said(entry, schedule=True):
    """Where a figure was measured, in words."""
    batch = "" if entry["batch"] == 1 else f", batch {entry['batch']}"
    return f"{entry['shape']}, {entry['prompt_tokens']}{batch}" + (f", `{entry['schedule']}`" if schedule else "")


BARS_SHAPE = "llama-2-7b"
BARS_PROMPTS = (4096, 16384)
BUDGET = 16  # rows that a decode step may revive at each pruning layer


def cuda_bars(results):
    """Rows (bar, reached, where, met): all of llama-2-7b at the prompt lengths that the bar names. Of each the worst case,
    but for "some schedule" the best. What is missed by less than its noise is "within noise"."""
    def at(*prompts):
        return [case for case in results.cases if case["shape"] == BARS_SHAPE and case["prompt_tokens"] in prompts]

    def with_budget(*budgets):
        return [case for case in at(*BARS_PROMPTS)
                if case["decode_revived"] in budgets and "slowest_decode_ratio" in case]

    rows = []

    def bar(text, cases, figure, form, met, of=max, schedule=True, noise=lambda case: 0):
        if not cases:
            rows.append([text, "not measured", "", "not measured"])
            return
        case = of(cases, key=figure)
        value, error = figure(case), noise(case)
        rows.append([text, form.format(value) + (f" ± {error:.2f}" if error else ""), said(case, schedule),
                     verdict(met, value, error, "passed", "missed")])

    both = f"{BARS_SHAPE} at {' and '.join(map(str, BARS_PROMPTS))}"

    def share_of_ideal(case):
        return case["speedup"] / case["ideal_speedup"]

    bar(f"dense TTFT within 1.25x of the GEMM + attention floor, {BARS_SHAPE} at 4096", at(4096),
        lambda case: case["dense_of_floor"], "{:.2f}x", lambda value: value <= 1.25, schedule=False)
    bar(f"dense TTFT below that of transformers, {BARS_SHAPE} at 4096",
        [case for case in at(4096) if results.peer_ms(case)],
        lambda case: case["dense_ms"] / results.peer_ms(case), "{:.2f} of its time", lambda value: value < 1,
        schedule=False)
    bar(f"overhead at keep 1 at most 1 %, {both}", at(*BARS_PROMPTS), lambda case: case["overhead_percent"],
        "{:.2f} %", lambda value: value <= 1, noise=lambda case: case["overhead_noise_percent"])
    bar(f"speedup at least 0.92 of ideal, {BARS_SHAPE} at 4096", at(4096), share_of_ideal, "{:.3f}",
        lambda value: value >= 0.92, of=min)
    bar(f"speedup at least 0.95 of ideal, {BARS_SHAPE} at 16384", at(16384), share_of_ideal, "{:.3f}",
        lambda value: value >= 0.95, of=min)
    bar(f"at least 2.34x by some schedule whose ideal is at least 2.5x, {both}",
        [case for case in at(*BARS_PROMPTS) if case["ideal_speedup"] >= 2.5],
        lambda case: case["speedup"], "{:.2f}x", lambda value: value >= 2.34)
    bar(f"scoring, selection, gather and parking at most 1 % of the lazy prefill, {both}", at(*BARS_PROMPTS),
        lambda case: case["library_percent"], "{:.2f} %", lambda value: value <= 1)
    bar(f"lazy decode with a budget of {BUDGET} never slower than 1.05x dense at the same position, {both}",
        with_budget(BUDGET), lambda case: case["slowest_decode_ratio"], "{:.2f}x", lambda value: value <= 1.05)
    bar(f"lazy decode with a budget of {BUDGET} at most 1.15x of one without revivals, {both}",
        [case for case in with_budget(BUDGET) if results.without_revivals(case)],
        lambda case: case["lazy_decode_ms"] / results.without_revivals(case)["lazy_decode_ms"], "{:.2f}x",
        lambda value: value <= 1.15)
    return rows


def cuda_bar_table(results):
    return table(["bar", "worst case, or best schedule", "where", "met"], cuda_bars(results))


def cuda_ttft_rows(results):
    rows = {}
    for case in results.cases:  # the prefill does not depend on the budget of the decode steps
        peer = results.peer_ms(case)
        rows.setdefault(tuple(name_of(case)), name_of(case) + [
            f"{case['dense_ms']:.1f}",
            f"{case['lazy_ms']:.1f}",
            f"{case['speedup']:.2f}",
            f"{case['ideal_speedup']:.2f}",
            f"{100 * case['speedup'] / case['ideal_speedup']:.0f} %",
            f"{case['overhead_percent']:.2f} ± {case['overhead_noise_percent']:.2f} %",
            f"{case['library_percent']:.2f} %",
            f"{peer:.1f}" if peer else "",
        ])
    return list(rows.values())


CUDA_TTFT_HEADER = NAME + ["schedule", "dense ms", "lazy ms", "speedup", "ideal speedup", "share of ideal",
                           "overhead at keep 1", "library's share of lazy", "transformers ms"]


def cuda_tables(paths):
    results = CudaResults(paths)
    if not results.cases:
        raise ValueError("no result of ttft_bench --device cuda")
    floors = [name_of(case, False) + [
        f"{case['dense_ms']:.1f}",
        f"{case['gemm_ms']:.1f}",
        f"{case['attention_ms']:.1f}",
        f"{case['dense_of_floor']:.2f}",
        f"{case['dense_tflops']:.0f}",
        f"{case['gemm_tflops']:.0f}",
        f"{case['copy_gbytes_per_second']:.0f}",
    ] for case in results.once()]
    steps = [name_of(case) + [
        "all" if case["decode_revived"] is None else str(case["decode_revived"]),
        f"{case['dense_decode_ms']:.2f}",
        f"{case['lazy_decode_ms']:.2f}",
        "failed" if case["graph_decode_ms"] is None else f"{case['graph_decode_ms']:.2f}",
        f"{case['decode_ratio']:.2f}",
        f"{case['slowest_decode_ratio']:.2f}",
        f"{case['decode_floor_ms']:.2f}",
        f"{case['revived_per_step']:.0f}",
    ] for case in results.cases if "decode_ratio" in case]
    prefills = sorted({case["prefills"] for case in results.cases})
    repeats = ", ".join(map(str, sorted({case["repeats"] for case in results.cases})))
    versions = sorted({f"transformers {peer['version']} with PyTorch {peer['torch']} and {peer['attention'].upper()}"
                       for peer in results.peers.values()})
    parts = [
        f"{results.gpus[0]}. Medians of {prefills[0]} to {prefills[-1]} prefills and of {repeats} runs of the decode "
        "steps, between CUDA events, until the logits are on the host. "
        f"{'; '.join(versions) or 'transformers was not measured'}.",
        f"### What was to be reached on an H100 or H200\n\n{cuda_bar_table(results)}",
        f"### Time to first token on the GPU\n\n{table(CUDA_TTFT_HEADER, cuda_ttft_rows(results))}",
        "### The dense prefill beside the device's floor\n\n" + table(
            NAME + ["dense ms", "GEMM floor ms", "attention floor ms", "dense / floor", "dense TFLOP/s",
                    "cuBLASLt TFLOP/s", "copy GB/s"], floors),
    ]
    if steps:
        parts.append("### Decode steps on the GPU\n\n" + table(
            NAME + ["schedule", "may revive", "dense ms", "lazy ms", "lazy with CUDA graphs, ms", "lazy / dense, all steps",
                    "slowest step", "floor ms", "rows revived per step"], steps))
    if results.left_out:
        rows = [[("transformers, " if "peer" in entry else "") + said(entry, "schedule" in entry), entry["left_out"]]
                for entry in results.left_out]
        parts.append("### Left out\n\n" + table(["case", "why"], rows))
    return "\n\n".join(parts)


def cuda_summary(paths):
    results = CudaResults(paths)
    parts = [table(CUDA_TTFT_HEADER, cuda_ttft_rows(results))] if results.cases else []
    parts.append(cuda_bar_table(results))
    if results.left_out:
        parts.append("Left out: " + "; ".join(f"{said(entry, 'schedule' in entry)} ({entry['left_out']})"
                                              for entry in results.left_out))
    return "\n\n".join(parts)


def cuda_cudnn_table(paths):
    """Of what was measured with cuDNN's attention, which the bars leave out."""
    results = CudaResults(paths)
    rows = [name_of(case) + [f"{case['dense_ms']:.1f}", f"{case['dense_of_floor']:.2f}", f"{case['lazy_ms']:.1f}",
                             f"{1 / case['speedup']:.2f}"] for case in results.cases]
    parts = ["With cuDNN's attention:"]
    if rows:
        parts.append(table(NAME + ["schedule", "dense ms", "dense / floor", "lazy ms", "lazy / dense"], rows))
    parts += [f"Left out: {said(entry)} ({entry['left_out']})" for entry in results.left_out]
    return "\n\n".join(parts)


def replace_between_markers(text, kind, content):
    begin, end = f"<!-- {kind} begin -->", f"<!-- {kind} end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise ValueError(f"the document needs one '{begin}' and one '{end}' after it")
    head, rest = text.split(begin)
    return head + begin + "\n" + content + "\n" + end + rest.split(end)[1]


MAKERS = {"micro": micro_tables, "ttft": ttft_tables, "overhead": overhead_table, "generation": generation_tables, "short": generation_tables,
          "attention": attention_tables, "decode": decode_tables, "decode-attention": decode_tables,
          "int8": int8_tables, "serving": serving_tables, "busy": busy_tables, "peers": peer_tables, "cuda-micro": cuda_micro_tables,
          "cuda": cuda_tables, "cuda-summary": cuda_summary, "cuda-cudnn": cuda_cudnn_table}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(MAKERS))
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("--section", default="", help="follows the kind in the document's marks: --section=-avx2 writes between those of ttft-avx2")
    parser.add_argument("--command", help="what was run")
    parser.add_argument("--context", help="machine, compiler, commit, date")
    options = parser.parse_args()
    to_document = options.document != pathlib.Path("-")
    if to_document and (options.command is None or options.context is None):
        parser.error("a document needs --command and --context")
    try:
        tables = MAKERS[options.kind](options.results)
        if not to_document:
            print(tables)
            return
        content = f"```\n{options.command}\n```\n\n{options.context}\n\n{tables}"
        text = replace_between_markers(options.document.read_text(), options.kind + options.section, content)
    except (OSError, ValueError) as error:
        sys.exit(f"make_tables.py: {error}")
    except KeyError as error:
        sys.exit(f"make_tables.py: a result lacks the entry {error}")
    options.document.write_text(text)


if __name__ == "__main__":
    main()
