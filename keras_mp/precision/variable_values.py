"""The values that the variables of a model have for one look at it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.precision.compute_dtype import is_quantized
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.modes import PrecisionPolicy
from keras_mp.regularizers import FP32Regularizer


class VariableValues(keras.StatelessScope):
    """A scope in which variables have other values, of any floating-point dtype.

    That of Keras rounds them to the dtype of the variable: FP32 masters to FP16. What
    is assigned to a variable inside of the scope is forgotten after it.

    Args:
        values: dict from the `id` of a variable to a tensor of its shape.
    """

    def __init__(self, values: dict[int, Any]) -> None:
        super().__init__(collect_losses=True)
        self.state_mapping = dict(values)


def variable_values(
    model: keras.Model, dtype: str | None, masters: dict[int, Any]
) -> dict[int, Any]:
    """Returns a copy of each variable in another precision, by the variable's `id`.

    Those of trainable variables are a `tf.Variable` each, so that what looks for
    variables, such as `keras.remat`, finds them. In quantized layers they are tensors:
    there the code of Keras fails outside of a graph where it finds a variable. What a
    plan would store in FP32 is FP32.

    Args:
        model: `keras.Model`.
        dtype: `"float32"`, `"float16"`, or None, for the precision of the model itself:
            that in which variables of 16 bits are to be stored.
        masters: dict from the `id` of a variable to the value it is to have instead of
            its own.
    """
    import tensorflow as tf

    quantized = {
        id(variable)
        for layer in ModelIndex(model).layers
        if is_quantized(layer)
        for variable in layer.variables
    }
    trainable = {id(variable) for variable in model.trainable_variables} - quantized
    # Quantized layers compute as ever in the FP16 run.
    kept = quantized if dtype == "float16" else ()
    widened = {
        id(variable)
        for layer in ModelIndex(model).layers
        if isinstance(layer.dtype_policy, PrecisionPolicy)
        and layer.dtype_policy.widens_weights
        for variable, _ in keras_internals.own_variables(layer)
    }
    values = {}
    for variable in model.variables:
        value = ops.convert_to_tensor(masters.get(id(variable), variable))
        is_changed = dtype and is_half(variable.dtype) and id(variable) not in kept
        stored = "float32" if id(variable) in widened else variable.dtype
        value = ops.cast(value, dtype if is_changed else stored)
        is_trainable = id(variable) in trainable
        values[id(variable)] = tf.Variable(value) if is_trainable else ops.copy(value)
    return values


def has_gradient(variable: Any) -> bool:
    """Tells whether the gradient of a variable is one: in FP8 it may be a new value."""
    return not getattr(variable, "overwrite_with_gradient", False)


@contextlib.contextmanager
def regularizing_in_fp32(model: keras.Model) -> Iterator[None]:
    """Evaluates the regularizers of 16-bit weights in FP32 inside a `with` block.

    Keras cannot add penalties of 16 bits to a loss. A wrapped optimizer that is built
    has done the same for good.
    """
    before = [
        (variable, variable.regularizer)
        for variable in model.trainable_variables
        if variable.regularizer is not None and is_half(variable.dtype)
    ]
    try:
        for variable, regularizer in before:
            variable.regularizer = FP32Regularizer(regularizer)
        yield
    finally:
        for variable, regularizer in before:
            variable.regularizer = regularizer
