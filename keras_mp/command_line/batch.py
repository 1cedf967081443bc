"""A batch of training data in an `.npz` file, for `keras-mp inspect`."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_mp.command_line.errors import CommandError

RULE = (
    "The file needs the arrays `x` and `y`, or for several inputs or outputs `x_0`, "
    "`x_1`, ... and `y_0`, `y_1`, ..., or the model's input names instead of `x`"
)

# What NumPy and zipfile raise for a file with some bytes changed: a broken header, an
# unknown compression, an encrypted part, a size that no memory has.
_DAMAGED = (
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    RuntimeError,  # and NotImplementedError
    SyntaxError,
    TypeError,
    UnicodeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


class Batch(NamedTuple):
    """What `keras_mp.inspect` takes in addition to the model.

    Attributes:
        x: array, list of arrays in the order of the model's inputs, or dict of arrays
            by the names of the inputs.
        y: array, or list of arrays in the order of the model's outputs.
        sample_weight: array or None.
    """

    x: Any
    y: Any
    sample_weight: Any

    def __str__(self) -> str:
        arrays = {k: v for k, v in self._asdict().items() if v is not None}
        shapes = keras.tree.map_structure(lambda a: f"{a.dtype} {a.shape}", arrays)
        return ", ".join(f"{name}: {shape}" for name, shape in shapes.items())


def read_batch(path: Path) -> Batch:
    """Returns the batch in an `.npz` file.

    Args:
        path: of a file that `np.savez` wrote.

    Raises:
        CommandError: it is missing, or no such file, or lacks an array.
    """
    arrays = _arrays(path)
    rest = dict(arrays)
    sample_weight = rest.pop("sample_weight", None)
    x, y = _take("x", rest), _take("y", rest)
    if x is None and rest:
        x, rest = rest, {}
    if x is None or y is None or rest:
        raise CommandError(
            f"{RULE}, and at most `sample_weight` besides. Received: {path} with "
            f"{_described(arrays)}. {_how_to_write(path)}"
        )
    return Batch(x, y, sample_weight)


def inputs_for(model: keras.Model, x: Any) -> Any:
    """Returns the inputs of a batch in the structure that a model takes them.

    Args:
        model: `keras.Model`. If it has a `call` of its own, it gets them unchanged.
        x: as in `Batch`.

    Raises:
        CommandError: they are not as many as the model has, or have other names.
    """
    tensors = getattr(model, "inputs", None)
    if not tensors:
        return x
    names = [tensor.name for tensor in tensors]
    if isinstance(x, dict) and x.keys() == set(names):
        x = [x[name] for name in names]
    arrays = x if isinstance(x, list) else [x]
    if isinstance(x, dict) or len(arrays) != len(names):
        received = ", ".join(x) if isinstance(x, dict) else f"{len(arrays)} of them"
        raise CommandError(
            f"{RULE}. The inputs of the model are {', '.join(names)}. Received: "
            f"{received}. Write the file with np.savez(path, y=y, "
            f"{', '.join(f'{name}=...' for name in names)})."
        )
    if isinstance(model, keras.Sequential):
        return arrays[0]
    return keras.tree.pack_sequence_as(model.input, arrays)


def _take(name: str, arrays: dict[str, Any]) -> Any:
    """Takes one array out of `arrays`, or the list `name_0`, `name_1`, ..., or None."""
    if name in arrays:
        return arrays.pop(name)
    found: list[Any] = []
    while (numbered := f"{name}_{len(found)}") in arrays:
        found.append(arrays.pop(numbered))
    return found or None


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise CommandError(
            f"`--data` must be a file. Received: {path}, not found. "
            f"{_how_to_write(path)}"
        )
    try:
        with zipfile.ZipFile(path), np.load(path) as file:
            arrays = dict(file)
        reason = _unfit(arrays)
        if not reason:
            return arrays
    except _DAMAGED as error:
        reason = str(error) or type(error).__name__
    raise CommandError(
        "`--data` must be an .npz file of arrays, without Python objects. Received: "
        f"{path}: {reason}. {_how_to_write(path)}"
    )


def _unfit(arrays: Mapping[str, Any]) -> str:
    """Returns why a model cannot be given these arrays; empty if it can."""
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        return "it holds other things than arrays"
    for name, array in arrays.items():
        if array.dtype.kind not in "biufSU":
            return f"{name!r} has the dtype {array.dtype}, not real numbers or texts"
        if not array.size:
            return f"{name!r} has the shape {array.shape}, without an example"
    return ""


def _described(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(arrays) or "no array"


def _how_to_write(path: Path) -> str:
    # To a path that was meant for something else, a model perhaps, nothing is written.
    suggested = str(path) if path.suffix == ".npz" else "batch.npz"
    return f"Write it with np.savez({suggested!r}, x=x, y=y)."
