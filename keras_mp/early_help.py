"""`keras-mp --help` answers before TensorFlow is imported, which takes seconds.

`import keras_mp` has to import Keras: it registers layers and optimizers, so that files
load. The command line is in the package, so that to start it is to import it. This
module is imported first, and where the process is the command line it parses that:
`--help`, or a mistake, ends the process here.
"""

import sys
from pathlib import Path


def is_command_line(argv: list[str], orig_argv: list[str]) -> bool:
    """Tells whether a process is `keras-mp`, or `python -m keras_mp`.

    Args:
        argv: `sys.argv`, whose first item is `-m` until Python has found the module.
        orig_argv: `sys.orig_argv`, what Python was started with.
    """
    if not argv:  # as in a process that embeds Python
        return False
    if argv[0] != "-m":
        return Path(argv[0]).stem == "keras-mp"
    return orig_argv[-len(argv)] in ("keras_mp", "-mkeras_mp")


if is_command_line(getattr(sys, "argv", []), sys.orig_argv):
    from keras_mp.command_line import parser

    parser().parse_args()
