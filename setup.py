"""Builds the native library with CMake, where it, a compiler and TensorFlow are found.

Where one is missing, or TensorFlow is older than the library needs, the package is
installed without the library. Where all are there, a build that fails is an error; for
a TensorFlow newer than those that were tried, it is a warning. Other systems than Linux
get no library, and no attempt to build one.

One library is for one minor version of TensorFlow. `make wheel` names several of them
in KERAS_MP_TENSORFLOWS, and the package gets a library for each. `make wheel-cuda` puts
the CUDA of its kernels, such as +cuda13, in KERAS_MP_VERSION_LABEL, which ends the
version of the package.

Everything else about the package is in setup.cfg.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE = Path(__file__).resolve().parent / "custom_ops"
BUILD = SOURCE.parent / "build" / "custom_ops"
FIND_TENSORFLOW = [sys.executable, str(SOURCE / "cmake" / "find_tensorflow.py")]
# The minor versions of TensorFlow whose headers the library is known to compile with.
OLDEST, NEWEST = (2, 20), (2, 21)
OPTIONS = [f"-DPython3_EXECUTABLE={sys.executable}"]
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


def find_tensorflow(*folders):
    """Returns folder and version, or nothing.

    Args:
        *folders: to look in; by default, what this Python imports from.
    """
    command = [*FIND_TENSORFLOW, *folders]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip()


def minor(tensorflow):
    """Returns the minor version of what `find_tensorflow` returned: (2, 21)."""
    return tuple(map(int, tensorflow.split(";")[1].split(".")[:2]))


def find_tensorflows():
    """Returns the name of each library, and the TensorFlow that it is for."""
    folders = os.environ.get("KERAS_MP_TENSORFLOWS")
    if not folders:
        return {"_keras_mp_ops": find_tensorflow()}
    found = map(find_tensorflow, folders.split(os.pathsep))
    return {"_keras_mp_ops_tf{}_{}".format(*minor(each)): each for each in found}


def missing(tools, tensorflow):
    """Returns what the library cannot be built without, and how to get it."""
    compilers = (os.environ.get("CXX"), tools["c++"], tools["g++"], tools["clang++"])
    needs_ninja = ENVIRONMENT["CMAKE_GENERATOR"] == "Ninja"
    if not tools["cmake"] or (needs_ninja and not tools["ninja"]):
        return "no CMake or Ninja: pip install cmake ninja"
    if not any(compilers):
        return "no C++ compiler (Debian, Ubuntu: apt install g++)"
    oldest = "{}.{}".format(*OLDEST)
    if not tensorflow:
        return f"no TensorFlow: pip install 'tensorflow>={oldest}'"
    if minor(tensorflow) < OLDEST:
        version = tensorflow.split(";")[1]
        return f"TensorFlow {version}: pip install 'tensorflow>={oldest}'"
    return None


def configuration(tools):
    """Returns what CMake has found in a folder once and for all."""
    variables = {name: os.environ.get(name) for name in VARIABLES}
    return json.dumps([sys.executable, tools, variables])


def run_cmake(tools, target, *options):
    """Configures, and builds a target, by one process at a time.

    Objects of the build before are used again, unless it had other tools: those of an
    environment that pip made for one build are gone at the next. What does not include
    TensorFlow is compiled once for all of its versions, and for the tests.
    """
    import fcntl  # not on Windows, where nothing is built

    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts, configured_with = configuration(tools), BUILD / "configured_with.json"
        if not configured_with.is_file() or configured_with.read_text() != facts:
            shutil.rmtree(BUILD)
            BUILD.mkdir()
        cmake = tools["cmake"]
        configure = [cmake, "-S", SOURCE, "-B", BUILD, *OPTIONS, *options]
        subprocess.run(configure, check=True, env=ENVIRONMENT)
        configured_with.write_text(facts)
        build = [cmake, "--build", BUILD, "--target", target]
        subprocess.run(build, check=True, env=ENVIRONMENT)


def build_library(tools, tensorflow, library):
    """Builds the library for a TensorFlow, as the file `library`."""
    folder, version = tensorflow.split(";")
    run_cmake(
        tools,
        "keras_mp_ops",
        "-DKERAS_MP_TENSORFLOW=ON",
        f"-DKERAS_MP_TENSORFLOW_DIR={folder}",
        f"-DKERAS_MP_TENSORFLOW_VERSION={version}",
    )
    library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(BUILD / "_keras_mp_ops.so", library)


class TestCpp(Command):
    """Builds the tests in C++ next to the library, which has the same kernels."""

    description = "compile the tests in C++, without TensorFlow, and run them"
    user_options: ClassVar = []

    def initialize_options(self):
        pass

    def finalize_options(self):
        pass

    def run(self):
        run_cmake(find_tools(), "all", "-DKERAS_MP_TENSORFLOW=OFF")
        ctest = shutil.which("ctest", path=PATH)
        subprocess.run(
            [ctest, "--parallel", "2", "--output-on-failure", "--test-dir", BUILD],
            check=True,
        )


class BuildWithCMake(build_ext):
    """Runs CMake for the one extension, which is no Python module."""

    def get_ext_filename(self, fullname):
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        library.unlink(missing_ok=True)
        tools, tensorflow = find_tools(), TENSORFLOWS[ext.name.rpartition(".")[2]]
        reason = missing(tools, tensorflow)
        # setuptools warns of an error in what is optional, and goes on without it.
        ext.optional = reason is not None or minor(tensorflow) > NEWEST
        if reason:
            raise CompileError(
                "keras_mp is built without its native library, and its ops run in "
                "plain TensorFlow. The library needs CMake, a C++ compiler and "
                f"TensorFlow {OLDEST[0]}.{OLDEST[1]} or newer. Received: {reason}. "
                "Install keras_mp again after that."
            )
        try:
            build_library(tools, tensorflow, library)
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


TENSORFLOWS = find_tensorflows() if sys.platform == "linux" else {}
setup(
    ext_modules=[
        Extension(f"keras_mp.ops.kernels.{name}", sources=[], optional=True)
        for name in TENSORFLOWS
    ],
    cmdclass={
        "build_ext": BuildWithCMake,
        "bdist_wheel": WheelForEveryPython,
        "test_cpp": TestCpp,
    },
    options={"egg_info": {"tag_build": os.environ.get("KERAS_MP_VERSION_LABEL", "")}},
)
