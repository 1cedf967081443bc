"""`keras-mp info`: versions, and which kernels this machine runs."""

import argparse
import importlib.metadata
import platform

import keras

from keras_mp.ops import build_info


def facts() -> dict[str, str]:
    """Returns what a bug report should contain, by name."""
    return {
        "keras_mp": importlib.metadata.version("keras_mp"),
        "python": platform.python_version(),
        "keras": keras.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
        **build_info(),
    }


def run(options: argparse.Namespace) -> None:
    """Prints the facts."""
    for name, value in facts().items():
        print(f"{name + ':':14}{value}")
