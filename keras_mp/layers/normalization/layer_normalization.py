"""LayerNormalization: 16 bits in and out, FP32 arithmetic."""

import keras

from keras_mp.layers.precision import FP32Weights, reshape_for_broadcast, uses_ops
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class LayerNormalization(FP32Weights, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`, with FP32 weights and FP32 gradients.

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`; everything inside
    `round` is FP32, the variance in a second pass. The 16-bit inputs are kept for the
    backward pass. Gamma and beta are FP32 under the policy `float16` too.

    Args: as in `keras.layers.LayerNormalization`.

    Example:

    >>> layer = keras_mp.layers.LayerNormalization(dtype="float16")
    >>> layer(np.array([[-500.0, 1100.0]], "float16")).numpy()
    array([[-1.,  1.]], dtype=float16)
    >>> layer.gamma.dtype
    'float32'

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor) -> Tensor:
        if not uses_ops(self, inputs) or self.rms_scaling:
            return super().call(inputs)
        from keras_mp.ops import row_normalization

        gamma, beta = (
            reshape_for_broadcast(self.axis, inputs, weight)
            for weight in (self.gamma, self.beta)
        )
        return row_normalization.normalize_rows(
            inputs, self.axis, row_normalization.LAYER, self.epsilon, gamma, beta
        )
