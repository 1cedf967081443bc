"""Compares precisions in fine-tuning, with and without masters.

    python examples/where_it_breaks/fine_tuning/compare.py --settings all

The classifier is pre-trained first, where that has not been done.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.compare import (
    FP32,
    MIXED,
    NO_MASTERS,
    SETTINGS,
    Comparison,
    forms,
    run_script,
    seeds,
)
from experiments.flags import build_folder
from experiments.paired import Margin

HERE = Path(__file__).resolve().parent

SGD = ["--optimizer", "sgd", "--learning-rate", "1e-3"]
# At a learning rate of 0 only the statistics of batch normalization change.
STATISTICS = [*FP32, "--learning-rate", "0"]
ROUNDED = [*FP32, "--round-weights"]


def pretrain(flags: list[str]) -> None:
    """Trains the weights that all settings begin with, unless they are there.

    Args:
        flags: of the settings; with `--start` they begin with other weights.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--start")
    args, _ = parser.parse_known_args(flags)
    is_there = (build_folder(HERE) / "pretraining" / "result.json").is_file()
    if not args.start and not is_there:
        flags = ["--preset", "pretraining", *FP32, "--data", args.data]
        run_script(HERE / "train.py", *flags)


COMPARISON = Comparison(
    folder=HERE,
    settings={
        **seeds("fp32", FP32, 5),
        **seeds("mixed", MIXED, 5),
        **SETTINGS,
        **seeds("mixed, no masters", NO_MASTERS, 5),
        **seeds("rounded weights", ROUNDED, 5),
        **forms(5),
        "statistics alone": STATISTICS,
        **{
            f"sgd, {name}": [*flags, *SGD]
            for name, flags in {
                "fp32": FP32,
                "fp32 seed 1": [*FP32, "--seed", "1"],
                "mixed": MIXED,
                "rounded weights": ROUNDED,
                "plain fp16": SETTINGS["plain fp16"],
            }.items()
        },
    },
    demo=["fp32", "mixed", "rounded weights", "statistics alone"],
    measures=["loss", "accuracy", "unmoved", "update error"],
    # 2% of a perplexity, as of the language model, is as far from equal.
    margins={"loss": Margin(0.02)},
    groups=["adam", "sgd"],
    prepare=pretrain,
)

if __name__ == "__main__":
    COMPARISON.main()
