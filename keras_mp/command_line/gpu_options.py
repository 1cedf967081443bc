"""`keras-mp gpu`: its help, and its arguments."""

import argparse
from pathlib import Path

SUMMARY = "does it work on this GPU, and how fast? five minutes, and a file to send"
REPORT = Path("keras_mp_gpu.txt")
DESCRIPTION = """\
Check keras_mp on the GPU of this machine: what is installed, what is missing and why;
the kernels against float64 and against the CPU; products beside tf.matmul; training
steps of three models in float32, in Keras's mixed_float16 and in float16 with keras_mp;
their memory. Each line says what a good value is. No GPU has run keras_mp yet: please
attach the file that this writes to an issue, also if all is well.
"""
EXAMPLES = """\
Without a GPU all of it runs on the CPU, smaller, and the first lines say so: that shows
what the command does, and nothing about a GPU. Let nothing else use the GPU meanwhile.

examples:
  keras-mp gpu
  keras-mp gpu --quick                        tiny sizes: does it run at all?
  keras-mp gpu --out t4.txt

Exit codes: 0, the report is written, whatever it says; 1, it could not be, and the
error says why and what to change; 2, the command line itself is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to its parser."""
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, which say nothing of speed"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=REPORT,
        metavar="FILE",
        help=f"the report, a new file; default {REPORT}",
    )
