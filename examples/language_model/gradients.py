"""What FP16 loses of the gradients of bigLSTM, by loss and batch.

    python gradients.py --steps 200

Trains in FP32 for so many steps, then runs one batch of each size through the model, in
FP32 and in FP16, and compares the gradients. The flags are those of train.py.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from experiments.flags import parse
from language_model.batches import training_batches
from language_model.train import CHOICES, HERE, load, make_model

import keras_mp

# (loss, how many times the batch of the flags)
CASES = [("sum", 1), ("mean", 1), ("sum", 16), ("mean", 16), ("mean", 64)]
COLUMNS = [
    "loss",
    "batch",
    "activation gradients lost",
    "weight gradients lost",
    "their error",
    "worst weight: error, cosine",
    "error at a scale",
]


def trained_in_fp32(args: argparse.Namespace, text: np.ndarray) -> keras.Model:
    """Returns the model after `args.steps` steps."""
    keras.utils.set_random_seed(args.seed)
    keras.config.set_dtype_policy("float32")
    model = make_model(args, wrap_options=None)
    batches = training_batches(text, args.batch, args.unrolled)
    model.fit(batches, steps_per_epoch=args.steps, verbose=args.verbose, shuffle=False)
    return model


def inspected(
    model: keras.Model, args: argparse.Namespace, text: np.ndarray
) -> keras_mp.Numerics:
    """Returns what FP16 does, without a loss scale, to the first batch of the text."""
    keras.config.set_dtype_policy("float16")
    half = make_model(args, {"loss_scale": 1.0})
    for weight, value in zip(
        half.trainable_variables, model.trainable_variables, strict=True
    ):
        weight.assign(value)
    x, y = next(iter(training_batches(text, args.batch, args.unrolled)))
    return keras_mp.inspect(half, x, y)


def cells(report: keras_mp.Numerics) -> Iterator[str]:
    """Yields the columns of the table that follow loss and batch."""
    for kind in ("activation_gradient", "weight_gradient"):
        total = report.total(kind)
        yield f"{100 * total.lost / total.elements:.2f}%"
    yield f"{100 * report.gradient_errors[1.0]:.2f}%"
    worst = max(
        report.of_kind("weight_gradient"), key=lambda entry: entry.relative_error
    )
    yield f"{worst.path}: {100 * worst.relative_error:.2f}%, {worst.cosine:.5f}"
    scale = report.suggested_scale()
    yield f"{100 * report.gradient_errors[scale]:.2f}% at {scale:g}"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(HERE, argv, CHOICES)
    text, _ = load(args)
    model = trained_in_fp32(args, text)
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    for loss, times in CASES:
        case = {"loss": loss, "batch": times * args.batch}
        report = inspected(model, argparse.Namespace(**vars(args) | case), text)
        rows.append([loss, str(case["batch"]), *cells(report)])
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
