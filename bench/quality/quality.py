#!/usr/bin/env python3
"""Measures the quality of every method and writes tables and figures; see run.sh."""

import argparse
import contextlib
import os
import subprocess
import sys
import time

import figures
import measure
import plan as planning
import plot
import results as reading
import tables


def with_section(document, name, title, content):
    """The document with what stands between the markers of section `name` replaced; with a section that has markers,
    where it has none."""
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    if begin not in document and end not in document:
        document = document.rstrip("\n") + f"\n\n## {title}\n\n{begin}\n{end}\n"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(end) < document.index(begin):
        raise ValueError(f"the document needs one '{begin}' and one '{end}' after it, or neither")
    head, rest = document.split(begin)
    return head + begin + "\n" + content + "\n" + end + rest.split(end)[1]


def made(part, plan):
    """The part's sections and its picture, or None for a part without one."""
    # Dense scores are of the same items as the tables where the time is bounded; made questions have more lengths there.
    results = reading.Results(plan, "table" if part == "dense" and plan.bounded and plan.options.data else part)
    sections = [make(plan, results) for make in tables.TABLES[part]]
    return sections, plot.svg(figures.FIGURES[part](plan, results)) if part in figures.FIGURES else None


def write(plan, machine, command, parts):
    """Tables and figures of those parts that have been measured. Returns whether there was one, and why the others are
    left out."""
    out, sections, pictures, left_out = plan.options.out, [], {}, []
    for part in parts:
        try:
            texts, picture = made(part, plan)
        except reading.Missing as missing:
            left_out.append(f"{part} is left out: there is no result of {missing}")
        except planning.NoSchedules as missing:
            left_out.append(f"{part} is left out: {missing}")
        else:
            sections += texts
            if picture:
                pictures[f"{plan.section}-{part}.svg"] = picture
    if not sections:
        return False, left_out
    if "table" in parts:
        with contextlib.suppress(reading.Missing):
            sections.insert(0, tables.bars(plan, reading.Results(plan, "table")))
    document = out / "benchmarks.md"
    text = document.read_text() if document.exists() else "# Benchmarks\n"
    context = "; ".join([machine, "commit " + ", ".join(measure.measured_at(plan)), time.strftime("%F", time.gmtime())])
    content = "\n\n".join([tables.code(command), context, *sections])
    text = with_section(text, plan.section, plan.title, content)
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (out / name).write_text(picture)
    document.write_text(text)
    measure.say(f"Written: {', '.join(str(out / name) for name in ('benchmarks.md', *pictures))}")
    return True, left_out


def options_of(arguments):
    p = argparse.ArgumentParser(prog="run.sh", description="Measures the quality of every method; see README.md.")
    p.add_argument("parts", nargs="*", metavar="PART",
                   help=f"{', '.join(planning.PARTS)}: by default all; figures: measures nothing, writes tables and "
                        "figures anew, of the parts beside it or all")
    p.add_argument("--model", help="a Hugging Face folder, or a name of examples/models/models.txt (default: "
                                   "examples/models/tiny)")
    p.add_argument("--data", help="folder of JSONL (default: made questions; of a named model $LAZYLLM_TEST_DATA/longbench)")
    p.add_argument("--hours", type=float, help="measure items evenly from all data sets for so long (of a named model: 3)")
    p.add_argument("--chat", action="store_true", help="put prompts in the model's chat template (of a named model: yes)")
    options = p.parse_args(arguments)
    for part in options.parts:
        if part not in (*planning.PARTS, "figures"):
            p.error(f"'{part}' is not a part; there are {', '.join(planning.PARTS)} and figures")
    if options.hours is not None and not 0 < options.hours < 1000:
        p.error(f"--hours {options.hours:g} is out of range, above 0 and below 1000")
    if options.model and not planning.is_pretrained(options.model) and not os.path.isdir(options.model):
        p.error(f"--model {options.model}: there is no such folder, nor a model of this name; known are: "
                f"{', '.join(planning.pretrained())}")
    return options


def main(arguments):
    o = options_of(arguments)
    start = time.monotonic()
    try:
        if not os.environ.get("BIN"):
            subprocess.run(["bash", planning.ROOT / "cmake/build_release.sh", "lazyllm-evaluate", "lazyllm-generate"],
                           check=True)
            os.environ["BIN"] = str(planning.ROOT / "build/release/bin")
        plan = planning.Plan(planning.settings(o.model, o.data, o.hours, o.chat, os.environ))
        plan.options.build.mkdir(parents=True, exist_ok=True)
        named = [part for part in planning.PARTS if part in o.parts]
        only_written = "figures" in o.parts
        measured = [] if only_written else named or [
            part for part in planning.PARTS if not plan.bounded or part != "dense"]
        parts = named if only_written and named else planning.PARTS
        for part in measured:
            plan.runs(part)  # so that what is wrong with the settings is found before the work
        if measured and plan.options.data is None:
            measure.make_data(plan)
        data = plan.options.data
        shown = [*plan.shown_variables(), "bash bench/quality/run.sh", *named]
        for option, value in (("model", o.model and plan.shown_model()), ("data", data and data.name), ("hours", o.hours)):
            shown += [f"--{option} {value}"] * bool(value)
        command, machine = " ".join(shown + ["--chat"] * o.chat), os.environ.get("MACHINE", "")

        # What is finished is written at once; who stops here has that.
        left_out = []

        def written():
            found, left_out[:] = write(plan, machine, command, parts)
            if not found and not measured:
                raise ValueError(f"there are no results in {plan.folder}")

        measure.Measurement(plan, os.environ.get("COMMIT", "")).measure_parts(measured, written)
        if not measured:
            written()
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
