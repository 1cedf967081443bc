"""The command line `keras-mp`: its commands, their arguments and their help.

It is a module outside the package, since `import keras_mp` imports TensorFlow, which
takes seconds: `--help` and mistakes are answered at once, and a command imports the
package when it runs.
"""

import argparse
import importlib.metadata
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  keras-mp info
  keras-mp inspect model.keras --data batch.npz
  keras-mp benchmark --quick
  keras-mp gpu

`keras-mp COMMAND --help` explains a command. `python -m keras_mp` has the same ones,
but imports TensorFlow first, and shows what it logs, as `keras-mp` does where
TF_CPP_MIN_LOG_LEVEL is set.

Exit codes: 0, the finding is good; 1, it is negative; 2, wrong use, and the error says
what to change.
"""

_INFO = """\
Print what a bug report should contain: versions, the processor, and which
implementation of the ops this machine uses. Exit code 1: a native library is missing
or cannot be used, and the line `missing` says why.
"""

_INSPECT = """\
Run one batch of training data through a saved model, forward and backward, in FP32 and
in FP16, and print what FP16 loses: a table of activations, gradients, weights and
updates, the worst first; whether the model needs loss scaling, and which scale; and
whether it needs FP32 master weights. It is what keras_mp.inspect returns. The file of
the model is not changed.
"""
_INSPECT_EXAMPLES = """\
the model:
  compiled, so that its loss and optimizer are known, and saved with its dtype policy:
    model.compile(optimizer=keras_mp.wrap("adam"), loss="mse")
    model.save("model.keras")
  Its weights may be from any moment of training.

the batch:
  an .npz file with the arrays x and y, and sample_weight if there are any:
    np.savez("batch.npz", x=x[:64], y=y[:64])
  of a model with several inputs, their names instead of x, or their order; of one
  with several outputs, their order:
    np.savez("batch.npz", image=images, text=tokens, y=labels)
    np.savez("batch.npz", x_0=images, x_1=tokens, y_0=boxes, y_1=labels)

examples:
  keras-mp inspect model.keras --data batch.npz
  keras-mp inspect model.keras --data batch.npz --loss-scale 1024
  keras-mp inspect model.keras --data batch.npz --out figures --json report.json
  keras-mp inspect model.keras --data batch.npz --plan plan.json
  keras-mp inspect model.keras --data batch.npz --import my_layers

Exit codes: 0, FP16 has the range for this model; 1, it has not, and `--plan` finds the
layers that need FP32; 2, wrong use, and the error says what to change.
"""
_PICTURE = "exponents.png"

_BENCHMARK = """\
Time a training step of four small models on this machine, with Adam: fully connected
layers, convolutions with batch normalization, an LSTM, and a Transformer block. Each
is trained in float32, in mixed_float16 and mixed_bfloat16 as Keras has them, and in
float16 and bfloat16 with keras_mp (wrap and convert). Print the times, the memory of
weights and optimizer, and whether it is worth it.
"""
_BENCHMARK_EXAMPLES = """\
The time of a step is the median of many, taken in turns in one process: what else the
machine does slows all recipes alike, but let nothing else run. `/ float32` is the ratio
to the time in float32: below 1 is faster. `weights` are the model's; `optimizer`
is its state: two moments of Adam, and FP32 masters of 16-bit weights.

Your model may gain more or less than these: measure it with and without
keras_mp.wrap and keras_mp.convert.

examples:
  keras-mp benchmark
  keras-mp benchmark --quick                  smaller models, fewer steps
  keras-mp benchmark --json benchmark.json

Exit codes: 0, 16 bits are worth it for speed on this machine; 1, they are not; 2, wrong
use, and the error says what to change.
"""

_GPU = """\
Check keras_mp on the GPU of this machine: what is installed, what is missing and why;
the kernels against float64 and against the CPU; matrix products against tf.matmul;
training steps of three models in float32, in Keras's mixed_float16 and in float16 with
keras_mp; their memory. Each kernel is right or WRONG, each time has its aim, and the
last line is the verdict. No GPU has run keras_mp yet: please attach the file that this
writes to an issue, also if all is well.
"""
_GPU_EXAMPLES = """\
Without a GPU all of it runs on the CPU, smaller, as the first line says: that shows
what the command does, and nothing about a GPU. Let nothing else use the GPU meanwhile.

examples:
  keras-mp gpu
  keras-mp gpu --quick                        tiny sizes: does it run at all?
  keras-mp gpu --out t4.txt

Exit codes: 0, the kernels are right on this GPU; 1, one is wrong or missing, or there
is no GPU; 2, wrong use, and the error says what to change. Times decide nothing.
"""
_GPU_REPORT = Path("keras_mp_gpu.txt")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: strings, such as `["info"]`. Defaults to the arguments of the
            process.

    Returns:
        int, the exit code of the process: 0 where the finding is good, 1 where it is
        negative, 2 for wrong use.
    """
    options = parser().parse_args(arguments)
    try:
        command = import_quietly(options.module)
    except (ImportError, ValueError) as error:  # of keras_mp itself: a wrong setting
        return _wrong_use(error)
    from keras_mp.command_line.errors import CommandError

    try:
        return 0 if command.run(options) else 1
    except (CommandError, OSError) as error:
        return _wrong_use(error)


def parser() -> argparse.ArgumentParser:
    """Returns what parses a command line, and names the `module` that runs it."""
    parser = argparse.ArgumentParser(
        prog="keras-mp",
        description="Mixed precision training for Keras 3: what it would do here.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("keras_mp")
    parser.add_argument("--version", action="version", version=f"keras_mp {version}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_command(
        commands, "info", "versions, and which kernels this machine runs", _INFO, None
    )
    inspect = _add_command(
        commands,
        "inspect",
        "what FP16 does to a model: what it loses, and whether scaling is needed",
        _INSPECT,
        _INSPECT_EXAMPLES,
    )
    inspect.add_argument("model", type=Path, help="a file written by model.save")
    inspect.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="the batch, an .npz file with the arrays x and y",
    )
    inspect.add_argument(
        "--loss-scale",
        type=_positive,
        metavar="N",
        help="loss scale of the FP16 gradients; default: the optimizer's, or 1",
    )
    inspect.add_argument(
        "--as-is",
        action="store_true",
        help="show the numbers of the model under its own dtype policy, not those in "
        "FP32",
    )
    inspect.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module to import first, which registers your own layers or losses with "
        "keras.saving.register_keras_serializable; may be repeated",
    )
    inspect.add_argument(
        "--out",
        dest="picture",
        type=lambda folder: Path(folder) / _PICTURE,
        metavar="FOLDER",
        help=f"draw the exponents of the gradients and updates to FOLDER/{_PICTURE}; "
        "needs matplotlib",
    )
    inspect.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the report for keras_mp.Numerics.from_dict",
    )
    inspect.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="plan which layers need FP32, print the plan, and write it for "
        "keras_mp.PrecisionPlan.load",
    )
    benchmark = _add_command(
        commands,
        "benchmark",
        "is it worth it on this machine? about five minutes",
        _BENCHMARK,
        _BENCHMARK_EXAMPLES,
    )
    benchmark.add_argument(
        "--quick", action="store_true", help="smaller models and fewer steps"
    )
    benchmark.add_argument(
        "--json", type=Path, metavar="FILE", help="also write what was measured"
    )
    gpu = _add_command(
        commands,
        "gpu",
        "does it work on this GPU, and how fast? five minutes, and a file to send",
        _GPU,
        _GPU_EXAMPLES,
    )
    gpu.add_argument(
        "--quick", action="store_true", help="tiny sizes, which say nothing of speed"
    )
    gpu.add_argument(
        "--out",
        type=Path,
        default=_GPU_REPORT,
        metavar="FILE",
        help=f"the report, a new file; default {_GPU_REPORT}",
    )
    return parser


def import_quietly(module: str) -> Any:
    """Imports a module, and hides what TensorFlow logs when it is imported.

    TensorFlow's C++ code does so before it reads `TF_CPP_MIN_LOG_LEVEL`, which is set
    here for what it logs later. If a user has set it, nothing is hidden. What Python
    prints, such as warnings, is not hidden either.

    Args:
        module: str, its dotted name.

    Returns:
        The module.
    """
    if "tensorflow" in sys.modules or "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return importlib.import_module(module)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # Loggers keep the stream that they find on import, so that this one stays.
    sys.stderr = open(os.dup(2), "w", buffering=1)  # noqa: SIM115
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        return importlib.import_module(module)
    finally:
        os.dup2(sys.stderr.fileno(), 2)


def _wrong_use(error: Exception) -> int:
    print("error:", *str(error).split(), file=sys.stderr)
    return 2


def _add_command(
    commands: Any, name: str, summary: str, description: str, examples: str | None
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(module=f"keras_mp.command_line.{name}")
    return parser


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(
            f"it must be a positive number. Received: {text!r}. Try 32768."
        )
    return number


if __name__ == "__main__":
    sys.exit(main())
