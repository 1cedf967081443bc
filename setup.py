"""Builds the native library with CMake, where it, a compiler and TensorFlow are found.

Where one is missing, the package is installed without the library. Where all are there,
a build that fails is an error.

Everything else about the package is in setup.cfg.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE = Path(__file__).resolve().parent / "custom_ops"
BUILD = SOURCE.parent / "build" / "custom_ops"
FIND_TENSORFLOW = [sys.executable, str(SOURCE / "cmake" / "find_tensorflow.py")]
OPTIONS = [f"-DPython3_EXECUTABLE={sys.executable}", "-DKERAS_MP_TESTS=OFF"]
if "KERAS_MP_CUDA" in os.environ:  # ON or OFF; else ON where there is nvcc
    OPTIONS.append(f"-DKERAS_MP_CUDA={os.environ['KERAS_MP_CUDA']}")

# CMake and Ninja may have come from pip, into an environment not activated.
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
ENVIRONMENT = {"CMAKE_GENERATOR": "Ninja", **os.environ, "PATH": PATH}
# What CMake looks for and reads in the first run in a folder alone.
TOOLS = ("cmake", "ninja", "c++", "g++", "clang++", "nvcc")
VARIABLES = (
    *("CMAKE_GENERATOR", "CXX", "CXXFLAGS", "LDFLAGS"),
    *("CUDACXX", "CUDAFLAGS", "CUDA_PATH", "KERAS_MP_CUDA"),
)


def find_tools():
    """Returns the path of each tool, or None."""
    return {name: shutil.which(name, path=PATH) for name in TOOLS}


def find_tensorflow():
    """Returns folder and version, or nothing."""
    found = subprocess.run(FIND_TENSORFLOW, capture_output=True, text=True)
    return found.stdout.strip()


def missing(tools, tensorflow):
    """Returns what the library cannot be built without, and how to get it."""
    compilers = (os.environ.get("CXX"), tools["c++"], tools["g++"], tools["clang++"])
    needs_ninja = ENVIRONMENT["CMAKE_GENERATOR"] == "Ninja"
    if not tools["cmake"] or (needs_ninja and not tools["ninja"]):
        return "no CMake or Ninja: pip install cmake ninja"
    if not any(compilers):
        return "no C++ compiler (Debian, Ubuntu: apt install g++)"
    if not tensorflow:
        return "no TensorFlow: pip install 'tensorflow>=2.21,<2.22'"
    return None


def run_cmake(cmake, target, configuration):
    """Builds the library into the folder `target`.

    Objects of the build before are used again, unless it had other tools: those of an
    environment that pip made for one build are gone at the next.
    """
    configured_with = BUILD / "configured_with.json"
    unchanged = configured_with.is_file() and (
        configured_with.read_text() == configuration
    )
    if BUILD.exists() and not unchanged:
        shutil.rmtree(BUILD)

    def run(*arguments):
        subprocess.run([cmake, *map(str, arguments)], check=True, env=ENVIRONMENT)

    run("-S", SOURCE, "-B", BUILD, *OPTIONS)
    configured_with.write_text(configuration)
    run("--build", BUILD)
    run("--install", BUILD, "--prefix", target)


class BuildWithCMake(build_ext):
    """Runs CMake for the one extension, which is no Python module."""

    def get_ext_filename(self, fullname):
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        library.unlink(missing_ok=True)
        tools, tensorflow = find_tools(), find_tensorflow()
        reason = missing(tools, tensorflow)
        # setuptools warns of an error in what is optional, and goes on without it.
        ext.optional = reason is not None
        if reason:
            raise CompileError(
                "keras_mp is built without its native library, and its ops run in "
                "plain TensorFlow. The library needs CMake, a C++ compiler and "
                f"TensorFlow. Received: {reason}. Install keras_mp again after that."
            )
        variables = {name: os.environ.get(name) for name in VARIABLES}
        facts = [sys.executable, tensorflow, tools, variables]
        try:
            run_cmake(tools["cmake"], library.parent, json.dumps(facts))
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(
                "The native library of keras_mp must build where CMake, a C++ compiler "
                f"and TensorFlow are found. Received: {error}; what failed is above. "
                "Mend that, or name another compiler in the environment variable CXX. "
                "If CUDA is the reason, set KERAS_MP_CUDA=OFF."
            ) from error


class WheelForEveryPython(bdist_wheel):
    """Tags the wheel for the platform alone: the library has no ABI of CPython."""

    def get_tag(self):
        *_, platform = super().get_tag()
        return "py3", "none", platform


setup(
    ext_modules=[
        Extension("keras_mp.ops.kernels._keras_mp_ops", sources=[], optional=True)
    ],
    cmdclass={"build_ext": BuildWithCMake, "bdist_wheel": WheelForEveryPython},
)
