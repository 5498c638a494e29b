#!/usr/bin/env python3
"""Writes how far presets agree with the dense run, against their ideal speedup, as a table and a picture.

agreement.py [--out FOLDER] PRESETS…: the files that lazyllm-calibrate has written."""

import argparse
import json
import pathlib
import sys

import plot
from quality import with_section

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import make_tables  # noqa: E402

SECTION = "quality-agreement"
# (least ideal speedup, most KL or None, least share of equal tokens)
BARS = ((2.34, 0.02, 0.97), (3.0, None, 0.93))


def read(path):
    """The model's name and its presets, from the slowest to the fastest."""
    file = json.loads(pathlib.Path(path).read_text())
    return file["model"], sorted(file["presets"].items(), key=lambda preset: preset[1]["measured"]["ideal_ttft_speedup"])


def bar_met(measured):
    """The strictest bar at this speedup as a cell of the table."""
    held, speedup = measured["held_out"], measured["ideal_ttft_speedup"]
    bars = [bar for bar in BARS if speedup >= bar[0]]
    if not bars:
        return "no bar"
    _, kl, equal = bars[-1]
    return "yes" if (kl is None or held["kl"] <= kl) and held["top1"] >= equal else "no"


def table(models):
    rows = ["| model | preset | ideal | measured TTFT | revived | KL, held out | KL, searched | equal, held out | "
            "equal, searched | bar met |", "| --- " * 10 + "|"]
    for name, presets in models:
        for preset, values in presets:
            measured = values["measured"]
            cells = [f"{measured[part]['kl']:.3f} ({measured[part]['kl_95%'][0]:.3f} to {measured[part]['kl_95%'][1]:.3f})"
                     for part in ("held_out", "searched")]
            cells += [f"{100 * measured[part]['top1']:.1f} % ({100 * measured[part]['top1_95%'][0]:.0f} to "
                      f"{100 * measured[part]['top1_95%'][1]:.0f})" for part in ("held_out", "searched")]
            rows.append(f"| {name} | {preset} | {measured['ideal_ttft_speedup']:.2f}x | {measured['ttft_speedup']:.2f}x | "
                        f"{make_tables.revived(values)} | " + " | ".join(cells) + f" | {bar_met(measured)} |")
    return "\n".join(rows)


def chart(models):
    def panel(title, value, bars):
        lines = [plot.Line("bar", bars, 4)]
        for style, (name, presets) in enumerate(models):
            for part, words in (("held_out", "held out"), ("searched", "searched")):
                points = [(1.0, value({"kl": 0, "top1": 1}))]
                points += [(p["measured"]["ideal_ttft_speedup"], value(p["measured"][part])) for _, p in presets]
                lines.append(plot.Line(f"{name}, {words}", points, 2 * style + (part == "searched")))
        return plot.Panel(title, lines)

    panels = [panel("KL (1/100 nat a token)", lambda m: 100 * m["kl"],
                    [(speedup, 100 * kl) for speedup, kl, _ in BARS if kl is not None]),
              panel("likeliest tokens that differ (%)", lambda m: 100 * (1 - m["top1"]),
                    [(speedup, 100 * (1 - equal)) for speedup, _, equal in BARS])]
    return plot.Chart("Presets against the dense run", "ideal TTFT speedup (x)", "", panels, panel_size=(430, 280))


def main(arguments):
    p = argparse.ArgumentParser(prog="agreement.py", description="Table and picture of how far presets agree.")
    p.add_argument("presets", nargs="+", type=pathlib.Path, metavar="PRESETS", help="files of lazyllm-calibrate")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs"), help="folder of document and picture")
    o = p.parse_args(arguments)
    try:
        models = [read(path) for path in o.presets]
        document = o.out / "benchmarks.md"
        picture = f"{SECTION}.svg"
        content = f"{table(models)}\n\n![Presets against the dense run]({picture})"
        text = document.read_text() if document.exists() else "# Benchmarks\n"
        text = with_section(text, SECTION, "Agreement of the presets", content)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"agreement.py: {'missing entry ' if isinstance(error, KeyError) else ''}{error}")
    (o.out / picture).write_text(plot.svg(chart(models)))
    document.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
