"""Mixin that replaces the projections of Keras's attention layers."""

from typing import Any

import keras

from keras_mp.layers.core.einsum_dense import EinsumDense

# Attributes to copy. They are copied as objects, not by `get_config`, since an
# initializer of the user need not be serializable.
_COPIED = (
    "equation",
    "activation",
    "bias_axes",
    "kernel_initializer",
    "bias_initializer",
    "kernel_regularizer",
    "bias_regularizer",
    "activity_regularizer",
    "kernel_constraint",
    "bias_constraint",
    "name",
)


def _to_fp32_einsum_dense(projection: Any) -> EinsumDense:
    """Returns a `keras_mp` copy of an `EinsumDense` of Keras that is not built."""
    copied = {name: getattr(projection, name) for name in _COPIED}
    shape, dtype = projection.partial_output_shape, projection.dtype_policy
    return EinsumDense(output_shape=shape, dtype=dtype, **copied)


class FP32Projections:
    """Mixin for a Keras attention: projections are `keras_mp.layers.EinsumDense`.

    In `build`, Keras assigns each projection to an attribute before it builds it. The
    assignment is where the projection is replaced: it depends on no name or method
    that is private to Keras.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is keras.layers.EinsumDense and not value.built:
            value = _to_fp32_einsum_dense(value)
        super().__setattr__(name, value)
