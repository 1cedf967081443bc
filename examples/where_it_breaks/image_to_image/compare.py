"""Compares precisions of an autoencoder, and batches without loss scaling.

python examples/where_it_breaks/image_to_image/compare.py --settings all
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.compare import (
    FP32,
    MIXED,
    NO_SCALING,
    SETTINGS,
    Comparison,
    constant,
    forms,
    seeds,
)
from experiments.paired import Margin
from experiments.precision import SMALLEST_FORMS

HERE = Path(__file__).resolve().parent

# Where the damage begins: smaller batches divide the gradients by less.
SMALLER = {
    f"{name}, batch {batch}": ["--precision", precision, "--batch", str(batch)]
    for batch in (32, 16)
    for name, precision in {
        "fp32": "fp32",
        "mixed, no scaling": "mixed-no-scaling",
    }.items()
}

COMPARISON = Comparison(
    folder=HERE,
    settings={
        **seeds("fp32", FP32, 5),
        **seeds("mixed", MIXED, 5),
        **seeds("mixed, no scaling", NO_SCALING, 5),
        **SETTINGS,
        **forms(3, SMALLEST_FORMS),
        **constant(8),
        **SMALLER,
    },
    demo=["fp32", "mixed", "mixed, no scaling"],
    measures=["error", "lost gradients", "gradient error"],
    # 10% of a squared error are 0.4 dB.
    margins={"error": Margin(10, "%", relative=True)},
    log_scale=True,
    groups=["batch 64", "batch 32", "batch 16"],
)

if __name__ == "__main__":
    COMPARISON.main()
