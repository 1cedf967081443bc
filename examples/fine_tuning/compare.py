"""Fine-tunes in several precisions and compares them, with a plan and without one.

    python compare.py
    python compare.py --settings all

The model is pre-trained first, where that has not been done.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.compare import Comparison, run_script
from experiments.flags import build_folder

HERE = Path(__file__).resolve().parent

FP32 = ["--precision", "fp32"]
MIXED = ["--precision", "mixed"]
PLAN = [*MIXED, "--plan"]
LORA = ["--lora", "8", "--optimizer", "adam"]


def pretrain(flags: list[str]) -> None:
    """Makes the checkpoint that all settings of `demo` begin with, if it is not there.

    Args:
        flags: of the settings; with `--checkpoint` they begin with another one.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset")
    parser.add_argument("--checkpoint")
    args, _ = parser.parse_known_args(flags)
    is_ours = args.preset == "demo" and not args.checkpoint
    if is_ours and not (build_folder(HERE) / "pretraining" / "result.json").is_file():
        run_script(HERE / "pretrain.py")


COMPARISON = Comparison(
    folder=HERE,
    settings={
        "fp32": FP32,
        "fp32 seed 1": [*FP32, "--seed", "1"],
        "Keras, mixed_float16": [*MIXED, "--keras"],
        "mixed, no plan": MIXED,
        "mixed, plan": PLAN,
        "fp32, LoRA": [*FP32, *LORA],
        "mixed, plan, LoRA": [*PLAN, *LORA],
    },
    demo=[
        *("fp32", "Keras, mixed_float16", "mixed, no plan", "mixed, plan"),
        "mixed, plan, LoRA",
    ],
    measures=["perplexity before", "perplexity after", "FP16 share"],
    curve="perplexity",
    log_scale=True,
    short=["--steps=120", "--eval-every=40"],
    prepare=pretrain,
)

if __name__ == "__main__":
    COMPARISON.main()
