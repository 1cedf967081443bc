"""Curves of training runs, in small multiples that share their colours."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.paired import label
from experiments.report import Result, Results

# Legible on white and on black: the background of a picture is that of its page.
INK = "#767676"
STYLE = {
    "svg.hashsalt": "keras_mp",
    "font.size": 11,
    "axes.titlesize": 11,
    "savefig.transparent": True,
    **dict.fromkeys(
        ["text.color", "axes.labelcolor", "axes.edgecolor", "grid.color"], INK
    ),
    **dict.fromkeys(["xtick.color", "ytick.color"], INK),
    "legend.frameon": False,
}
WIDTH, HEIGHT = 8.5, 3.2
# FP32 is grey, and no other setting is. None is too dark or too light for a page.
PALETTE = [
    *("#2b8cd6", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#b5651d", "#e377c2"),
    *("#a0a000", "#17becf"),
]


@dataclass(frozen=True)
class Panel:
    """Axes with the curves of some settings.

    Attributes:
        title: what stands above them.
        runs: by setting, those of its seeds.
        column: of the log; the held-out numbers are those of `val_` and it.
        log_scale: whether the numbers are drawn on a logarithmic scale.
    """

    title: str
    runs: Mapping[str, Sequence[Result]]
    column: str
    log_scale: bool = False


def by_setting(results: Results, group: str = "") -> dict[str, list[Result]]:
    """Returns the runs of each setting, whose names get rid of their seed and group."""
    found: dict[str, list[Result]] = {}
    for name, result in results.items():
        found.setdefault(label(name, group), []).append(result)
    return found


def panels(
    results: Results, column: str, log_scale: bool = False, groups: Sequence[str] = ()
) -> list[Panel]:
    """Returns a panel for each group of settings that there is.

    Args:
        results: by setting.
        column, log_scale: as of `Panel`.
        groups: parts of the names of settings that are drawn apart from others. A name
            with none of them is of the first.
    """
    what = groups or [f"{column} in training (lines) and on held-out data (points)"]
    parted: dict[str, dict[str, Result]] = {group: {} for group in what}
    for name, result in results.items():
        group = next((g for g in what if g in name.split(", ")), what[0])
        parted[group][name] = result
    return [
        Panel(group, by_setting(found, group), column, log_scale)
        for group, found in parted.items()
        if found
    ]


def draw(path: Path, drawn: Sequence[Panel]) -> None:
    """Draws panels into a file, whose suffix chooses the format."""
    color = colors(name for panel in drawn for name in panel.runs)
    with picture(path, *(panel.title for panel in drawn)) as axes:
        for each, panel in zip(axes, drawn, strict=True):
            for name, runs in panel.runs.items():
                _draw(each, runs, panel.column, color[name])
            if panel.log_scale:
                each.set_yscale("log")
            each.set_ylabel(panel.column.replace("_", " "))
            each.set_xlabel("training step")
            each.grid(True, alpha=0.3)
        handles = [plt.Line2D([], [], color=c, label=name) for name, c in color.items()]
        legend = axes[0].figure.legend
        legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))


@contextlib.contextmanager
def picture(path: Path, *titles: str) -> Iterator[list[Any]]:
    """Gives axes to draw on, one for each title, and saves them.

    The same drawing makes the same SVG: it has no date, and no random names.
    """
    with plt.rc_context(STYLE):
        columns = min(len(titles), 2)
        rows = -(-len(titles) // columns)
        height = 1 + rows * HEIGHT if len(titles) > 1 else 4.8
        figure = plt.figure(figsize=(WIDTH, height), layout="constrained")
        yield [
            figure.add_subplot(rows, columns, place, title=title)
            for place, title in enumerate(titles, start=1)
        ]
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=120, metadata=metadata)
        plt.close(figure)


def colors(names: Iterable[str]) -> dict[str, str]:
    """Returns a color for each setting: grey for FP32, and no color twice.

    Raises:
        ValueError: there are more settings than colors.
    """
    others = [name for name in dict.fromkeys(names) if name != "fp32"]
    found = {"fp32": INK} | dict(zip(others, PALETTE, strict=False))
    if len(others) > len(PALETTE):
        raise ValueError(
            f"A picture has colors for {len(PALETTE)} settings besides FP32. Received: "
            f"{others}. Draw some of them apart, as `groups`."
        )
    return found


def _draw(axes: Any, runs: Sequence[Result], column: str, color: str) -> None:
    """Draws the mean of the seeds, and from the lowest to the highest of them."""
    numbers = np.array([[row[column] for row in run["log"]] for run in runs])
    every = runs[0]["flags"]["eval_every"]
    steps = every * np.arange(1, numbers.shape[1] + 1)
    axes.plot(steps, numbers.mean(axis=0), color=color)
    if len(runs) > 1:
        low, high = numbers.min(axis=0), numbers.max(axis=0)
        axes.fill_between(steps, low, high, color=color, alpha=0.25, lw=0)
    held_out = [
        [row.get(f"val_{column}", np.nan) for row in run["log"]] for run in runs
    ]
    if not np.isnan(held_out).all():
        axes.plot(steps, np.mean(held_out, axis=0), "o", color=color, markersize=4)
