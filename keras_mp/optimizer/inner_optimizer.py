"""Checks and properties of the optimizer that is wrapped."""

import functools
import inspect
from collections.abc import Callable, Set
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.arguments import short_repr
from keras_mp.optimizer.backend import backend

# Options with which a row whose gradient is zero keeps its value, so that only the rows
# of a sparse gradient need to be copied between weight and master.
_KEEP_ROWS_OF_ALL = {
    "learning_rate",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "ema_momentum",
    "name",
}
_KEEP_ROWS: dict[type, set[str]] = {
    keras.optimizers.Adadelta: {"rho", "epsilon"},
    keras.optimizers.Adagrad: {"initial_accumulator_value", "epsilon"},
    keras.optimizers.RMSprop: {"rho", "epsilon", "centered"},
    keras.optimizers.SGD: {"nesterov"},
}


def check_inner_optimizer(optimizer: Any) -> None:
    """Refuses an optimizer that scales the loss itself, or has state for other weights.

    Raises:
        TypeError: not a `keras.optimizers.Optimizer`.
        ValueError: it scales the loss itself, or it has been built.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "The optimizer to wrap must not scale the loss itself, or gradients are "
            f"unscaled twice. Received: a {type(optimizer).__name__}. Wrap what is "
            "inside: keras_mp.wrap(optimizer.inner_optimizer)."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`inner_optimizer` must be a keras.optimizers.Optimizer. "
            f"Received: {short_repr(optimizer)} of type {type(optimizer).__name__}. "
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
    """Returns the optimizer, and those inside it if it is a `MultiOptimizer`."""
    return [optimizer, *getattr(optimizer, "optimizers", [])]


def class_of(optimizer: Any) -> type:
    """Returns the class of an optimizer: for one of Keras's own, the public class.

    On PyTorch, `keras.optimizers.Adam.__new__` makes an object of another class.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
    """
    found = type(optimizer)
    public = vars(keras.optimizers).get(found.__name__)
    is_public = isinstance(public, type) and issubclass(found, public)
    if not is_public or found is public:
        return found
    return public if type(public.__new__(public)) is found else found


def options_in_use(
    optimizer: Any, besides: Set[str], kind: type | None = None
) -> dict[str, Any]:
    """Returns the values of options that differ from their defaults.

    A rule that knows some options uses this to refuse all others, also the options of
    later versions of Keras.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        besides: set of names of options that are left out.
        kind: class. Its constructor and its bases' constructors have the options: a
            class may hand some to a base as `**kwargs`. Defaults to the class of
            `optimizer`.
    """
    classes = map(vars, reversed((kind or type(optimizer)).__mro__))
    defaults = _defaults(tuple(c["__init__"] for c in classes if "__init__" in c))
    values = {
        name: getattr(optimizer, name, inspect.Parameter.empty)
        for name in defaults.keys() - besides
    }
    return {name: value for name, value in values.items() if value != defaults[name]}


@functools.cache
def _defaults(constructors: tuple[Callable[..., Any], ...]) -> dict[str, Any]:
    """Returns the default of each parameter, by the last constructor that names it."""
    return {
        name: parameter.default
        for constructor in constructors
        for name, parameter in inspect.signature(constructor).parameters.items()
    }


def check_values_to_copy(optimizer: Any, variables: list[Any]) -> None:
    """Refuses to build an optimizer that copies weights which have no value yet.

    Raises:
        ValueError: it copies some, and they have no value.
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


def exclude_masters_from_weight_decay(
    optimizer: Any, pairs: list[tuple[Any, Any]]
) -> None:
    """Excludes the masters of weights that are excluded from weight decay.

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
        int tensor of row numbers, or None if any row may change.
    """
    known = _KEEP_ROWS.get(type(optimizer))
    if (
        not backend.is_sparse(gradient)
        or known is None
        or any(options_in_use(optimizer, {*_KEEP_ROWS_OF_ALL, *known}).values())
        or master.constraint is not None
    ):
        return None
    return gradient.indices
