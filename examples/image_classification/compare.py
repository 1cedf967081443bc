"""Trains networks in several precisions and compares them, one network at a time.

python compare.py
python compare.py --network alexnet vgg-d --settings all
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import SETTINGS, Comparison
from image_classification.model import NETWORKS

HERE = Path(__file__).resolve().parent


def comparison(network: str) -> Comparison:
    """Returns what is compared of a network."""
    return Comparison(
        folder=HERE,
        settings={
            f"{network}, {name}": ["--network", network, *flags]
            for name, flags in SETTINGS.items()
        },
        demo=[f"{network}, fp32", f"{network}, mixed"],
        measures=["top-1"],
        curve="top_1",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Compares the precisions of each network that the flags name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=["resnet-50"])
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--out", type=Path)
    args, flags = parser.parse_known_args(argv)
    flags += ["--preset", args.preset]
    folder = args.out or Path("build") / HERE.name / args.preset
    for network in args.network:
        comparison(network).main([*flags, "--out", str(folder / network)])


if __name__ == "__main__":
    main()
