"""The command line: `python -m keras_mp COMMAND`, or `keras-mp COMMAND`."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from keras_mp.command_line import benchmark_options, gpu_options, inspect_options
from keras_mp.command_line.errors import CommandError

_EXAMPLES = """\
examples:
  keras-mp info
  keras-mp inspect model.keras --data batch.npz
  keras-mp benchmark --quick
  keras-mp gpu

`python -m keras_mp` is the same as `keras-mp`. `keras-mp COMMAND --help` explains a
command. Exit codes: 0, it was done; 1, it could not be done, and the error says why and
what to change; 2, the command line itself is wrong.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: strings, such as `["info"]`. Defaults to those of the process.

    Returns:
        int, the exit code of the process: 0, or 1 where the command failed.
    """
    options = parser().parse_args(arguments)
    try:
        importlib.import_module(options.module).run(options)
    except (CommandError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """Returns what parses a command line, and names the `module` that runs it.

    Neither it nor what it imports needs Keras, so that `--help` answers at once.
    """
    parser = argparse.ArgumentParser(
        prog="keras-mp",
        description="Mixed precision training for Keras 3: what it would do here.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    info = commands.add_parser(
        "info",
        help="versions, and which kernels this machine runs",
        description="Print what a bug report should contain: versions, the processor, "
        "and which implementation of the ops this machine uses.",
    )
    info.set_defaults(module="keras_mp.command_line.info")
    for name, command in {
        "inspect": inspect_options,
        "benchmark": benchmark_options,
        "gpu": gpu_options,
    }.items():
        of_command = commands.add_parser(
            name,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(of_command)
        of_command.set_defaults(module=f"keras_mp.command_line.{name}")
    return parser
