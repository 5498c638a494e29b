#!/usr/bin/env python3
"""Writes benchmark results as tables into a Markdown file.

make_tables.py micro RESULT.json DOCUMENT.md --command TEXT --context TEXT
make_tables.py ttft RESULT.json... DOCUMENT.md --command TEXT --context TEXT
make_tables.py summary RESULT.json... DOCUMENT.md --command TEXT --context TEXT    (of ttft, for README.md)

Each kind replaces what stands between its markers `<!-- KIND begin -->` and `<!-- KIND end -->` and nothing else.
"""

import argparse
import json
import pathlib
import re
import sys

REFERENCES = {"plain": "plain", "memory": "same bytes", "threshold": "nth_element"}
GROUPS = [
    ("Rows gathered and scattered", ("gather", "scatter")),
    ("Scores", ("score",)),
    ("Selection", ("select_count", "select_mass")),
    ("Pooling", ("pool",)),
    ("Aux Cache", ("park", "revive")),
    ("A step whose blocks do nothing", ("prefill", "decode")),
]
TOKENS_SHOWN = ("1024", "131072")
TYPES = {"float": "f32", "Eigen::bfloat16": "bf16", "Dense": "bf16, dense", "Pooled": "bf16, pooled"}


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


def micro_tables(paths):
    if len(paths) != 1:
        raise ValueError(f"micro takes one result, not {len(paths)}")
    report = json.loads(paths[0].read_text())
    results = parse_micro(report["benchmarks"])
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
            key for key in results if key[0] in operations and dict(key[2]).get("tokens") in TOKENS_SHOWN
        ]
        if not chosen:
            continue
        names = [name for name, _ in chosen[0][2]]
        suffixes = [s for s in REFERENCES if any(f"{o}_{s}" in (key[0] for key in results) for o in operations)]
        with_bytes = "bytes_per_second" in results[chosen[0]]
        with_layers = "ns_per_layer" in results[chosen[0]]
        header = ["operation", "type", *(name.replace("_", " ") for name in names), "µs"]
        header += ["GB/s"] * with_bytes + ["ns per layer"] * with_layers
        header += [f"{REFERENCES[suffix]} µs" for suffix in suffixes]
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


def ttft_tables(paths):
    runs = [json.loads(path.read_text()) for path in paths]
    time_rows, generation_rows = [], []
    for run in runs:
        name = [run["shape"], run["dtype"], str(run["prompt_tokens"]), f"`{run['schedule']}`"]
        time_rows.append(name + [
            f"{run['dense_ms']:.1f}",
            f"{run['lazy_ms']:.1f}",
            f"{run['speedup']:.2f}",
            f"{run['ideal_speedup']:.2f}",
            f"{100 * run['speedup'] / run['ideal_speedup']:.0f} %",
            f"{run['overhead_percent']:.1f} %",
            f"{run['dense_gflops']:.0f}",
            f"{run['gemm_gflops']:.0f}",
            f"{run['dense_share_of_gemm_percent']:.0f} %",
        ])
        generation_rows.append(name + [
            str(run["generated_tokens"]),
            f"{run['dense_generation_ms']:.1f}",
            f"{run['lazy_generation_ms']:.1f}",
            f"{run['generation_speedup']:.2f}",
            f"{run['dense_decode_ms']:.1f}",
            f"{run['lazy_decode_ms']:.1f}",
            f"{run['dense_decode_ms'] / run['lazy_decode_ms']:.2f}",
        ])
    name = ["shape", "type", "prompt tokens", "schedule"]
    time_header = name + ["dense ms", "lazy ms", "speedup", "ideal speedup", "share of ideal", "overhead at keep 1",
                          "dense GFLOP/s", "GEMM library GFLOP/s", "dense share of GEMM"]
    generation_header = name + ["generated tokens", "dense ms", "lazy ms", "speedup",
                                "dense ms after the first token", "lazy ms after the first token", "speedup"]
    threads = sorted({run["threads"] for run in runs})
    repeats = sorted({run["repeats"] for run in runs})
    settings = f"Threads: {', '.join(map(str, threads))}. Medians of {', '.join(map(str, repeats))} runs."
    return (f"{settings}\n\n### Time to first token\n\n{table(time_header, time_rows)}\n\n"
            f"### Prompt and generation\n\n{table(generation_header, generation_rows)}")


def summary_table(paths):
    rows = []
    for path in paths:
        run = json.loads(path.read_text())
        rows.append([run["shape"], run["dtype"], str(run["prompt_tokens"]), f"`{run['schedule']}`",
                     f"{run['dense_ms']:.0f} ms", f"{run['lazy_ms']:.0f} ms", f"{run['speedup']:.2f}x",
                     f"{run['ideal_speedup']:.2f}x", f"{run['generation_speedup']:.2f}x"])
    return table(["shape", "type", "prompt tokens", "schedule", "TTFT dense", "TTFT lazy", "speedup", "ideal",
                  f"prompt + {run['generated_tokens']} tokens"], rows)


def replace_between_markers(text, kind, content):
    begin, end = f"<!-- {kind} begin -->", f"<!-- {kind} end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise ValueError(f"the document needs one '{begin}' and one '{end}' after it")
    head, rest = text.split(begin)
    return head + begin + "\n" + content + "\n" + end + rest.split(end)[1]


MAKERS = {"micro": micro_tables, "ttft": ttft_tables, "summary": summary_table}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(MAKERS))
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("--command", required=True, help="what was run")
    parser.add_argument("--context", required=True, help="machine, compiler, commit, date")
    options = parser.parse_args()
    try:
        tables = MAKERS[options.kind](options.results)
        content = f"```\n{options.command}\n```\n\n{options.context}\n\n{tables}"
        text = replace_between_markers(options.document.read_text(), options.kind, content)
    except (OSError, ValueError) as error:
        sys.exit(f"make_tables.py: {error}")
    except KeyError as error:
        sys.exit(f"make_tables.py: a result lacks the entry {error}")
    options.document.write_text(text)


if __name__ == "__main__":
    main()
