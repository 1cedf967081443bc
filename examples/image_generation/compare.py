"""Trains the same DCGAN in several precisions, and shows what they generate.

python examples/image_generation/compare.py --settings all
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib.pyplot as plt
import numpy as np
from experiments.compare import SETTINGS, Comparison, slug
from experiments.report import Results

SIDE = 8


def grids(results: Results, out: Path) -> str:
    """Draws what each setting makes of the same noise, side by side."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(4 * len(results), 4.3), squeeze=False
    )
    for name, axis in zip(results, axes[0], strict=True):
        axis.imshow(grid(np.load(out / slug(name) / "sample.npz")["images"]))
        axis.set_title(name)
        axis.axis("off")
    figure.tight_layout()
    path = out / "samples.png"
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return f"Images of the same noise, not chosen: {path.resolve()}\n"


def grid(images: np.ndarray) -> np.ndarray:
    """Returns the first images as one, in a square."""
    _, height, width, depth = images.shape
    rows = images[: SIDE * SIDE].reshape(SIDE, SIDE, height, width, depth)
    return rows.swapaxes(1, 2).reshape(SIDE * height, SIDE * width, depth)


COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings=SETTINGS,
    demo=["fp32", "mixed"],
    measures=["FID", "FID of training images", "accuracy of the judge"],
    curve="discriminator_loss",
    short=["--steps=800"],
    show=grids,
)

if __name__ == "__main__":
    COMPARISON.main()
