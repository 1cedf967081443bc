"""Trains ResNet-9 on CIFAR-10 in several precisions and compares them.

python examples/image_classification/converged/compare.py --settings all
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.compare import FP32, MIXED, SETTINGS, Comparison, seeds
from experiments.paired import Margin

COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings=seeds("fp32", FP32, 5) | seeds("mixed", MIXED, 5) | SETTINGS,
    demo=["fp32", "mixed"],
    measures=["top-1"],
    margins={"top-1": Margin(1, "points")},
    curve="top_1",
    short=["--steps=390", "--warm-up=100", "--eval-every=195"],
)

if __name__ == "__main__":
    COMPARISON.main()
