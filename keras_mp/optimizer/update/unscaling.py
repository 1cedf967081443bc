"""Gradients divided by the loss scale, in FP32."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.masters import needs_master
from keras_mp.optimizer.update.all_replicas_finite import nonfinite_of
from keras_mp.optimizer.update.gradient_check import (
    GradientCheck,
    Wanted,
    check_of_kernel,
    largest_of,
    sum_of_squares_of,
)


def unscale(
    optimizer: Any,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    scale: Any,
    wanted: Wanted,
    replicas: int = 1,
) -> tuple[list[Any], GradientCheck]:
    """Divides gradients by the scale, in FP32, and checks them.

    Args:
        optimizer: the optimizer that tells which variables their gradient replaces.
        gradients: list of tensors, `tf.IndexedSlices` or None.
        variables: list of their variables.
        scale: scalar float32 tensor, or None for gradients that are unscaled already.
        wanted: `Wanted`.
        replicas: int, over how many the gradients will be summed. A gradient also
            counts as not finite if the sum of so many of its size would overflow.

    Returns:
        List like `gradients`, float32; `GradientCheck` of those that are not None. Its
        `largest` and `sum_of_squares` leave out gradients that replace their variables.
    """
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    unscaled = list(gradients)
    if _fit_the_kernel(optimizer, gradients, variables, scale):
        from keras_mp.ops.kernels import update

        with update.beside(variables):
            values, largest, sum_of_squares = update.unscale_gradients(
                [gradients[i] for i in given], scale, wanted.sum_of_squares
            )
        for i, value in zip(given, values, strict=True):
            unscaled[i] = value
        return unscaled, check_of_kernel(largest, sum_of_squares, wanted)
    scaled = [
        i
        for i in given
        if not keras_internals.is_replaced_by_gradient(optimizer, variables[i])
    ]
    for i in scaled:
        unscaled[i] = _in_fp32(gradients[i], scale)
    values = [unscaled[i] for i in scaled]
    return unscaled, GradientCheck(
        nonfinite_of(unscaled, replicas),
        largest_of(values) if wanted.largest else None,
        sum_of_squares_of(values) if wanted.sum_of_squares else None,
    )


def _fit_the_kernel(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], scale: Any
) -> bool:
    # Gradients may be unscaled before `build`, when their variables are not known.
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
