"""Gradients divided by the scale, and whether they are finite, on all replicas."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.master_weights import needs_master


def unscale(
    optimizer: Any,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    scale: Any,
    replicas: int = 1,
) -> tuple[list[Any], Any]:
    """Divides gradients by the scale, in FP32, and tells which are not finite.

    Args:
        optimizer: the optimizer that tells which variables their gradient replaces.
        gradients: list of tensors, `tf.IndexedSlices` or None.
        variables: list of their variables.
        scale: scalar float32 tensor, or None for gradients that are un-scaled already.
        replicas: int, over how many the gradients will be summed. A gradient also
            counts as not finite if the sum of so many of its size would overflow.

    Returns:
        List like `gradients`, float32; bool tensor, one for each that is not None.
    """
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    unscaled = list(gradients)
    if _fit_the_kernel(optimizer, gradients, variables, scale):
        from keras_mp.ops.kernels import update

        with update.beside(variables):
            values, nonfinite = update.unscale_gradients(
                [gradients[i] for i in given], scale
            )
        for i, value in zip(given, values, strict=True):
            unscaled[i] = value
        return unscaled, nonfinite
    for i in given:
        if not keras_internals.is_replaced_by_gradient(optimizer, variables[i]):
            unscaled[i] = _in_fp32(gradients[i], scale)
    return unscaled, nonfinite_of(unscaled, replicas)


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


def _fit_the_kernel(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], scale: Any
) -> bool:
    # Gradients may be un-scaled before `build`, when their variables are not known.
    are_known = all(variable is not None for variable in variables)
    if scale is None or not are_known or not backend.can_update(variables):
        return False
    from keras_mp.ops.kernels import update

    return all(
        gradient is None
        or (
            update.takes(gradient)
            and not keras_internals.is_replaced_by_gradient(optimizer, variable)
        )
        for gradient, variable in zip(gradients, variables, strict=True)
    )


def _in_fp32(gradient: Any, scale: Any) -> Any:
    if needs_master(gradient):
        gradient = ops.cast(gradient, "float32")
    if scale is None:
        return gradient
    return ops.divide(gradient, ops.cast(scale, gradient.dtype))


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
