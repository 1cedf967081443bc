"""`keras-mp info`: versions, and which kernels this machine runs."""

import argparse

from keras_mp import info


def run(options: argparse.Namespace) -> None:
    """Prints them."""
    info.main()
