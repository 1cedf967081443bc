"""Checkpoints that are either whole or recognized as damaged."""

import contextlib
import errno
import hashlib
import itertools
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np

from keras_mp.arguments import whole_number
from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.sharding import to_numpy

# Keras numbers names, also those of the weights inside the name of a slot.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")
_CLASSES = {name.lower() for name in dir(keras.optimizers)}
_SEED = "seed_generator/seed_generator_state"
# Path, dtype and shape.
_Variable = tuple[str, str, tuple[int, ...]]
_RULE = "A checkpoint must have the checksum that is in its name."


class Checkpoints(keras.callbacks.Callback):
    """Saves the whole state of training, and restores the last undamaged checkpoint.

    A checkpoint holds every variable of a model and of its optimizer: weights,
    masters, slots, the loss scale with its counters, and the seeds of dropout, which
    `save_weights` and `tf.train.Checkpoint` leave out. A run that is resumed from one
    ends with the same bits as if it had not been interrupted.

    It is one file, `<number>-<checksum>.npz`, written under another name, flushed to
    the disk and then renamed, so that the process may be killed at any moment. The
    checksum, 16 digits of SHA-256, reveals a file that was cut short or changed.

    As a callback of `fit` it saves at the end of every epoch. `fit` can only be resumed
    at the beginning of an epoch, so make epochs short with `steps_per_epoch`. A custom
    training loop can call `save` after any step.

    Args:
        directory: str or path, into which one process saves; created by the first
            `save`.
        keep: int >= 1. How many of the last checkpoints to keep. Defaults to 2.

    Raises:
        TypeError: `keep` is not an int.
        ValueError: `keep` is below 1.

    Example:

    >>> import tempfile
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(keras_mp.wrap("adam"), "mse")
    >>> x = np.ones((4, 2), "float32")
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoints = keras_mp.Checkpoints(directory)
    ...     history = model.fit(
    ...         x, x[:, :1], epochs=3, initial_epoch=checkpoints.restore(model),
    ...         callbacks=[checkpoints], verbose=0)
    ...     checkpoints.restore(model)
    3
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 2) -> None:
        super().__init__()
        self.directory = Path(directory)
        self.keep = whole_number("keep", keep, "Try 2.")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, under the number of finished epochs."""
        self.save(epoch + 1, self.model)

    def save(self, number: int, *objects: Any) -> None:
        """Saves variables, and removes checkpoints that are no longer kept.

        Checkpoints with this number or a higher one are removed too: they are from a
        run that this one has replaced since it was resumed from before them. If several
        processes share an optimizer's state (`shard_state=True`), all must save, each
        into its own directory.

        Args:
            number: int >= 1. The number of finished steps or epochs.
            *objects: models and optimizers. That of a compiled model is included.

        Raises:
            OSError: the file cannot be written, and the others are unchanged; another
                process saves into the directory; or the file has been written, and one
                with a higher number cannot be removed.
            TypeError: `number` is not an int.
            ValueError: `number` is below 1, or an object is not built.
        """
        number = whole_number("number", number, "Count the steps or epochs done.")
        arrays = {
            f"{i} {variable.path} {_dtype(variable)}": to_numpy(variable)
            for i, variable in enumerate(_variables(objects))
        }
        unfinished = self.directory / "unfinished"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            path = self.directory / f"{number:09d}-{_write(unfinished, arrays)}.npz"
            os.replace(unfinished, path)
            _sync(self.directory)
        except OSError as error:
            reason = _interference(error, unfinished)
            if not reason:
                with contextlib.suppress(OSError):  # it would have the same cause
                    unfinished.unlink()
                where = f": {error.filename}" if error.filename else ""
                reason = (
                    f"{error.strerror}{where}. Earlier checkpoints are unchanged. Fix "
                    "that, for instance make room, or choose another directory"
                )
            raise OSError(
                error.errno,
                f"Checkpoint {number} could not be written: {reason}",
                str(self.directory),
            ) from error
        self._remove_all_but(number, path)

    def restore(self, *objects: Any) -> int:
        """Restores variables from the last checkpoint that is not damaged.

        Args:
            *objects: as for `save`, in the same order.

        Returns:
            The number it was saved under, 0 if there is no checkpoint.

        Raises:
            OSError: all checkpoints are damaged, or the last one is removed meanwhile.
            ValueError: the checkpoint has variables of other paths, shapes or dtypes,
                or an object is not built. Nothing is restored then. The numbers that
                Keras appends to names may differ, and so may the names of optimizers.
        """
        variables = _variables(objects)
        damaged: list[str] = []
        for number, checksum, path in reversed(self._found()):
            # A file that is open can be read to its end, though it be removed.
            with self._open(path) as file:
                if _checksum(file) != checksum:
                    damaged.append(str(path))
                    continue
                if damaged:
                    warnings.warn(
                        f"{_RULE} Received: {', '.join(damaged)}, cut short or changed "
                        f"since. Restored instead: {path}.",
                        stacklevel=2,
                    )
                _assign(variables, _optimizer_names(objects), file)
            return number
        if damaged:
            raise OSError(
                f"{_RULE} Received: {', '.join(damaged)}, cut short or changed since, "
                "and no other. Bring back a copy, or start in another directory."
            )
        return 0

    def _found(self) -> list[tuple[int, str, Path]]:
        """Returns number, checksum and path of each checkpoint, in order."""
        paths = self.directory.glob("*.npz")
        named = ((re.fullmatch(r"(\d+)-([0-9a-f]{16})", p.stem), p) for p in paths)
        return sorted(
            (int(name[1]), name[2], path)
            for name, path in named
            if name and path.is_file()
        )

    def _open(self, path: Path) -> BinaryIO:
        try:
            return path.open("rb")
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno,
                "A checkpoint must stay until it is restored. Received: "
                f"{path.name}, removed after `restore` had begun, by another process "
                "that saves into this directory, or by hand. Nothing was restored. "
                "Call `restore` again",
                str(self.directory),
            ) from error

    def _remove_all_but(self, number: int, new: Path) -> None:
        """Removes all checkpoints but the new one and the last `keep - 1` before it."""
        found = self._found()
        earlier = [path for other, _, path in found if other < number]
        kept = [*earlier, new][-self.keep :]
        for other, _, path in found:
            if path not in kept:
                _remove(path, is_later=other > number)


def _variables(objects: Sequence[Any]) -> list[Any]:
    """Returns the variables of all objects; builds a model's optimizer if need be."""
    variables: list[Any] = []
    for each in objects:
        if not getattr(each, "built", True):
            raise ValueError(
                "A checkpoint needs all variables to be there. Received: "
                f"{each.name!r}, which is not built. Start a model with keras.Input, "
                "or call its build(shape); build an optimizer on its variables."
            )
        variables += each.variables
        optimizer = getattr(each, "optimizer", None)
        if optimizer is not None:
            if not optimizer.built:
                strategy = getattr(each, "distribute_strategy", None)
                with strategy.scope() if strategy else contextlib.nullcontext():
                    optimizer.build(each.trainable_variables)
            variables += optimizer.variables
    return variables


def _dtype(variable: Any) -> str:
    return keras.backend.standardize_dtype(variable.dtype)


def _write(path: Path, arrays: dict[str, Any]) -> str:
    """Writes a file, flushes it to the disk, and returns its checksum.

    Raises:
        FileExistsError: another file has its name, before or after.
        FileNotFoundError: no file has its name when it is written.
    """
    # A process that was killed may have left one; a link may point to any file.
    path.unlink(missing_ok=True)
    with path.open("x+b") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
        if not os.path.samestat(os.fstat(file.fileno()), path.lstat()):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        return _checksum(file)


def _interference(error: OSError, unfinished: Path) -> str:
    """Returns who else changed the directory meanwhile; an empty string for nobody."""
    if not isinstance(error, FileExistsError | FileNotFoundError):
        return ""
    if not unfinished.parent.exists():
        return "the directory was removed meanwhile"
    if Path(error.filename or "") != unfinished:
        return ""
    return (
        "another process saves into this directory. Give each run its own directory; "
        "where several processes train one model, let one of them save, or with "
        "`shard_state=True` each into its own"
    )


def _sync(directory: Path) -> None:
    """Flushes the names of the files in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # These come from file systems that cannot flush a directory.
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path, is_later: bool) -> None:
    """Removes a checkpoint; a failure is an error for one that `restore` would use."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if is_later:
            raise OSError(
                error.errno,
                "A checkpoint of a higher number must be removed, or `restore` takes "
                f"it. Received: {error.strerror}. Remove it by hand",
                str(path),
            ) from error
        warnings.warn(
            "A checkpoint that is no longer kept must be removed. Received: "
            f"{path}: {error.strerror}. Remove it by hand; the new one is written.",
            stacklevel=4,
        )


def _checksum(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(2**20):
        digest.update(chunk)
    return digest.hexdigest()[:16]


def _assign(variables: list[Any], optimizers: set[str], file: BinaryIO) -> None:
    """Assigns the values of a checkpoint, if it has these variables and no others.

    Args:
        variables: list of `keras.Variable`.
        optimizers: set of str, the names of the optimizers that have some of them.
        file: the checkpoint, open for reading.
    """
    file.seek(0)
    with np.load(file) as archive:
        arrays = dict(archive)
    saved = []
    for key, array in arrays.items():
        name, _, dtype = key.partition(" ")[2].rpartition(" ")
        saved.append((name, dtype, array.shape))
    wanted = [(v.path, _dtype(v), tuple(v.shape)) for v in variables]
    other = _first_difference(saved, wanted, optimizers)
    if other is not None:
        found, expected = (
            [*each, None][min(other, len(each))] for each in (saved, wanted)
        )
        raise ValueError(
            "A checkpoint must be of the same model, optimizer and dtype policy. "
            f"Received: {file.name}; its variable {other} is {found}, and here it "
            f"is {expected}. Use the same as before, or start in another directory."
        )
    for variable, array in zip(variables, arrays.values(), strict=True):
        # NumPy has no bfloat16, and reads it as bytes without a type.
        variable.assign(array.view(_dtype(variable)))


def _first_difference(
    saved: list[_Variable], wanted: list[_Variable], optimizers: set[str]
) -> int | None:
    """Returns the position of the first variable that is not the one saved there."""
    for i, (one, other) in enumerate(itertools.zip_longest(saved, wanted)):
        if one is None or other is None or one[1:] != other[1:]:
            return i
    old, new = ([path for path, _, _ in each] for each in (saved, wanted))
    return _first_other_path(old, new, optimizers)


def _optimizer_names(objects: Sequence[Any]) -> set[str]:
    """Returns the names of all optimizers among objects, in models and in wrappers."""
    optimizers = [getattr(each, "optimizer", each) for each in objects]
    inner = [getattr(each, "inner_optimizer", each) for each in optimizers]
    every = [*optimizers, *(leaf for each in inner for leaf in leaves(each))]
    return {o.name for o in every if isinstance(o, keras.optimizers.Optimizer)}


def _first_other_path(
    saved: Sequence[str], wanted: Sequence[str], optimizers: set[str]
) -> int | None:
    """Returns the position of the first variable that was saved for another one.

    The numbers that Keras appends to names depend on what else the process has made:
    `dense` may have been `dense_3`. If the same numbered names come in another order,
    nobody counted, and they are compared with their numbers. The names of two
    optimizers are compared where both are those that Keras makes of its classes.

    Args:
        saved: list of the paths in the checkpoint.
        wanted: list of paths, as many, in the same order.
        optimizers: set of str, the names of the optimizers to be restored.
    """
    pairs = [
        _without_optimizer(*paths, optimizers)
        for paths in zip(saved, wanted, strict=True)
    ]
    numbered = defaultdict(list)
    for i, (found, path) in enumerate(pairs):
        label = _NUMBER.sub("", path)
        if _NUMBER.sub("", found) != label:
            return i
        if label != _SEED:  # of a model and an optimizer, in whichever order made
            numbered[label].append(i)
    swapped = [
        i
        for indices in numbered.values()
        if sorted(pairs[i][0] for i in indices) == sorted(pairs[i][1] for i in indices)
        for i in indices
        if pairs[i][0] != pairs[i][1]
    ]
    return min(swapped, default=None)


def _without_optimizer(saved: str, wanted: str, names: set[str]) -> tuple[str, str]:
    """Returns two paths without the names of optimizers, if those may differ."""
    name, _, rest = wanted.partition("/")
    old_name, _, old_rest = saved.partition("/")
    both = {_class_of(name), _class_of(old_name)}
    if name not in names or (len(both) == 2 and both <= _CLASSES):
        return saved, wanted
    return old_rest, rest


def _class_of(name: str) -> str:
    """Returns the name of a class, in small letters, for the name that Keras makes."""
    return _NUMBER.sub("", name).replace("_", "").lower()
