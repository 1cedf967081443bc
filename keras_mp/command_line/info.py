"""`keras-mp info`: versions, and which kernels this machine runs."""

import argparse
import importlib.metadata
import platform

import keras

from keras_mp.command_line.errors import CommandError
from keras_mp.ops import build_info


def facts() -> dict[str, str]:
    """Returns what a bug report should contain, by name.

    Raises:
        CommandError: an environment variable of keras_mp has a wrong value.
    """
    try:
        of_this_machine = build_info()
    except ValueError as error:
        raise CommandError(str(error)) from error
    return {
        "keras_mp": importlib.metadata.version("keras_mp"),
        "python": platform.python_version(),
        "keras": keras.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        **of_this_machine,
    }


def run(options: argparse.Namespace) -> bool:
    """Prints the facts. Returns whether no native library is missing.

    Raises:
        CommandError: as for `facts`.
    """
    found = facts()
    for name, value in found.items():
        print(f"{name + ':':14}{value}")
    return "missing" not in found
