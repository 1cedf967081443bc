"""Tools for gradient functions: formulas as one operation, deferred operations."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def defer_until_upstream(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the operations of a gradient function wait for the upstream gradient.

    A graph runs an operation as soon as its inputs are ready, and merges operations
    that compute the same. Without this control dependency, whatever a gradient computes
    only from the inputs, such as their FP32 copies, would be computed in the forward
    pass and stay in memory until the backward pass.
    """

    @functools.wraps(gradient)
    def deferred(*upstream: tf.Tensor) -> Any:
        with tf.control_dependencies(upstream):
            return gradient(*upstream)

    return deferred


def as_one_operation(formula: Callable[..., Any], *arguments: tf.Tensor) -> Any:
    """Computes a formula that a tape records as one operation.

    No intermediate result is kept: the gradient computes the formula again. A second
    tape differentiates the formula again.

    Args:
        formula: function of the arguments that returns a tensor or a tuple of tensors.
        *arguments: tensors.
    """

    @tf.custom_gradient
    def compute(*arguments: tf.Tensor) -> tuple[Any, Any]:
        def gradient(*upstream: tf.Tensor) -> Any:
            return vjp(formula, arguments, upstream)

        constants = [tf.stop_gradient(x) for x in arguments]
        return formula(*constants), gradient

    return compute(*arguments)


def vjp(
    formula: Callable[..., Any],
    arguments: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor],
) -> list[tf.Tensor | None]:
    """Returns the vector-Jacobian product: the gradient of each argument.

    Args:
        formula: function of the arguments that returns a tensor or a tuple of tensors.
        arguments: tensors.
        upstream: the gradient of each result.
    """
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        results = formula(*arguments)
    is_tuple = isinstance(results, tuple)
    grads = tape.gradient(
        results, list(arguments), tuple(upstream) if is_tuple else upstream[0]
    )
    return list(grads)
