"""Charts of the long tables of benchmarks/results: times over those of a baseline.

Each chart has a row for each thing measured and a dot for each ratio, on a logarithmic
axis. All ratios have one direction: below 1, left of the line, ours takes less.
"""

import math
import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

Row = dict[str, str]
# A row of the chart, the name of its dots, and the ratio.
Dot = tuple[str, str, float]

WIDTH, LABELS, LINE = 760, 250, 22
COLORS = ("#4c8bf5", "#e8710a", "#2ea36a", "#b05cc6", "#d64550")


def tables(path: Path) -> list[list[Row]]:
    """Returns the Markdown tables of a file, each as rows by column name."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", path.read_text(encoding="utf-8"), re.M):
        header, _, *rows = [
            [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
            for line in table.splitlines()
        ]
        found.append([dict(zip(header, row, strict=True)) for row in rows])
    return found


def number(cell: str) -> float:
    """Returns the first number of a cell."""
    return float(re.search(r"[\d.]+", cell)[0])  # type: ignore[index]


def _gemm(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        for name in ("FP32", "FP16", "bfloat16"):
            if f"{name} out" in row:
                ratio = number(row[f"tf {name}"]) / number(row[f"{name} out"])
                yield row["M, N, K"], f"{name} result", ratio


def _layers(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        layer = re.sub(r"\(.*", "", row["layer"])
        label = f"{layer}, {row['inputs']}"
        if "keras_mp" in row:
            series = "XLA" if row["XLA"] == "yes" else "no XLA"
            yield label, series, number(row["keras_mp"]) / number(row["Keras FP16"])
            continue
        for column in ("forward", "both", "XLA: forward", "XLA: both"):
            keras_over_ours = row[column].partition("(")[2].strip("*")
            series = "XLA" if "XLA" in column else "no XLA"
            yield label, series, 1 / number(keras_over_ours)


def _update_step(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        series = row["variables"] + (", XLA" if row["XLA"] == "yes" else "")
        yield row["optimizer"], series, number(row["wrap FP32 / bare"])


def _compile_time(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        yield row[""], "XLA", number(row["ours / Keras, XLA"])
        yield row[""], "graph", number(row["graph"])


def _short_calls(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        ratio = number(row["fp16_gemm"]) / number(row["tf.matmul"])
        yield f"{row['M, N, K']}: {row['call']}", row["dtype"], ratio


def _training_step(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        whose = row["variant"].partition(",")[0]
        dtype = "bfloat16" if "bfloat16" in row["variant"] else "FP16"
        for column, suffix in (("/ FP32", ""), ("XLA: / FP32", ", XLA")):
            if whose in ("Keras", "ours") and row[column] != "-":
                yield row["model"] + suffix, f"{whose}, {dtype}", number(row[column])


def _exponent_histogram(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        ours = number(row["exponent_histogram"])
        label = f"{row['dtype']}, {row['numbers']}"
        yield label, "over bincount", ours / number(row["bincount"])
        yield label, "over XLA", ours / number(row["XLA"])


def _large_vocabularies(path: Path) -> Iterator[Dot]:
    for row in tables(path)[0]:
        label = f"{row['words']} words" + (", XLA" if row["XLA"] == "yes" else "")
        if row["setting"] != "Keras, FP32":
            yield label, row["setting"], number(row["MiB / FP32"])


# By the name of the file: what is divided by what, and the dots.
CHARTS: dict[str, tuple[str, Callable[[Path], Iterator[Dot]]]] = {
    "compile_time": ("Time to compile, over that of the Keras layer", _compile_time),
    "exponent_histogram": (
        "Time of exponent_histogram, over that of tf.math.bincount",
        _exponent_histogram,
    ),
    "gemm": ("Time of fp16_gemm, over that of tf.matmul", _gemm),
    "large_vocabularies": (
        "Memory of a training step, over that in FP32 with Keras's loss",
        _large_vocabularies,
    ),
    "layers": (
        "Time of the layer, over that of the Keras layer in the same policy",
        _layers,
    ),
    "short_calls": ("Time of an eager fp16_gemm, over that of tf.matmul", _short_calls),
    "training_step": ("Time of a training step, over that in FP32", _training_step),
    "update_step": (
        "Time of the wrapped update, over that of the bare optimizer",
        _update_step,
    ),
}


def chart(path: Path) -> str:
    """Returns the chart of a file of results, as SVG inside of a `figure`."""
    caption, dots_of = CHARTS[path.stem]
    dots = list(dots_of(path))
    labels = list(dict.fromkeys(label for label, _, _ in dots))
    series = list(dict.fromkeys(name for _, name, _ in dots))
    low = math.floor(math.log2(min(ratio for *_, ratio in dots)))
    high = max(1, math.ceil(math.log2(max(ratio for *_, ratio in dots))))

    def x(ratio: float) -> float:
        return LABELS + (math.log2(ratio) - low) / (high - low) * (WIDTH - LABELS - 20)

    top, bottom = 2 * LINE, (2 + len(labels)) * LINE
    parts = []
    for exponent in range(low, high + 1):
        at = x(2.0**exponent)
        name = f"{2**exponent}" if exponent >= 0 else f"1/{2**-exponent}"
        css = ' class="one"' if exponent == 0 else ""
        parts += [
            f'<line{css} x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>',
            f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{name}</text>',
        ]
    for i, label in enumerate(labels):
        y = top + (i + 0.5) * LINE
        parts.append(
            f'<text x="{LABELS - 12}" y="{y + 4}" text-anchor="end">'
            f"{escape(label)}</text>"
        )
        parts += [
            f'<circle cx="{x(ratio):.1f}" cy="{y}" r="4" '
            f'fill="{COLORS[series.index(name)]}"/>'
            for row, name, ratio in dots
            if row == label
        ]
    for i, name in enumerate(series):
        at = LABELS + i * (WIDTH - LABELS) / len(series)
        parts += [
            f'<circle cx="{at:.1f}" cy="{LINE - 4}" r="4" fill="{COLORS[i]}"/>',
            f'<text x="{at + 9:.1f}" y="{LINE}">{escape(name)}</text>',
        ]
    return (
        f'<figure class="chart"><svg viewBox="0 0 {WIDTH} {bottom + LINE}" role="img" '
        f'aria-label="{escape(caption)}">{"".join(parts)}</svg>'
        f"<figcaption>{escape(caption)}; lower is better. Left of the line at 1, ours "
        "takes less.</figcaption></figure>"
    )
