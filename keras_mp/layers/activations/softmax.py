"""Softmax, in FP32 between 16-bit inputs and outputs."""

from typing import Any

import keras

from keras_mp.layers.precision import uses_ops


@keras.saving.register_keras_serializable(package="keras_mp")
class Softmax(keras.layers.Softmax):
    """`keras.layers.Softmax`, computed in FP32 and rounded once.

    `round(exp(x - max(x)) / sum(exp(x - max(x))))`. The inputs are held for the
    backward pass in their 16 bits. What is masked is 0, whatever stands there, and so
    is a row that is masked as a whole, in the gradient too.

    Args: those of `keras.layers.Softmax`.

    Example:

    >>> logits = np.zeros((1, 100_000), "float16")
    >>> probabilities = keras_mp.layers.Softmax(dtype="float16")(logits)
    >>> probabilities.numpy()[:, :2]    # of the Keras layer: [[0., 0.]]
    array([[1.e-05, 1.e-05]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Any, mask: Any = None) -> Any:
        if not uses_ops(self, inputs):
            return super().call(inputs, mask=mask)
        from keras_mp.ops import softmax

        return softmax(inputs, self.axis, mask)
