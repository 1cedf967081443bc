"""Whether all gradients of all replicas are finite: else all of them skip the step."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mp.optimizer.backend import backend


def nonfinite_of(gradients: Sequence[Any], replicas: int = 1) -> Any:
    """Tells which gradients are not finite: a bool tensor, one for each not None.

    Args:
        gradients: list of tensors, `tf.IndexedSlices` or None.
        replicas: as for `unscale`.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    values = [g.values if backend.is_sparse(g) else g for g in given]
    if replicas > 1:
        values = [x * ops.cast(replicas, x.dtype) for x in values]
    return ops.stack([ops.logical_not(ops.all(ops.isfinite(x))) for x in values])


def find_nonfinite(nonfinite: Any, positions: Sequence[int]) -> tuple[Any, Any]:
    """Tells whether all gradients of all replicas are finite, and which is not.

    Args:
        nonfinite: bool tensor: which gradients of this replica are not finite.
        positions: list of the positions of their variables in the optimizer.

    Returns:
        Scalar bool tensor; scalar int tensor, the position of the first variable with
        a gradient that is not finite, or one that no variable has.
    """
    replicas = backend.sum_over_replicas(ops.cast(nonfinite, "float32"))
    is_finite = ops.equal(replicas, 0)
    none = max(positions) + 1
    first = ops.min(ops.where(is_finite, none, ops.convert_to_tensor(positions, "int")))
    return ops.all(is_finite), first
