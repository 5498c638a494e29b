#!/usr/bin/env python3
"""Measures the quality of every method and writes tables and figures; see run.sh."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

import figures
import measure
import plan as planning
import plot
import results as reading
import tables

BEGIN, END = "<!-- quality begin -->", "<!-- quality end -->"


def with_section(document, content):
    """The document with what stands between its markers replaced; with a section that has markers, where it has
    none."""
    if BEGIN not in document and END not in document:
        document = document.rstrip("\n") + f"\n\n## Quality\n\n{BEGIN}\n{END}\n"
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(END) < document.index(BEGIN):
        raise ValueError(f"the document needs one '{BEGIN}' and one '{END}' after it, or neither")
    head, rest = document.split(BEGIN)
    return head + BEGIN + "\n" + content + "\n" + END + rest.split(END)[1]


def made(part, plan, results):
    """The part's sections and its picture, or None for a part without one."""
    sections = [make(plan, results) for make in tables.TABLES[part]]
    return sections, plot.svg(figures.FIGURES[part](plan, results)) if part in figures.FIGURES else None


def write(plan, context, command):
    """Tables and figures of all parts that have been measured. Returns why the others are left out."""
    results = reading.Results(plan)
    out, sections, pictures, left_out = plan.options.out, [], {}, []
    for part in planning.PARTS:
        try:
            texts, picture = made(part, plan, results)
        except reading.Missing as missing:
            left_out.append(f"{part} is left out: there is no result of {missing}")
        except planning.NoSchedules as missing:
            left_out.append(f"{part} is left out: {missing}")
        else:
            sections += texts
            if picture:
                pictures[f"quality-{part}.svg"] = picture
    if not sections:
        raise ValueError(f"there are no results in {plan.folder}")
    with contextlib.suppress(reading.Missing):
        sections.insert(0, tables.bars(plan, results))
    document = out / "benchmarks.md"
    text = document.read_text() if document.exists() else "# Benchmarks\n"
    content = "\n\n".join([tables.code(command), context, *sections])
    text = with_section(text, content)
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (out / name).write_text(picture)
    document.write_text(text)
    measure.say(f"Written: {', '.join(str(out / name) for name in ('benchmarks.md', *pictures))}")
    return left_out


def main(arguments):
    parts = []
    while arguments and arguments[0] in (*planning.PARTS, "figures"):
        parts.append(arguments.pop(0))
    if len(arguments) > 2 or any(argument.startswith("-") for argument in arguments):
        sys.exit(f"run.sh: '{' '.join(arguments)}' is not [PART...] [MODEL] [DATA]; the parts are "
                 f"{', '.join(planning.PARTS)} and figures")
    start = time.monotonic()
    try:
        model, data = (*arguments, None, None)[:2]
        options = planning.settings(model, data, os.environ)
        plan = planning.Plan(options)
        options.build.mkdir(parents=True, exist_ok=True)
        measured = [part for part in parts if part != "figures"] if parts else list(planning.PARTS)
        for part in measured:
            plan.runs(part)  # so that what is wrong with the settings is found before the work
        if measured and data is None:
            measure.make_data(plan)
        command = " ".join([*plan.shown_variables(), "bash bench/quality/run.sh", *parts, *([plan.shown_model()] if model else []),
                            *([pathlib.Path(data).name] if data else [])])
        context = os.environ.get("CONTEXT", "")
        # What is finished is written at once; who stops here has that.
        for part in measured or ["figures"]:
            if part != "figures":
                measure.Measurement(plan).measure(part)
            left_out = write(plan, context, command)
        for reason in left_out:
            measure.say(reason)
    except (OSError, ValueError, KeyError, measure.Failure, subprocess.CalledProcessError) as error:
        kind = "missing entry " if isinstance(error, KeyError) else ""
        sys.exit(f"run.sh: {kind}{error}")
    except KeyboardInterrupt:
        sys.exit("run.sh: interrupted; the same command goes on from here")
    measure.say(f"Total time {measure.duration(time.monotonic() - start)}")


if __name__ == "__main__":
    main(sys.argv[1:])
