"""Trains the same DCGAN in several precisions, and shows what they generate.

python examples/image_generation/compare.py --settings all
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import SETTINGS, Comparison
from experiments.paired import Margin
from experiments.report import Results
from image_generation.figure6 import draw, samples


def grids(results: Results, out: Path) -> str:
    """Draws what each setting makes of the same noise, side by side."""
    path = out / "samples.png"
    draw(samples(out, results), path)
    return f"Images of the same noise, not chosen: {path.resolve()}\n"


COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings=SETTINGS,
    demo=["fp32", "mixed"],
    measures=["FID", "FID of training images", "accuracy of the judge"],
    # FID has no unit, and its size depends on the judge: a tenth of it.
    margins={"FID": Margin(10, "%", relative=True)},
    curve="discriminator_loss",
    short=["--steps=800"],
    show=grids,
)

if __name__ == "__main__":
    COMPARISON.main()
