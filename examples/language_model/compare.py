"""Trains bigLSTM in several precisions and compares them.

python compare.py
python compare.py --settings all --steps 36000 --out build/language_model/long
python compare.py --settings all --preset share
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import (
    FP32,
    MIXED,
    NO_SCALING,
    SETTINGS,
    Comparison,
    constant,
    seeds,
)
from experiments.paired import Margin

SHARE = {
    **seeds("fp32", FP32, 3),
    **seeds("mixed", MIXED, 3),
    **seeds("mixed, no scaling", NO_SCALING, 3),
    **seeds("mixed, statistical scale", [*MIXED, "--loss-scale", "statistical"], 3),
}

COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings=SETTINGS | constant(128) | SHARE,
    demo=["fp32", "mixed", "mixed, scale 128", "mixed, no scaling"],
    measures=["held-out perplexity"],
    margins={"held-out perplexity": Margin(2, "%", relative=True)},
    curve="perplexity",
    log_scale=True,
    planned={"demo": [*SETTINGS, *constant(128)], "share": [*SHARE]},
    short=["--steps=1200", "--eval-every=200"],
)

if __name__ == "__main__":
    COMPARISON.main()
