"""Trains the same network in several precisions and compares them.

python compare.py --data FILE
python compare.py --data FILE --settings all --record
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import FP32, MIXED, SETTINGS, Comparison, seeds
from experiments.paired import Margin
from experiments.report import Results, side_by_side

PSEUDO = {"pseudo-fp16": ["--precision", "pseudo-fp16"]}


def transcripts(results: Results, out: Path) -> str:
    """Returns some test utterances with what the network of every setting hears."""
    said = next(iter(results.values()))["transcripts"]["said"]
    heard = {name: result["transcripts"]["heard"] for name, result in results.items()}
    return side_by_side({"said": said, **heard})


COMPARISON = Comparison(
    folder=Path(__file__).resolve().parent,
    settings=seeds("fp32", FP32, 5) | seeds("mixed", MIXED, 5) | SETTINGS | PSEUDO,
    demo=["fp32", "mixed", "plain fp16"],
    measures=["CER (%)", "held-out CTC loss"],
    margins={"CER (%)": Margin(1, "points")},
    short=["--steps", "300"],
    show=transcripts,
)

if __name__ == "__main__":
    COMPARISON.main()
