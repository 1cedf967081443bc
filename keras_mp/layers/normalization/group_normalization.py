"""GroupNormalization: 16 bits in and out, FP32 arithmetic."""

import keras
from keras import ops

from keras_mp.layers.precision import (
    FP32Weights,
    read_without_autocast,
    uses_ops,
)
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class GroupNormalization(FP32Weights, keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization`, with FP32 weights and FP32 gradients.

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)` with the mean and the
    variance of each example and group of channels; everything inside `round` is FP32.
    The 16-bit inputs are kept for the backward pass. Gamma and beta are FP32 under the
    policy `float16` too.

    Args: as in `keras.layers.GroupNormalization`.

    Example:

    >>> layer = keras_mp.layers.GroupNormalization(groups=1, dtype="float16")
    >>> layer(np.array([[[-500.0], [1100.0]]], "float16")).numpy()
    array([[[-1.],
            [ 1.]]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs)
        from keras_mp.ops import normalization

        axis = self.axis % len(inputs.shape)
        channels = (inputs.shape[axis],)
        # Those of Keras 3.12 are cast to the compute dtype where they are read. While a
        # plan is made, they may be stored in FP16.
        gamma, beta = map(read_without_autocast, (self.gamma, self.beta))
        gamma = ops.ones(channels) if gamma is None else ops.cast(gamma, "float32")
        beta = ops.zeros(channels) if beta is None else ops.cast(beta, "float32")
        return normalization.normalize_groups(
            inputs, gamma, beta, self.groups, axis, self.epsilon
        )
