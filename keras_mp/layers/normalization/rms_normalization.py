"""RMSNormalization, in FP32 between 16-bit inputs and outputs."""

from typing import Any

import keras

from keras_mp.layers.precision import FP32Weights, reshape_for_broadcast, uses_ops


@keras.saving.register_keras_serializable(package="keras_mp")
class RMSNormalization(FP32Weights, keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization`, with an FP32 scale and an FP32 gradient of it.

    `round(scale * x / sqrt(mean(x**2) + epsilon))`, everything inside of `round` in
    FP32. The inputs are held for the backward pass in their 16 bits. The scale is FP32
    under the policy `float16` too, and is not rounded under `mixed_float16`. It lies
    along the axes that are normalized, where the Keras layer takes the last ones.

    Args: those of `keras.layers.RMSNormalization`.

    Example:

    >>> layer = keras_mp.layers.RMSNormalization(dtype="float16")
    >>> layer(np.array([[3000.0, -3000.0]], "float16")).numpy()
    array([[ 1., -1.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, x: Any) -> Any:
        if not uses_ops(self, x):
            return super().call(x)
        from keras_mp.ops import row_normalization

        scale = reshape_for_broadcast(self.axis, x, self.scale)
        return row_normalization.normalize_rows(
            x, self.axis, row_normalization.ROOT_MEAN_SQUARE, self.epsilon, scale
        )
