"""What the wrapper must know of the optimizer that it wraps."""

from collections.abc import Callable
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.arguments import shown
from keras_mp.optimizer.backend import backend

# Optimizers that leave a row alone when its gradient is zero, so that only the rows
# of a sparse gradient need to travel between weight and master.
_LEAVES_ZERO_GRADIENTS: dict[type, Callable[[Any], bool]] = {
    keras.optimizers.Adadelta: lambda optimizer: True,
    keras.optimizers.Adagrad: lambda optimizer: True,
    keras.optimizers.RMSprop: lambda optimizer: not optimizer.momentum,
    keras.optimizers.SGD: lambda optimizer: not optimizer.momentum,
}


def check_inner(optimizer: Any) -> None:
    """Refuses an optimizer that would scale twice or whose state would be lost.

    Raises:
        TypeError: not a `keras.optimizers.Optimizer`.
        ValueError: it scales the loss, or it is built.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "The optimizer to wrap must not scale the loss itself, or gradients are "
            f"un-scaled twice. Received: a {type(optimizer).__name__}. Wrap what is "
            "inside: keras_mp.wrap(optimizer.inner_optimizer)."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`inner_optimizer` must be a keras.optimizers.Optimizer. "
            f"Received: {shown(optimizer)} of type {type(optimizer).__name__}. "
            "keras_mp.wrap also takes a name or a config."
        )
    for leaf in leaves(optimizer):
        if leaf.loss_scale_factor is not None:
            raise ValueError(
                "The optimizer to wrap must not scale the loss itself. Received: "
                f"loss_scale_factor={leaf.loss_scale_factor}. Leave it out and write "
                f"keras_mp.wrap(optimizer, loss_scale={leaf.loss_scale_factor})."
            )
    if optimizer.built:
        raise ValueError(
            "The optimizer to wrap must be new: this one has made its slots for "
            f"other variables. Received: a built {type(optimizer).__name__}. Wrap a "
            "copy: optimizer.__class__.from_config(optimizer.get_config())."
        )


def leaves(optimizer: Any) -> list[Any]:
    """Returns the optimizer itself, and those inside a `MultiOptimizer`."""
    return [optimizer, *getattr(optimizer, "optimizers", [])]


def check_values_to_copy(optimizer: Any, variables: list[Any]) -> None:
    """Refuses to build an optimizer that copies variables which have no value yet.

    Raises:
        ValueError: so it is.
    """
    # Keras 3.12, the last for Python 3.10, has no such optimizer.
    copying = getattr(keras.optimizers, "ScheduleFreeAdamW", ())
    copies = [leaf for leaf in leaves(optimizer) if isinstance(leaf, copying)]
    if copies and not backend.have_values(variables):
        raise ValueError(
            "ScheduleFreeAdamW starts from a copy of the weights, so the model must "
            "be built before the first step. Received: weights that the first step "
            "creates. Start the model with keras.Input, or call model.build(shape)."
        )


def exclude_from_weight_decay_too(optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
    """Makes an exclusion of a weight from weight decay hold for its master.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        pairs: list of (weight, master).
    """
    for leaf in leaves(optimizer):
        for weight, master in pairs:
            if not keras_internals.uses_weight_decay(leaf, weight):
                keras_internals.add_to_weight_decay_exclusions(leaf, master)


def touched_rows(optimizer: Any, gradient: Any, master: Any) -> Any:
    """Returns the rows of `master` that a step of `optimizer` can change.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        gradient: tensor, `tf.IndexedSlices` or None.
        master: `keras.Variable`.

    Returns:
        int tensor of row numbers, or None where any row may change.
    """
    leaves_zero_gradients = _LEAVES_ZERO_GRADIENTS.get(type(optimizer))
    if (
        not backend.is_sparse(gradient)
        or leaves_zero_gradients is None
        or not leaves_zero_gradients(optimizer)
        or optimizer.weight_decay
        or optimizer.use_ema
        or optimizer.gradient_accumulation_steps
        or master.constraint is not None
    ):
        return None
    return gradient.indices
