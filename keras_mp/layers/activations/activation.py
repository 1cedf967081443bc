"""Activation: softmax and log-softmax in FP32."""

import keras

from keras_mp.layers.precision import activate, uses_ops
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class Activation(keras.layers.Activation):
    """`keras.layers.Activation` with softmax and log-softmax in FP32.

    They are rounded once, as in `keras_mp.layers.Softmax`. The other activations do not
    sum, and Keras computes them.

    Args: as in `keras.layers.Activation`.

    Example:

    >>> layer = keras_mp.layers.Activation("softmax", dtype="float16")
    >>> layer(np.zeros((1, 100_000), "float16")).numpy()[:, :2]    # of Keras: 0
    array([[1.e-05, 1.e-05]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs)
        return activate(self.activation, inputs)
