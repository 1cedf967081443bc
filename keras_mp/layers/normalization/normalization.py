"""Normalization: features of any size in, 16 bits out, FP32 arithmetic."""

from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.layers.precision import FP32Weights, read_without_autocast
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class Normalization(FP32Weights, keras.layers.Normalization):
    """`keras.layers.Normalization` with inputs and statistics that stay FP32.

    `round((x - mean) / sqrt(variance))`, where everything inside `round` is FP32; so is
    what `adapt` computes. Raw features may be larger than FP16 holds, and their
    variance, a square, may be beyond it where they are not. The mean and the variance
    are FP32 under the policy `float16` too.

    Args: as in `keras.layers.Normalization`.

    Example:

    >>> layer = keras_mp.layers.Normalization(axis=None, dtype="float16")
    >>> layer.adapt(np.array([[1e5], [3e5]]))
    >>> layer(np.array([[1e5], [4e5]])).numpy()
    array([[-1.],
           [ 2.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.
    """

    @property
    def input_dtype(self) -> str:
        """FP32 where it computes in 16 bits, which would round what it is given."""
        return "float32" if is_half(self.compute_dtype) else self.compute_dtype

    def __call__(self, inputs: Tensor, **options: Any) -> Any:
        if keras.backend.backend() != "tensorflow":
            return super().__call__(inputs, **options)
        # That of Keras rounds, in a graph, to what the layer computes in: it is for
        # `tf.data` beside another backend.
        return keras.Layer.__call__(self, inputs, **options)

    def adapt(self, data: Any) -> None:
        policy = self.dtype_policy
        # Keras converts the batches of a dataset to what the layer computes in.
        keras_internals.set_policy(self, keras.DTypePolicy("float32"))
        try:
            super().adapt(data)
        finally:
            keras_internals.set_policy(self, policy)
        self.finalize_state()

    def call(self, inputs: Tensor) -> Tensor:
        is_tensorflow = keras.backend.backend() == "tensorflow"
        if not is_tensorflow or self.compute_dtype == "float64":
            return super().call(inputs)
        # Not the copies that Keras keeps in the dtype that it computed in when built.
        rank = len(inputs.shape)
        mean = self._statistic(self.input_mean, "adapt_mean", rank)
        variance = self._statistic(self.input_variance, "adapt_variance", rank)
        deviation = ops.maximum(ops.sqrt(variance), keras.config.epsilon())
        x = ops.cast(inputs, "float32")
        outputs = mean + x * deviation if self.invert else (x - mean) / deviation
        return ops.cast(outputs, self.compute_dtype)

    def _statistic(self, given: Any, adapted: str, rank: int) -> Any:
        """Returns the mean or the variance in FP32, to broadcast against the inputs."""
        if given is None:
            value = read_without_autocast(getattr(self, adapted))
        else:
            value = ops.convert_to_tensor(given)
        kept = sorted(axis % rank for axis in self.axis)
        shape = [1] * rank
        # The last dimension is that of the last axis, where fewer are given.
        for axis, size in zip(reversed(kept), reversed(value.shape), strict=False):
            shape[axis] = size
        return ops.reshape(ops.cast(value, "float32"), shape)
