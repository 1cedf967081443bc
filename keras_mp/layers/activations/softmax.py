"""Softmax: 16 bits in and out, FP32 arithmetic."""

import keras

from keras_mp.layers.precision import uses_ops
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class Softmax(keras.layers.Softmax):
    """`keras.layers.Softmax`, computed in FP32 and rounded once.

    `round(exp(x - max(x)) / sum(exp(x - max(x))))`. The 16-bit inputs are kept for the
    backward pass. Masked elements are 0 in result and gradient, whatever their input,
    also in a row that is masked entirely.

    Args: as in `keras.layers.Softmax`.

    Example:

    >>> logits = np.zeros((1, 100_000), "float16")
    >>> probabilities = keras_mp.layers.Softmax(dtype="float16")(logits)
    >>> probabilities.numpy()[:, :2]    # of the Keras layer: [[0., 0.]]
    array([[1.e-05, 1.e-05]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs, mask=mask)
        from keras_mp.ops import softmax

        return softmax(inputs, self.axis, mask)
