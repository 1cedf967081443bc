"""`keras-mp benchmark`: its help, and its arguments."""

import argparse
from pathlib import Path

SUMMARY = "is it worth it on this machine? a minute or two, five at most"
DESCRIPTION = """\
Time a training step of four small models on this machine, with Adam: fully connected
layers, convolutions with batch normalization, an LSTM, and a Transformer block. Each
is trained in float32, in mixed_float16 and mixed_bfloat16 as Keras has them, and in
float16 and bfloat16 with keras_mp (wrap and convert). Print the times, the memory of
weights and optimizer, and a sentence of advice.
"""
EXAMPLES = """\
The time of a step is the median of many, taken in turns in one process: what else the
machine does slows all recipes alike, but let nothing else run. `/ float32` is the ratio
to the time in float32: below 1 is faster. `weights` are those of the model, `optimizer`
what it keeps beside them: two moments of Adam, and FP32 masters of 16-bit weights.

Your model may gain more or less than these: measure it, too, with and without
keras_mp.wrap and keras_mp.convert.

examples:
  keras-mp benchmark
  keras-mp benchmark --quick                  smaller models, half a minute
  keras-mp benchmark --json benchmark.json

Exit codes: 0, it was measured; 1, it could not be, and the error says why and what to
change; 2, the command line itself is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to its parser."""
    parser.add_argument(
        "--quick", action="store_true", help="smaller models and fewer steps"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write what was measured, too"
    )
