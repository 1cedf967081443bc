"""Trains the same translator in several precisions and compares them.

python compare.py
python compare.py --settings all --data fra-eng --out build/fra-eng
python compare.py --settings all --preset long
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import (
    FP32,
    MIXED,
    SETTINGS,
    Comparison,
    constant,
    forms,
    seeds,
)
from experiments.paired import Margin
from experiments.precision import ALL_FORMS
from experiments.report import Results, side_by_side


def translations(results: Results, out: Path) -> str:
    """Returns some held-out sentences with the translation of every setting."""
    first = next(iter(results.values()))["translations"]
    found = {name: result["translations"]["greedy"] for name, result in results.items()}
    return side_by_side(
        {"English": first["english"], "French": first["french"], **found}
    )


COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings=SETTINGS | constant(128) | forms(3, ALL_FORMS),
    demo=["fp32", "mixed"],
    measures=["held-out perplexity", "BLEU greedy", "BLEU beam 5"],
    margins={
        "held-out perplexity": Margin(2, "%", relative=True),
        "BLEU greedy": Margin(1),
        "BLEU beam 5": Margin(1),
    },
    curve="perplexity",
    log_scale=True,
    planned={"long": [*seeds("fp32", FP32, 3), *seeds("mixed", MIXED, 3)]},
    show=translations,
)

if __name__ == "__main__":
    COMPARISON.main()
