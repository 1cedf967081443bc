"""SpectralNormalization: power iteration in FP32."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.precision import FP32Weights, read_without_autocast
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class SpectralNormalization(FP32Weights, keras.layers.SpectralNormalization):
    """`keras.layers.SpectralNormalization`, computed in FP32 from the stored kernel.

    `kernel / sigma`, where sigma, the largest singular value, is computed by a power
    iteration in FP32. Its vector is FP32 under every policy. An FP32 kernel is never
    rounded; under `mixed_float16` the Keras layer rounds it to FP16 at each step. A
    kernel stored in 16 bits, as under `float16`, is rounded once, when it is assigned.
    If the inputs are integers, as for an `Embedding`, the outputs are not cast to
    integers, as the Keras layer does.

    Args: as in `keras.layers.SpectralNormalization`.

    Example:

    >>> dense = keras.layers.Dense(4, kernel_initializer="ones", dtype="mixed_float16")
    >>> layer = keras_mp.layers.SpectralNormalization(dense, 10, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 9)), training=True)
    >>> round(float(dense.kernel[0, 0]), 6)    # the singular value of 36 ones is 6
    0.166667

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        if training:
            # Keras 3.12 casts what is assigned to the compute dtype, too.
            read_without_autocast(self._normalize)
        outputs = self.layer(inputs)
        is_index = not keras.backend.is_float_dtype(inputs.dtype)
        return outputs if is_index else ops.cast(outputs, inputs.dtype)

    def _normalize(self) -> Any:
        vector, kernel = self.normalized_weights()
        self.vector_u.assign(vector)
        self.kernel.assign(kernel)
        return kernel

    def normalized_weights(self) -> tuple[Any, Any]:
        """Returns the vector and the kernel of the next step, both in FP32."""
        kernel = ops.cast(self.kernel.value, "float32")
        vector_u = ops.cast(self.vector_u.value, "float32")
        weights = ops.reshape(kernel, (-1, self.kernel_shape[-1]))
        u = vector_u
        for _ in range(self.power_iterations):
            v = ops.normalize(ops.matmul(u, ops.transpose(weights)), axis=None)
            u = ops.normalize(ops.matmul(v, weights), axis=None)
        u, v = ops.stop_gradient(u), ops.stop_gradient(v)
        sigma = ops.matmul(ops.matmul(v, weights), ops.transpose(u))
        is_zero = ops.all(ops.equal(kernel, 0))
        return (
            ops.where(is_zero, vector_u, u),
            ops.where(is_zero, kernel, kernel / sigma),
        )
