"""Whether all gradients of all replicas are finite: else all of them skip the step."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mp import keras_internals
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


def find_nonfinite(
    optimizer: Any, nonfinite: Any, variables: Sequence[Any]
) -> tuple[Any, Any]:
    """Tells whether all gradients of all replicas are finite, and which is not.

    Args:
        optimizer: `keras.optimizers.Optimizer`, built.
        nonfinite: bool tensor: which gradients of this replica are not finite.
        variables: list of the variables of `optimizer` that they belong to.

    Returns:
        Scalar bool tensor; scalar int tensor, the position in the optimizer of the
        first variable with a gradient that is not finite, or the number of its
        variables.
    """
    replicas = backend.sum_over_replicas(ops.cast(nonfinite, "float32"))
    is_finite = ops.equal(replicas, 0)
    positions = [keras_internals.variable_index(optimizer, v) for v in variables]
    none = len(keras_internals.trainable_variables(optimizer))
    first = ops.min(ops.where(is_finite, none, ops.convert_to_tensor(positions, "int")))
    return ops.all(is_finite), first
