"""Draws the exponents of the activation gradients, as figure 3 of the paper does.

python figure3.py                                   # of results.jsonl
python figure3.py build/object_detection/demo/fp32/result.json --out figure_3.svg
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.exponents import (
    Figure,
    draw_range,
    percent,
    percent_between,
    percent_zero,
)
from experiments.report import Result


def draw(axes: Any, result: Result) -> None:
    """Draws the share of the gradients by exponent, with a bin for zeros."""
    bars = percent(result["gradients"])
    zeros = draw_range(axes, min(bars), max(bars))
    axes.bar([*bars], [*bars.values()], 0.9, align="edge", color="#3b6ea8")
    axes.bar(zeros, percent_zero(result["gradients"]), 0.9, color="0.6")
    axes.set_ylabel("% of all activation gradients")


def caption(result: Result) -> str:
    """Returns what is seen, beside the numbers of the paper's section 3.2."""
    found = result["gradients"]
    return (
        f"Of the {found['elements'] / 1e6:.1f} million activation gradients of a batch "
        f"after the last step in FP32, {percent_zero(found):.2g}% are zero (67% in the "
        f"paper, over all of training), {percent_between(found, -34, -32):.2g}% are in "
        f"[2^-34, 2^-32) (2%) and {percent_between(found, -24, -23):.2g}% in "
        "[2^-24, 2^-23) (2%)."
    )


FIGURE = Figure(
    name="figure_3",
    title="Activation gradients of SSD",
    folder=Path(__file__).resolve().parent,
    key="gradients",
    draw_on=draw,
    caption=caption,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Draws, and prints what FP16 loses at each loss scale."""
    gradients = FIGURE.main(argv)["gradients"]
    print(
        "\n| loss scale | activation gradients lost | error of the weight gradients |"
    )
    print("| --- | --- | --- |")
    for scale, lost in gradients["lost"].items():
        error = gradients["errors"][scale]
        print(f"| {float(scale):g} | {100 * lost:.3g}% | {100 * error:.3g}% |")


if __name__ == "__main__":
    main()
