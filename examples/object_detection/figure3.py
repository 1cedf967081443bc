"""Draws the exponents of the activation gradients, as figure 3 of the paper does.

python figure3.py                                   # of results/demo/fp32.json
python figure3.py build/object_detection/demo/fp32/result.json --out figure3.png
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
# FP16 rounds what is smaller to zero; from there on numbers are subnormal, and normal.
_ZERO, _NORMAL = -25, -14


def draw(gradients: Mapping[str, Any], path: Path) -> None:
    """Draws the share of the gradients by exponent, with a bin for zeros.

    Args:
        gradients: what `measure` returned.
        path: of the picture.
    """
    share = 100 / gradients["elements"]
    bars = {int(e): share * count for e, count in gradients["exponents"].items()}
    first, last = min(bars), max(bars)
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.bar([*bars], [*bars.values()], 0.9, align="edge", color="#3b6ea8")
    axes.bar(first - 3, share * gradients["zeros"], 0.9, align="edge", color="0.6")
    axes.axvspan(
        min(first, _ZERO),
        _ZERO,
        color="#b3392f",
        alpha=0.12,
        lw=0,
        label="zero in FP16",
    )
    axes.axvspan(
        _ZERO, _NORMAL, color="#d98a2b", alpha=0.15, lw=0, label="subnormal in FP16"
    )
    ticks = range(first - first % -8, last + 1, 8)
    axes.set_xticks([first - 2.5, *ticks], ["0", *(f"$2^{{{e}}}$" for e in ticks)])
    axes.set_yscale("log")
    axes.set_xlabel("magnitude")
    axes.set_ylabel("% of all activation gradients")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the flags, draws, and prints what FP16 loses at each loss scale."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "result", nargs="?", type=Path, default=HERE / "results" / "demo" / "fp32.json"
    )
    parser.add_argument("--out", type=Path, default=Path("figure3.png"))
    args = parser.parse_args(argv)
    result = json.loads(args.result.read_text()) if args.result.is_file() else {}
    if "gradients" not in result:
        parser.error(
            "The result must be that of a run in FP32, which measures its gradients. "
            f"Received: {args.result}. Run train.py --precision fp32 first."
        )
    gradients = result["gradients"]
    draw(gradients, args.out)
    print("| loss scale | activation gradients lost | error of the weight gradients |")
    print("| --- | --- | --- |")
    for scale, lost in gradients["lost"].items():
        error = gradients["errors"][scale]
        print(f"| {float(scale):g} | {100 * lost:.3g}% | {100 * error:.3g}% |")
    print(f"\n{args.out.resolve()}")


if __name__ == "__main__":
    main()
