"""RMSNormalization: 16 bits in and out, FP32 arithmetic."""

import keras

from keras_mp.layers.precision import FP32Weights, reshape_for_broadcast, uses_ops
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class RMSNormalization(FP32Weights, keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization`, with an FP32 scale and an FP32 gradient.

    `round(scale * x / sqrt(mean(x**2) + epsilon))`; everything inside `round` is FP32.
    The 16-bit inputs are kept for the backward pass. The scale is FP32 under the policy
    `float16` too, and is not rounded under `mixed_float16`. Its dimensions are
    the normalized axes; in the Keras layer they are the last axes, whatever `axis`.

    Args: as in `keras.layers.RMSNormalization`.

    Example:

    >>> layer = keras_mp.layers.RMSNormalization(dtype="float16")
    >>> layer(np.array([[3000.0, -3000.0]], "float16")).numpy()
    array([[ 1., -1.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, x: Tensor) -> Tensor:
        if not uses_ops(self, x):
            return super().call(x)
        from keras_mp.ops import row_normalization

        scale = reshape_for_broadcast(self.axis, x, self.scale)
        return row_normalization.normalize_rows(
            x, self.axis, row_normalization.ROOT_MEAN_SQUARE, self.epsilon, scale
        )
