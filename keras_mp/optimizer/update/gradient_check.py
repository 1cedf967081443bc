"""What a step learns of its unscaled gradients before it uses them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_mp.optimizer.backend import backend


class Wanted(NamedTuple):
    """What a check is to compute in addition to `nonfinite`.

    Attributes:
        largest: bool.
        sum_of_squares: bool.
    """

    largest: bool = False
    sum_of_squares: bool = False


class GradientCheck(NamedTuple):
    """What a check of unscaled gradients has found.

    Attributes:
        nonfinite: bool tensor, one for each gradient: whether it is not finite.
        largest: scalar float32 tensor, the largest absolute element of all of them, if
            they are finite; or None.
        sum_of_squares: scalar float32 tensor, of all their elements; or None.
    """

    nonfinite: Any
    largest: Any = None
    sum_of_squares: Any = None


def joined(checks: Iterable[GradientCheck]) -> GradientCheck:
    """Returns the check of all gradients, given checks of parts of them."""
    nonfinite, largest, sums = zip(*checks, strict=True)
    return GradientCheck(
        ops.concatenate(nonfinite),
        None if None in largest else ops.max(ops.stack(largest)),
        None if None in sums else ops.sum(ops.stack(sums)),
    )


def check_of_kernel(largest: Any, sum_of_squares: Any, wanted: Wanted) -> GradientCheck:
    """Returns the `GradientCheck` for what a native op has found.

    Args:
        largest: float32 tensor, the largest magnitude of each gradient.
        sum_of_squares: scalar float32 tensor.
        wanted: `Wanted`.
    """
    return GradientCheck(
        ops.logical_not(ops.isfinite(largest)),
        ops.max(largest) if wanted.largest else None,
        sum_of_squares if wanted.sum_of_squares else None,
    )


def largest_of(gradients: Sequence[Any]) -> Any:
    """Returns the largest absolute element of finite gradients, a scalar float32.

    Args:
        gradients: list of tensors or `tf.IndexedSlices`.
    """
    of_each = [ops.max(ops.abs(x), initial=0) for x in _values(gradients)]
    return ops.max(ops.stack([ops.zeros(()), *of_each]))


def sum_of_squares_of(gradients: Sequence[Any]) -> Any:
    """Returns the sum of the squares of all elements, a scalar float32.

    Args:
        gradients: as for `largest_of`.
    """
    of_each = [ops.sum(ops.square(x)) for x in _values(gradients)]
    return ops.sum(ops.stack([ops.zeros(()), *of_each]))


def _values(gradients: Sequence[Any]) -> list[Any]:
    values = [g.values if backend.is_sparse(g) else g for g in gradients]
    return [ops.cast(x, "float32") for x in values]
