"""The figures of a report: which exponents the gradients have, and FP16's range."""

import math
import os
from typing import Any

from keras_mp.diagnostics.statistics import TensorStatistics

# FP16: everything below is zero; subnormal numbers; normal numbers; above is infinity.
_ZERO, _NORMAL, _INFINITE = -25, -14, 16
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
        scale: float, the loss scale whose shift is marked.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "A plot needs matplotlib, which is not installed. Run "
            "pip install 'keras_mp[plots]'."
        ) from error

    drawn = {title: found for title, found in panels.items() if found is not None}
    seen = [e for found in drawn.values() for e in found.exponents]
    # What the scale brings in, and FP16's whole range.
    first = min([*seen, _ZERO - math.ceil(math.log2(scale))], default=_ZERO) - 2
    last = max([*seen, _INFINITE]) + 1
    figure = Figure(figsize=(8, 2.6 * max(len(drawn), 1)), layout="constrained")
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
