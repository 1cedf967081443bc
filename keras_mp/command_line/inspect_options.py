"""`keras-mp inspect`: its help, and its arguments."""

import argparse
from pathlib import Path

SUMMARY = "what FP16 does to a model: what it loses, and whether scaling is needed"
DESCRIPTION = """\
Run one batch of training data through a saved model, forward and backward, in FP32 and
in FP16, and print what FP16 loses: a table of activations, gradients, weights and
updates, the worst first; whether the model needs loss scaling, and which scale; and
whether it needs FP32 master weights. It is what keras_mp.inspect returns. The file of
the model is not changed.
"""
EXAMPLES = """\
the model:
  compiled, so that its loss and optimizer are known, and saved with its dtype policy:
    model.compile(optimizer=keras_mp.wrap("adam"), loss="mse")
    model.save("model.keras")
  Its weights may be those of any moment of training.

the batch:
  an .npz file with the arrays x and y, and sample_weight if there are any:
    np.savez("batch.npz", x=x[:64], y=y[:64])
  of a model with several inputs, their names in the place of x, or their order; of one
  with several outputs, their order:
    np.savez("batch.npz", image=images, text=tokens, y=labels)
    np.savez("batch.npz", x_0=images, x_1=tokens, y_0=boxes, y_1=labels)

examples:
  keras-mp inspect model.keras --data batch.npz
  keras-mp inspect model.keras --data batch.npz --loss-scale 1024
  keras-mp inspect model.keras --data batch.npz --out figures --json report.json
  keras-mp inspect model.keras --data batch.npz --plan plan.json
  keras-mp inspect model.keras --data batch.npz --import my_layers

Exit codes: 0, the report is printed; 1, it could not be made, and the error says why
and what to change; 2, the command line itself is wrong.
"""
PICTURE = "exponents.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to its parser."""
    parser.add_argument("model", type=Path, help="a file written by model.save")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="the batch, an .npz file with the arrays x and y",
    )
    parser.add_argument(
        "--loss-scale",
        type=_positive,
        metavar="N",
        help="loss scale of the FP16 gradients; default: that of the optimizer, or 1",
    )
    parser.add_argument(
        "--as-is",
        action="store_true",
        help="show the numbers of the model under its own dtype policy, not those in "
        "FP32",
    )
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module to import first, which registers your own layers or losses with "
        "keras.saving.register_keras_serializable; may be repeated",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"draw the exponents of the gradients and updates to FOLDER/{PICTURE}; "
        "needs matplotlib",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the report for keras_mp.Numerics.from_dict",
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="plan which layers need FP32, print the plan, and write it for "
        "keras_mp.PrecisionPlan.load",
    )


def _positive(text: str) -> float:
    from keras_mp.arguments import positive_number

    try:
        return positive_number("--loss-scale", float(text), "Try 32768.")
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"it must be a positive number. Received: {text!r}. Try 32768."
        ) from error
