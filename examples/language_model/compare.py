"""Trains bigLSTM in several precisions and compares them.

python compare.py
python compare.py --settings all --steps 36000 --out build/language_model/long
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import MIXED, SETTINGS, Comparison, constant, seeds
from experiments.paired import Margin

# Divides the sum over 20 words and mean over 32 sentences by 1024, which makes it this
# worker's part of a mean over 32,768 words, such as one of 51 workers computes.
_SMALL = [*MIXED, "--loss-scale", str(2**-10)]

COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings={
        **SETTINGS,
        **constant(128),
        **seeds("mixed, scale 2^-10", _SMALL, 3),
    },
    demo=["fp32", "mixed", "mixed, scale 128", "mixed, no scaling"],
    measures=["held-out perplexity"],
    margins={"held-out perplexity": Margin(2, "%", relative=True)},
    curve="perplexity",
    log_scale=True,
    short=["--steps=1200", "--eval-every=200"],
)

if __name__ == "__main__":
    COMPARISON.main()
