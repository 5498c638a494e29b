"""Line charts as self-contained SVG: panels in a grid, one legend for all."""

import math
from dataclasses import dataclass
from html import escape

# Okabe and Ito's colours, which colour-blind people can tell apart, without the yellow that white swallows; each with
# a marker of its own.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
MARKERS = ("circle", "square", "diamond", "up", "down", "cross", "plus")

LEFT, RIGHT, TOP, BOTTOM = 52, 14, 30, 42
LEGEND_ROW = 22


@dataclass
class Line:
    name: str
    points: list  # of (x, y)
    style: int  # which colour and marker
    markers: bool = True


@dataclass
class Panel:
    title: str
    lines: list


@dataclass
class Chart:
    title: str
    x_label: str
    y_label: str
    panels: list
    columns: int = 4
    panel_size: tuple = (270, 200)  # pixels
    x_range: tuple = None  # None: from the points
    y_range: tuple = None


def marker(style, x, y):
    shape, colour, r = MARKERS[style % len(MARKERS)], COLOURS[style % len(COLOURS)], 4

    def polygon(*corners):
        points = " ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in corners)
        return f'<polygon points="{points}" fill="{colour}"/>'

    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}"/>'
    if shape == "square":
        return polygon((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9))
    if shape == "diamond":
        return polygon((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0))
    if shape == "up":
        return polygon((0, -1.2), (1.15, 0.9), (-1.15, 0.9))
    if shape == "down":
        return polygon((0, 1.2), (1.15, -0.9), (-1.15, -0.9))
    d = r * (0.9 if shape == "cross" else 1.2)
    ends = ((-d, -d, d, d), (-d, d, d, -d)) if shape == "cross" else ((-d, 0, d, 0), (0, -d, 0, d))
    path = "".join(f"M{x + a:.1f},{y + b:.1f}L{x + c:.1f},{y + e:.1f}" for a, b, c, e in ends)
    return f'<path d="{path}" stroke="{colour}" stroke-width="2.4" fill="none"/>'


def steps(low, high):
    """Four to six round numbers from `low` to `high`."""
    size = 10 ** math.floor(math.log10((high - low) / 4))
    size *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (size * factor) <= 6)
    first = math.ceil(low / size - 1e-9)
    return [i * size for i in range(first, math.floor(high / size + 1e-9) + 1)]


def limits(chart, axis):
    given = (chart.x_range, chart.y_range)[axis]
    if given is not None:
        return given
    values = [point[axis] for panel in chart.panels for line in panel.lines for point in line.points]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1, high + 1)


def text(x, y, content, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(content)}</text>'


def draw_panel(panel, chart, left, top):
    (x_low, x_high), (y_low, y_high) = limits(chart, 0), limits(chart, 1)
    width, height = chart.panel_size[0] - LEFT - RIGHT, chart.panel_size[1] - TOP - BOTTOM
    left, top = left + LEFT, top + TOP

    def place(point):
        return (left + (point[0] - x_low) / (x_high - x_low) * width,
                top + height - (point[1] - y_low) / (y_high - y_low) * height)

    parts = [text(left + width / 2, top - 10, panel.title, more=' font-weight="bold"')]
    for value in steps(x_low, x_high):
        x, _ = place((value, y_low))
        parts.append(f'<path d="M{x:.1f},{top}V{top + height}" stroke="#ddd"/>')
        parts.append(text(x, top + height + 15, f"{value:g}"))
    for value in steps(y_low, y_high):
        _, y = place((x_low, value))
        parts.append(f'<path d="M{left},{y:.1f}H{left + width}" stroke="#ddd"/>')
        parts.append(text(left - 6, y + 4, f"{value:g}", "end"))
    parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>')
    parts.append(text(left + width / 2, top + height + 32, chart.x_label))
    parts.append(text(0, 0, chart.y_label,
                      more=f' transform="translate({left - 38:.1f},{top + height / 2:.1f}) rotate(-90)"'))
    for line in reversed(panel.lines):  # the first one on top
        places = [place(point) for point in line.points]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        colour = COLOURS[line.style % len(COLOURS)]
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if line.markers:
            parts += [marker(line.style, *point) for point in places]
    return parts


def svg(chart):
    """The chart as text of an SVG file. The legend stands below, names in the order of the lines."""
    columns = min(chart.columns, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    panel_width, panel_height = chart.panel_size
    width = columns * panel_width
    legend = list({line.name: line for panel in chart.panels for line in panel.lines}.values())
    entry = max(len(line.name) for line in legend) * 7 + 44
    across = max(1, min(len(legend), int((width - 20) // entry)))
    height = 28 + rows * panel_height + math.ceil(len(legend) / across) * LEGEND_ROW + 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="sans-serif" font-size="12" fill="#222" role="img">',
             f"<title>{escape(chart.title)}</title>", f'<rect width="{width}" height="{height}" fill="#fff"/>',
             text(width / 2, 20, chart.title, more=' font-size="14" font-weight="bold"')]
    for i, panel in enumerate(chart.panels):
        parts += draw_panel(panel, chart, i % columns * panel_width, 28 + i // columns * panel_height)
    start = (width - across * entry) / 2
    for i, line in enumerate(legend):
        x = start + i % across * entry
        y = 28 + rows * panel_height + i // across * LEGEND_ROW + 12
        colour = COLOURS[line.style % len(COLOURS)]
        parts.append(f'<path d="M{x:.1f},{y}h26" stroke="{colour}" stroke-width="1.8"/>')
        if line.markers:
            parts.append(marker(line.style, x + 13, y))
        parts.append(text(x + 32, y + 4, line.name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"
