"""The build backend: setuptools, with a TensorFlow to build for where there is none.

`pip install` builds in an environment of its own, which a fixed requirement would fill
with one TensorFlow, whatever the user has. The native library is built for the one that
is installed (custom_ops/cmake/find_tensorflow.py); only where there is none, the newest
comes into the environment of the build, and nowhere else.
"""

import subprocess
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - what this module leaves as it is

FIND = Path(__file__).resolve().parent / "custom_ops" / "cmake" / "find_tensorflow.py"


def tensorflow():
    """Returns the requirement of a build: none, or TensorFlow."""
    if sys.platform != "linux":
        return []
    found = subprocess.run([sys.executable, str(FIND)], capture_output=True)
    return [] if found.returncode == 0 else ["tensorflow"]


def get_requires_for_build_wheel(config_settings=None):
    """Returns what setuptools asks for, and TensorFlow where there is none."""
    return build_meta.get_requires_for_build_wheel(config_settings) + tensorflow()


def get_requires_for_build_editable(config_settings=None):
    """As for a wheel."""
    return build_meta.get_requires_for_build_editable(config_settings) + tensorflow()
