"""Builds the native library with CMake, where there are a compiler and TensorFlow.

Everything else about the package is in setup.cfg.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE = Path(__file__).resolve().parent / "custom_ops"
BUILD = SOURCE.parent / "build" / "custom_ops"
OPTIONS = [f"-DPython3_EXECUTABLE={sys.executable}", "-DKERAS_MP_TESTS=OFF"]
if "KERAS_MP_CUDA" in os.environ:  # ON or OFF; else ON where there is nvcc
    OPTIONS.append(f"-DKERAS_MP_CUDA={os.environ['KERAS_MP_CUDA']}")


class BuildWithCMake(build_ext):
    """Runs CMake for the one extension, which is no Python module."""

    def get_ext_filename(self, fullname):
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        # CMake and Ninja may have come from pip, into an environment not activated.
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        env = {"CMAKE_GENERATOR": "Ninja", **os.environ, "PATH": path}
        commands = (
            ("-S", SOURCE, "-B", BUILD, *OPTIONS),
            ("--build", BUILD),
            ("--install", BUILD, "--prefix", target),
        )
        try:
            for command in commands:
                cmake = shutil.which("cmake", path=path) or "cmake"
                subprocess.run([cmake, *map(str, command)], check=True, env=env)
        except (OSError, subprocess.CalledProcessError) as error:
            # The extension is optional: setuptools goes on without it.
            raise CompileError(f"keras_mp: no native library: {error}") from error


setup(
    ext_modules=[Extension("keras_mp.ops._keras_mp_ops", sources=[], optional=True)],
    cmdclass={"build_ext": BuildWithCMake},
)
