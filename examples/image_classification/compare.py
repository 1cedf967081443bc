"""Trains networks in several precisions and compares them.

python compare.py
python compare.py --settings all
python compare.py --settings "vgg-d, fp32" "vgg-d, mixed" --steps 1000
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import NO_MASTERS, SETTINGS, Comparison, forms, seeds
from experiments.paired import Margin
from experiments.precision import ALL_FORMS
from image_classification.model import NETWORKS

# Beside `SETTINGS`.
MORE = {
    "alexnet": forms(3, ALL_FORMS),
    "inception-v3": seeds("mixed, no masters", NO_MASTERS, 3),
}

COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings={
        f"{network}, {name}": ["--network", network, *flags]
        for network in NETWORKS
        for name, flags in (SETTINGS | MORE.get(network, {})).items()
    },
    demo=[
        f"{network}, {name}"
        for network in ("alexnet", "resnet-50")
        for name in ("fp32", "mixed")
    ],
    measures=["top-1"],
    margins={"top-1": Margin(1, "points")},
    curve="top_1",
    groups=[*NETWORKS],
    pooled=True,
    short=["--steps=200", "--decay-every=150", "--test-images=2000"],
)

if __name__ == "__main__":
    COMPARISON.main()
