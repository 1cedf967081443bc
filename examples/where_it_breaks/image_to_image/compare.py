"""Compares precisions of an autoencoder, and batches without loss scaling.

python examples/where_it_breaks/image_to_image/compare.py --settings all
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.compare import SETTINGS, Comparison, constant
from experiments.paired import Margin

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
NO_SCALING = ["--precision", "mixed-no-scaling"]

COMPARISON = Comparison(
    folder=HERE,
    settings={
        **SETTINGS,
        "mixed, seed 1": [*SETTINGS["mixed"], "--seed", "1"],
        **constant(8),
        "mixed, no scaling, seed 1": [*NO_SCALING, "--seed", "1"],
        **SMALLER,
    },
    demo=["fp32", "mixed", "mixed, no scaling"],
    measures=["error", "lost gradients", "gradient error"],
    # 10% of a squared error are 0.4 dB.
    margins={"error": Margin(10, "%", relative=True)},
    log_scale=True,
)

if __name__ == "__main__":
    COMPARISON.main()
