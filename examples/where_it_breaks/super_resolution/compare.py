"""Compares precisions of a network that enlarges images.

python examples/where_it_breaks/super_resolution/compare.py --settings all
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.compare import (
    FP32,
    MIXED,
    NO_MASTERS,
    NO_SCALING,
    SETTINGS,
    Comparison,
    forms,
    seeds,
)
from experiments.paired import Margin
from experiments.precision import SMALLEST_FORMS

COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings={
        **seeds("fp32", FP32, 5),
        **seeds("mixed", MIXED, 5),
        **seeds("mixed, no scaling", NO_SCALING, 5),
        **seeds("mixed, no masters", NO_MASTERS, 5),
        **SETTINGS,
        **forms(3, SMALLEST_FORMS),
    },
    demo=["fp32", "mixed", "mixed, no scaling"],
    measures=["PSNR", "lost gradients", "gradient error"],
    margins={"PSNR": Margin(0.2, "dB")},
    log_scale=True,
)

if __name__ == "__main__":
    COMPARISON.main()
