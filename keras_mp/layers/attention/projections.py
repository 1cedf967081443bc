"""What the multi-head attentions share: projections of ours, made in `build`."""

from typing import Any

import keras

from keras_mp.layers.core.einsum_dense import EinsumDense

# Objects of the user's among them, which need not be serializable.
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
    """Returns an `EinsumDense` of ours for one of Keras's that is not yet built."""
    copied = {name: getattr(projection, name) for name in _COPIED}
    shape, dtype = projection.partial_output_shape, projection.dtype_policy
    return EinsumDense(output_shape=shape, dtype=dtype, **copied)


class FP32Projections:
    """Mixed into a Keras attention: its projections are `keras_mp.layers.EinsumDense`.

    Keras makes them in `build`, and builds each after it has set it: where it is set,
    its class is chosen, whatever the release of Keras.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is keras.layers.EinsumDense and not value.built:
            value = _to_fp32_einsum_dense(value)
        super().__setattr__(name, value)
