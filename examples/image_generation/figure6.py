"""Draws what each precision generates of the same noise, as figure 6 of the paper does.

python figure6.py                                   # of compare.py's folder
python figure6.py build/image_generation/demo --out figure_6.jpg
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib.pyplot as plt
import numpy as np
from experiments.compare import slug

SETTINGS = ["fp32", "mixed"]
SIDE = 8
# In pixels: an image has at least so many a side; between two grids; above them.
_IMAGE, _GAP, _TITLE = 64, 16, 32
_DPI = 100


def samples(folder: Path, settings: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns the images that the runs of some settings have kept."""
    files = {name: folder / slug(name) / "sample.npz" for name in settings}
    return {name: np.load(path)["images"] for name, path in files.items()}


def grid(images: np.ndarray) -> np.ndarray:
    """Returns the first images as one, in a square."""
    _, height, width, depth = images.shape
    rows = images[: SIDE * SIDE].reshape(SIDE, SIDE, height, width, depth)
    return rows.swapaxes(1, 2).reshape(SIDE * height, SIDE * width, depth)


def draw(images: Mapping[str, np.ndarray], path: Path) -> None:
    """Draws a grid of images for each setting, side by side, pixel by pixel."""
    grids = {name: _zoomed(grid(found)) for name, found in images.items()}
    side = max(len(pixels) for pixels in grids.values())
    width, height = len(grids) * (side + _GAP) - _GAP, side + _TITLE
    figure = plt.figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    for i, (name, pixels) in enumerate(grids.items()):
        left = i * (side + _GAP)
        figure.figimage(pixels, left, 0, origin="upper")
        center = (left + side / 2) / width, (side + _TITLE / 2) / height
        figure.text(*center, name, ha="center", va="center", fontsize=12)
    figure.savefig(path)
    plt.close(figure)


def _zoomed(pixels: np.ndarray) -> np.ndarray:
    times = max(1, SIDE * _IMAGE // len(pixels))
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path("build/image_generation/demo")
    parser.add_argument("folder", nargs="?", type=Path, default=default)
    parser.add_argument("--out", type=Path, default=Path("figure_6.png"))
    args = parser.parse_args(argv)
    try:
        images = samples(args.folder, SETTINGS)
    except FileNotFoundError as error:
        parser.error(
            "The folder must be one that compare.py has written, with samples of "
            f"{SETTINGS}. Received: {args.folder}, without {error.filename}. Run "
            "compare.py first."
        )
    draw(images, args.out)
    print(args.out.resolve())


if __name__ == "__main__":
    main()
