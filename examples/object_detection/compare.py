"""Trains the same detector in several precisions and compares them.

python compare.py
python compare.py --settings all --out build/object_detection/all
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import MIXED, SETTINGS, Comparison, constant
from experiments.paired import Margin

# The scale of a loss that is divided by 4096 times as much, and not scaled.
_SMALL = [*MIXED, "--loss-scale", str(2**-12)]

COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings=SETTINGS | constant(8) | {"mixed, scale 2^-12": _SMALL},
    demo=["fp32", "mixed", "mixed, no scaling"],
    measures=["mAP", "AP Platelets", "AP RBC", "AP WBC"],
    margins={"mAP": Margin(0.02)},
    short=["--steps", "60", "--eval-every", "20", "--warm-up", "20"],
)

if __name__ == "__main__":
    COMPARISON.main()
