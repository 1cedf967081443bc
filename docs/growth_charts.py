"""Charts of how cost grows: benchmarks/growth.py, on axes that are both logarithmic.

There each law cost ~ size^p is a straight line, and the steeper it is, the faster the
cost grows. A figure has the time of a step on its left, and the memory on its right.
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from charts import COLORS, LINE, WIDTH, Row, number, tables

# Size, cost, and whether it was counted, not measured.
Point = tuple[float, float, bool]

HEIGHT, MARGIN, GAP = 200, 60, 20
PANELS = {"time": "step, ms", "memory": "peak, MiB"}


def growth_charts(path: Path) -> str:
    """Returns a figure for each table of a file of results, but the last, the laws."""
    *grown, laws = tables(path)
    return "\n\n".join(_figure(rows, laws) for rows in grown)


def _figure(rows: Sequence[Row], laws: Sequence[Row]) -> str:
    column = next(iter(rows[0]))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    parts = []
    for i, name in enumerate(variants):
        at = MARGIN + i * (WIDTH - MARGIN) / len(variants)
        parts += [
            f'<circle cx="{at:.1f}" cy="{LINE - 4}" r="4" fill="{COLORS[i]}"/>',
            f'<text x="{at + 9:.1f}" y="{LINE}">{escape(name)}</text>',
        ]
    for i, what in enumerate(PANELS.values()):
        lines = [
            _points([row for row in rows if row["variant"] == name], column, what)
            for name in variants
        ]
        parts += _panel(i * WIDTH / 2, what, column, lines)
    caption = f"{_caption(column, laws)} Lower is better. Both axes are logarithmic."
    if any(row["step, ms"] == "counted" for row in rows):
        caption += " Rings are counted, not measured."
    height = HEIGHT + 5 * LINE
    return (
        f'<figure class="chart"><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(f"Cost over {column}")}">{"".join(parts)}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _points(rows: Sequence[Row], column: str, what: str) -> list[Point]:
    return [
        (number(row[column]), number(row[what]), row["step, ms"] == "counted")
        for row in rows
        if row[what] != "counted"
    ]


def _panel(
    left: float, what: str, column: str, lines: Sequence[Sequence[Point]]
) -> list[str]:
    """Returns the elements of one panel, `left` units from the left edge."""
    points = [point for line in lines for point in line]
    sizes = sorted({size for size, *_ in points})
    costs = [cost for _, cost, _ in points]
    # Whole powers of two, so that any axis has two lines at least.
    low = math.floor(math.log2(min(costs)))
    high = max(low + 1, math.ceil(math.log2(max(costs))))
    top, bottom = 3 * LINE, 3 * LINE + HEIGHT
    start, end = left + MARGIN, left + WIDTH / 2 - GAP

    def x(size: float) -> float:
        span = math.log(sizes[-1] / sizes[0])
        return start + math.log(size / sizes[0]) / span * (end - start)

    def y(cost: float) -> float:
        return bottom - (math.log2(cost) - low) / (high - low) * HEIGHT

    parts = []
    step = math.ceil((high - low) / 6)
    for power in range(low, high + 1, step):
        at = y(2.0**power)
        parts += [
            f'<line x1="{start}" x2="{end}" y1="{at:.1f}" y2="{at:.1f}"/>',
            f'<text x="{start - 8}" y="{at + 4:.1f}" text-anchor="end">'
            f"{2.0**power:g}</text>",
        ]
    parts += [
        f'<text x="{x(size):.1f}" y="{bottom + 18}" text-anchor="middle">'
        f"{size:g}</text>"
        for size in sizes
    ]
    middle = (start + end) / 2
    parts += [
        f'<text x="{start}" y="{top - 12}" text-anchor="middle">{escape(what)}</text>',
        f'<text x="{middle:.1f}" y="{bottom + 36}" text-anchor="middle">'
        f"{escape(column)}</text>",
    ]
    for color, line in zip(COLORS, lines, strict=False):
        places = [(x(size), y(cost), counted) for size, cost, counted in line]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, counted in places if not counted)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" '
            f'fill="{"none" if counted else color}" stroke="{color}"/>'
            for a, b, counted in places
        ]
    return parts


def _caption(column: str, laws: Sequence[Row]) -> str:
    """Tells the laws of each variant."""
    over = column.partition(",")[0]
    exponents = {row.pop("exponent of"): row for row in map(dict, laws)}
    told = [
        f"{what} ~ {over}^p with p = "
        + ", ".join(
            f"{p} ({name})" for name, p in exponents[f"{what} over {over}"].items()
        )
        for what in PANELS
    ]
    return f"Cost over {column}: {'; '.join(told)}."
