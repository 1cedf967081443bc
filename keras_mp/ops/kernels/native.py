"""The native library: loaded once, at the first call of an op."""

import ctypes
import functools
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from packaging.version import Version

MODES = ("auto", "native", "reference")
HOW_TO_BUILD = (
    "Build it with `pip install --force-reinstall --no-deps .` in the sources of "
    "keras_mp; that needs CMake, a C++ compiler and TensorFlow 2.20 or newer."
)


def library_for(version: str, folder: Path) -> Path:
    """Returns the path of the library for a version of TensorFlow.

    A wheel has one for each of several minor versions: their C++ interfaces differ. A
    build from the sources makes one, for the TensorFlow that it found.

    Args:
        version: such as `"2.21.0"`.
        folder: the folder of the libraries.
    """
    major, minor = version.split(".")[:2]
    of_wheel = folder / f"_keras_mp_ops_tf{major}_{minor}.so"
    return of_wheel if of_wheel.is_file() else folder / "_keras_mp_ops.so"


LIBRARY = library_for(tf.__version__, Path(__file__).parent)


class NativeLibraryError(ImportError):
    """The native library cannot be used; the message says why."""


def mode() -> str:
    """Returns `KERAS_MP_OPS`: `"auto"` (default), `"native"` or `"reference"`."""
    chosen = os.environ.get("KERAS_MP_OPS") or "auto"
    if chosen not in MODES:
        raise ValueError(
            f"The environment variable KERAS_MP_OPS must be one of {MODES}. "
            f"Received: KERAS_MP_OPS={chosen!r}."
        )
    return chosen


def register(path: Path = LIBRARY) -> None:
    """Loads the library at `path`, which registers its ops with TensorFlow.

    Raises:
        NativeLibraryError: the library is missing, was built for another TensorFlow,
            or cannot be loaded.
    """
    built_for = build_facts(path)["tensorflow"]
    if not _are_same_version(built_for, tf.__version__):
        raise NativeLibraryError(
            "The native library of keras_mp must be built for the installed "
            f"TensorFlow, {tf.__version__}. Received: {path}, built for {built_for}. "
            f"{HOW_TO_BUILD}"
        )
    try:
        tf.load_library(str(path))
    except (OSError, tf.errors.OpError) as error:
        raise NativeLibraryError(
            f"The native library of keras_mp cannot be loaded. Received: {path}: "
            f"{error}. {HOW_TO_BUILD}"
        ) from error


def _are_same_version(built_for: str, running: str) -> bool:
    """Tells whether two names of a TensorFlow are of one release.

    That of its package and `tf.__version__` write a pre-release in two ways, and only
    the former has the label of who built it. C++ libraries fit one release: TensorFlow
    promises nothing of its C++ interface from one to the next, nor of patches.
    """
    return Version(built_for).public == Version(running).public


@functools.cache
def load(path: Path = LIBRARY) -> Any:
    """Returns the ops of the library at `path`.

    Raises:
        NativeLibraryError: as for `register`.
        ValueError: `KERAS_MP_CPU_ISA` names no instruction set of this CPU.
    """
    register(path)
    ops = tf.load_op_library(str(path))
    if cpu_instructions() not in supported_cpu_instructions():
        raise ValueError(
            "The environment variable KERAS_MP_CPU_ISA must be empty, for the fastest "
            "instruction set of this CPU, or name one of those it has: "
            f"{supported_cpu_instructions()}. Received: "
            f"KERAS_MP_CPU_ISA={os.environ.get('KERAS_MP_CPU_ISA')!r}."
        )
    return ops


def build_facts(path: Path = LIBRARY) -> dict[str, str]:
    """Reads what the library was built for from the file, without loading it.

    Raises:
        NativeLibraryError: the file is missing or has no such information.
    """
    if not path.is_file():
        others = sorted(other.name for other in path.parent.glob("_keras_mp_ops*.so"))
        raise NativeLibraryError(
            f"The native library of keras_mp for TensorFlow {tf.__version__} is "
            f"missing. Received: {path}, and in its folder {others}. {HOW_TO_BUILD}"
        )
    build = re.search(rb"keras_mp build ({.*?})\0", path.read_bytes())
    try:
        facts = json.loads(build[1]) if build else {}
    except ValueError:
        facts = {}
    if not {"tensorflow", "compiler", "cuda"} <= facts.keys():
        raise NativeLibraryError(
            "The native library of keras_mp must say what it was built for. "
            f"Received: {path}, which does not. {HOW_TO_BUILD}"
        )
    return facts


def cuda_problem() -> str:
    """Returns why the CUDA kernels of the library cannot run; empty if they can."""
    return _ask("KerasMpCudaProblem")


@functools.cache
def has_cuda() -> bool:
    """Tells whether the ops can run on the GPU; warns if they cannot."""
    problem = cuda_problem()
    if problem:
        warnings.warn(
            "keras_mp.ops.fp16_gemm and the update step run in plain TensorFlow on the "
            f"GPU, and so slower. Received: {LIBRARY}: {problem}. Its kernels for GPUs "
            f"are {build_facts()['cuda'] or 'none'}. `make wheel-cuda` in the sources "
            "of keras_mp builds others, by an nvcc of a CUDA that the driver knows: "
            "docs/guides/on_a_gpu.md. "
            "KERAS_MP_OPS=reference turns this warning off.",
            stacklevel=2,
        )
    return not problem


def cpu_instructions() -> str:
    """Returns the instruction set in use: the fastest of this CPU by default.

    `KERAS_MP_CPU_ISA` selects another one; the library reads it once.
    """
    return _ask("KerasMpCpuInstructions")


def supported_cpu_instructions() -> list[str]:
    """Returns the instruction sets that `KERAS_MP_CPU_ISA` can select on this CPU."""
    return _ask("KerasMpSupportedCpuInstructions").split()


class UpdateRule(NamedTuple):
    """A row of custom_ops/include/keras_mp/update_rules.def, which says what it means.

    Attributes:
        slots: str, a letter for each slot.
        tokens: `"nothing"`, `"squares"` or `"magnitudes"`.
        needs_norms: bool; if true, only CPUs have the rule.
    """

    slots: str
    tokens: str
    needs_norms: bool


@functools.cache
def update_rules() -> dict[str, UpdateRule]:
    """Returns the rules of `update_variables`, by name."""
    rows = (line.split(",") for line in _ask("KerasMpUpdateRules").splitlines())
    return {
        name: UpdateRule(slots, tokens.removeprefix("k").lower(), needs_norms == "true")
        for name, slots, tokens, needs_norms in rows
    }


@functools.cache
def update_hyperparameters() -> dict[str, float]:
    """Returns the hyperparameters of `update_variables`, in order, with defaults."""
    lines = _ask("KerasMpUpdateHyperparameters").splitlines()
    return {name: float(value) for name, value in (line.split(",") for line in lines)}


def _ask(function: str) -> str:
    """Calls a C function of the library that returns a string."""
    # TensorFlow must load the library before ctypes does: it registers no ops of a
    # library that is already loaded.
    tf.load_library(str(LIBRARY))
    ask = getattr(ctypes.CDLL(str(LIBRARY)), function)
    ask.restype = ctypes.c_char_p
    return ask().decode()


@functools.cache
def library() -> Any:
    """Returns the ops, or None if the reference is to be used; `mode` decides."""
    if mode() == "reference":
        return None
    try:
        return load()
    except NativeLibraryError as error:
        if mode() == "native":
            raise
        warnings.warn(
            "keras_mp.ops.fp16_gemm and the other ops run in plain TensorFlow. "
            f"{error} KERAS_MP_OPS=reference turns this warning off.",
            stacklevel=2,
        )
        return None
