"""Draws the exponents of the weight gradients, as figure 2b of the paper does.

python figure2b.py                                  # of results.jsonl
python figure2b.py build/speech_recognition/demo/fp32/result.json --out figure_2b.svg
"""

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from experiments.exponents import (
    Counts,
    Figure,
    draw_range,
    percent,
    percent_below,
    percent_zero,
)
from experiments.report import Result
from matplotlib import colormaps


def samples(result: Result) -> dict[int, Counts]:
    """Returns the counts of the weight gradients, by the step they were taken after."""
    every = result["flags"]["eval_every"]
    found = result["gradients_over_training"]
    return {every * (i + 1): counts for i, counts in enumerate(found)}


def draw(axes: Any, result: Result) -> None:
    """Draws the shares by exponent, a line for each step, with a bin for zeros."""
    found = samples(result)
    lines = {step: percent(counts) for step, counts in found.items()}
    seen = {e for line in lines.values() for e in line}
    zeros = draw_range(axes, min(seen), max(seen))
    exponents = range(min(seen), max(seen) + 1)
    middles = [e + 0.5 for e in exponents]
    # Without the ends, which are too light or too dark for a page.
    shades = colormaps["viridis_r"](np.linspace(0.2, 0.7, len(lines)))
    for color, (step, line) in zip(shades, lines.items(), strict=True):
        # A line has a gap where there is no gradient.
        shares = [line.get(e, math.nan) for e in exponents]
        axes.plot(middles, shares, ".-", color=color, label=f"step {step}")
        axes.plot(zeros, percent_zero(found[step]), ".", color=color)
    axes.set_ylabel("% of all weight gradients")


def caption(result: Result) -> str:
    """Returns what is seen, beside the number of the paper's section 3.1."""
    found = samples(result)
    below = max(percent_below(counts, -24) for counts in found.values())
    first, last = min(found), max(found)
    return (
        f"At most {below:.2g}% of the {found[last]['elements']:,} weight gradients of "
        f"the batch are below 2^-24 at any of {len(found)} steps in FP32, about 5% in "
        "the paper's Mandarin model. Most frequent are those in "
        f"{_mode(found[first])} after step {first}, and in {_mode(found[last])} after "
        f"step {last}."
    )


def _mode(counts: Counts) -> str:
    shares = percent(counts)
    e = max(shares, key=shares.__getitem__)
    return f"[2^{e}, 2^{e + 1})"


FIGURE = Figure(
    name="figure_2b",
    title="Weight gradients of DeepSpeech 2 over training",
    folder=Path(__file__).resolve().parent,
    key="gradients_over_training",
    draw_on=draw,
    caption=caption,
)

if __name__ == "__main__":
    FIGURE.main()
