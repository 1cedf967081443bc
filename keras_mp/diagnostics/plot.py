"""The figures: which exponents the gradients have, and what FP16 loses of them."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_mp.diagnostics.statistics import TensorStatistics

# FP16: everything below is zero; subnormal numbers; normal numbers; above is infinity.
_ZERO, _NORMAL, _INFINITE = -25, -14, 16
_SMALLEST_SHARE = 1e-6
_BLUE, _ORANGE, _RED = "#3b6ea8", "#d98a2b", "#b3392f"


def plot_exponents(
    path: str | os.PathLike[str],
    panels: dict[str, TensorStatistics | None],
    scale: float,
) -> None:
    """Draws a histogram of exponents for each tensor, one below the other.

    Args:
        path: of the file to write; its suffix chooses the format.
        panels: the statistics, by the title of their panel.
        scale: float, the loss scale; its shift is marked.

    Raises:
        ImportError: matplotlib is not installed.
    """
    drawn = {title: found for title, found in panels.items() if found is not None}
    seen = [e for found in drawn.values() for e in found.exponents]
    # What the scale brings in, and FP16's whole range.
    first = min([*seen, _ZERO - math.ceil(math.log2(scale))], default=_ZERO) - 2
    last = max([*seen, _INFINITE]) + 1
    figure = _new_figure(8, 2.6 * max(len(drawn), 1))
    all_axes = figure.subplots(max(len(drawn), 1), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, statistics) in zip(all_axes, drawn.items(), strict=False):
        _draw(axes, title, statistics, first - 2)
        if title.endswith("gradients"):
            _mark(axes, scale)
        axes.legend(loc="upper right", fontsize=8, frameon=False)
    ticks = list(range(first - first % 8 + 8, last + 1, 8))
    all_axes[-1].set_xticks(
        [first - 2, *ticks], ["0", *(f"$2^{{{e}}}$" for e in ticks)]
    )
    all_axes[-1].set_xlim(first - 3, last + 1)
    figure.savefig(path, dpi=120)


def plot_lost(
    path: str | os.PathLike[str],
    steps: Sequence[int],
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
) -> None:
    """Draws heat maps, layer by step, of the share that FP16 loses.

    White is a share below 1e-6, and grey where there was nothing to lose.

    Args:
        path: of the file to write; its suffix chooses the format.
        steps: the numbers of the steps.
        panels: by the title of a map, and in it by the layer or weight: the share lost
            at each step, or None if there was nothing to lose.

    Raises:
        ImportError: matplotlib is not installed.
    """
    drawn = {title: rows for title, rows in panels.items() if rows}
    heights = [max(len(rows), 4) for rows in drawn.values()]
    figure = _new_figure(8, 1 + 0.22 * sum(heights) + 0.6 * len(heights))
    all_axes = figure.subplots(
        max(len(drawn), 1), 1, squeeze=False, height_ratios=heights or None
    )[:, 0]
    for axes, (title, rows) in zip(all_axes, drawn.items(), strict=False):
        _draw_map(figure, axes, title, steps, rows)
    if drawn:
        all_axes[-1].set_xlabel("step")
    figure.savefig(path, dpi=120)


def _draw_map(
    figure: Any,
    axes: Any,
    title: str,
    steps: Sequence[int],
    rows: Mapping[str, Sequence[float | None]],
) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    shares = np.array([list(row) for row in rows.values()], dtype=float)
    colors = colormaps["magma_r"].with_extremes(under="white", bad="0.85")
    image = axes.imshow(
        # A log scale has no zero: it is below the smallest share, and white.
        np.where(shares == 0, _SMALLEST_SHARE / 2, shares),
        norm=LogNorm(_SMALLEST_SHARE, 1),
        cmap=colors,
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_yticks(range(len(rows)), [_shortened(row) for row in rows], fontsize=7)
    shown = range(0, len(steps), math.ceil(len(steps) / 8))
    axes.set_xticks(shown, [str(steps[i]) for i in shown], fontsize=8)
    axes.set_title(title, loc="left", fontsize=10)
    figure.colorbar(image, ax=axes, extend="min")


def _shortened(path: str, size: int = 40) -> str:
    return path if len(path) <= size else "..." + path[3 - size :]


def _new_figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "A plot needs matplotlib, which is not installed. Run "
            "pip install 'keras_mp[plots]'."
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _draw(axes: Any, title: str, found: TensorStatistics, zeros_at: int) -> None:
    share = 100 / max(found.elements, 1)
    axes.axvspan(_NORMAL, _INFINITE, color=_BLUE, alpha=0.12, lw=0, label="FP16 normal")
    axes.axvspan(
        _ZERO, _NORMAL, color=_ORANGE, alpha=0.15, lw=0, label="FP16 subnormal"
    )
    for e, count in found.exponents.items():
        color = _BLUE if _ZERO <= e < _INFINITE else _RED
        axes.bar(e + 0.5, share * count, 0.9, color=color)
    axes.bar(zeros_at, share * found.zeros, 0.9, color="0.6")
    axes.set_ylabel("% of all")
    axes.set_title(
        f"{title}: {share * found.lost:.2f}% become zero in FP16",
        loc="left",
        fontsize=10,
    )


def _mark(axes: Any, scale: float) -> None:
    shift = math.log2(scale)
    axes.axvline(
        _ZERO - shift, color=_RED, ls="--", label=f"kept at loss scale 2^{shift:g}"
    )
