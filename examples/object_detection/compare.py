"""Trains the same detector in several precisions and compares them.

python compare.py
python compare.py --settings all --out build/object_detection/all
python compare.py --preset pretrained_demo

For the last one pretrain.py trains the backbone first, where that has not been done.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import (
    FP32,
    MIXED,
    SETTINGS,
    Comparison,
    constant,
    run_script,
    seeds,
)
from experiments.paired import Margin

# The scale of a loss that is divided by 4096 times as much, and not scaled.
_SMALL = [*MIXED, "--loss-scale", str(2**-12)]
OF_ALL = SETTINGS | constant(8) | {"mixed, scale 2^-12": _SMALL}
OF_FASTER_RCNN = seeds("fp32", FP32, 5) | seeds("mixed", MIXED, 5) | OF_ALL

HERE = Path(__file__).resolve().parent


def pretrain(flags: list[str]) -> None:
    """Trains the weights that the settings of a preset start from, if it has some.

    Args:
        flags: of the settings, the preset first.
    """
    preset = json.loads((HERE / "presets" / f"{flags[1]}.json").read_text())
    if "start" in preset and not Path(preset["start"]).is_file():
        run_script(HERE / "pretrain.py")


COMPARISON = Comparison(
    folder=HERE,
    settings=OF_FASTER_RCNN,
    demo=["fp32", "mixed", "mixed, no scaling"],
    measures=["mAP", "AP Platelets", "AP RBC", "AP WBC"],
    margins={"mAP": Margin(0.02)},
    planned={"demo": [*OF_ALL], "pretrained_demo": [*OF_ALL]},
    short=["--steps", "60", "--eval-every", "20", "--warm-up", "20"],
    prepare=pretrain,
)

if __name__ == "__main__":
    COMPARISON.main()
