"""The paper's figures of gradients by exponent, drawn from the result of a run."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.curves import picture
from experiments.records import recorded
from experiments.report import Result

# FP16 rounds what is smaller to zero; from there on numbers are subnormal, and normal.
_ZERO, _NORMAL = -25, -14
_TICKS = 8

Counts = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        name: that of its file, without a suffix.
        title: what it shows.
        folder: that of the experiment, whose recorded run in FP32 it is drawn from.
        key: what of a result it shows; only runs in FP32 have it.
        draw_on: called with axes and a result.
        caption: called with a result; returns what is seen, in sentences.
    """

    name: str
    title: str
    folder: Path
    key: str
    draw_on: Callable[[Any, Result], None]
    caption: Callable[[Result], str]

    def main(self, argv: Sequence[str] | None = None) -> Result:
        """Reads the flags, draws, prints the caption; returns the result shown."""
        parser = argparse.ArgumentParser(description=f"Draws {self.name}: {self.title}")
        parser.add_argument("result", nargs="?", type=Path, help="a result.json")
        parser.add_argument("--out", type=Path, default=Path(f"{self.name}.png"))
        args = parser.parse_args(argv)
        result: Result = {}
        if args.result is None:
            result = self.recorded()
        elif args.result.is_file():
            result = json.loads(args.result.read_text())
        if self.key not in result:
            parser.error(
                "The result must be that of a run in FP32, which measures its "
                f"gradients. Received: {args.result}. Run train.py --precision fp32 "
                "first."
            )
        self.draw(result, args.out)
        print(f"{args.out.resolve()}\n\n{self.caption(result)}")
        return result

    def recorded(self) -> Result:
        """Returns the recorded result."""
        return recorded(self.folder, "demo")["fp32"]

    def draw(self, result: Result, path: Path) -> None:
        """Draws a result into a file, whose suffix chooses the format."""
        with picture(path, self.title) as (axes,):
            self.draw_on(axes, result)
            # Below the axes it hides nothing.
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)


def percent(counts: Counts) -> dict[int, float]:
    """Returns the percentage of all numbers in `[2**e, 2**(e + 1))`, by e."""
    share = 100 / counts["elements"]
    return {int(e): share * n for e, n in counts["exponents"].items()}


def percent_zero(counts: Counts) -> float:
    """Returns the percentage of all numbers that are exactly zero."""
    return 100 * counts["zeros"] / counts["elements"]


def percent_between(counts: Counts, first: int, last: int) -> float:
    """Returns the percentage of all numbers in `[2**first, 2**last)`."""
    return sum(share for e, share in percent(counts).items() if first <= e < last)


def percent_below(counts: Counts, last: int) -> float:
    """Returns the percentage of all numbers below `2**last`, zeros among them."""
    below = sum(share for e, share in percent(counts).items() if e < last)
    return percent_zero(counts) + below


def draw_range(axes: Any, first: int, last: int) -> float:
    """Draws the axes of exponents, and what FP16 makes of them.

    Args:
        axes: on which exponents are drawn from e to e + 1.
        first, last: the smallest and the largest exponent.

    Returns:
        Where the bin of zeros is in the middle.
    """
    low = min(first, _ZERO - 2)
    zeros = low - 2.5
    axes.axvspan(low, _ZERO, color="#b3392f", alpha=0.12, lw=0, label="zero in FP16")
    axes.axvspan(
        _ZERO, _NORMAL, color="#d98a2b", alpha=0.15, lw=0, label="subnormal in FP16"
    )
    ticks = range(low - low % -_TICKS, last + 1, _TICKS)
    axes.set_xticks([zeros, *ticks], ["0", *(f"$2^{{{e}}}$" for e in ticks)])
    axes.set_yscale("log")
    axes.set_xlabel("magnitude")
    return zeros
