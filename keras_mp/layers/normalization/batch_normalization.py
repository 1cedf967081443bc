"""BatchNormalization: 16 bits in and out, FP32 arithmetic."""

from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.layers.precision import FP32Weights, uses_ops
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class BatchNormalization(FP32Weights, keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization`, with FP32 statistics and weights.

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`: inputs and outputs
    have 16 bits, everything inside `round` is FP32, and so are gamma, beta and the
    moving statistics, under the policy `float16` too. On a CPU one native kernel
    computes it, unless there is a mask or `synchronized=True`. The 16-bit inputs are
    kept for the backward pass. The mean errs by at most `N * 2**-24 * mean(|x|)`, where
    N is the number of elements of a channel.

    If the mean or variance of a channel is not finite (after an overflow in an earlier
    layer, or on a replica without examples), the moving statistics of that channel do
    not change. With both a mask and `synchronized=True`, the statistics are computed
    over the unmasked elements of all replicas.

    Args: as in `keras.layers.BatchNormalization`.

    Example:

    >>> layer = keras_mp.layers.BatchNormalization(momentum=0, dtype="float16")
    >>> layer(np.array([[-500.0], [1100.0]], "float16"), training=True).numpy()
    array([[-1.],
           [ 1.]], dtype=float16)
    >>> layer.moving_variance.numpy()    # float16 ends at 65504
    array([640000.], dtype=float32)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor | None = None
    ) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs, training=training, mask=mask)
        from keras_mp.ops import batch_normalization

        mask = _expand_mask(inputs, mask)
        axis = self.axis % len(inputs.shape)
        channels = self.moving_mean.shape
        gamma = ops.ones(channels) if self.gamma is None else _in_fp32(self.gamma)
        beta = ops.zeros(channels) if self.beta is None else _in_fp32(self.beta)
        if not (training and self.trainable):
            mean, variance = map(_in_fp32, (self.moving_mean, self.moving_variance))
            return batch_normalization.apply_statistics(
                inputs, gamma, beta, mean, variance, axis, self.epsilon
            )
        renorm = keras_internals.uses_renorm(self)
        if renorm:
            batch = batch_normalization.batch_statistics(
                inputs, axis, mask, self.synchronized
            )
            r, d = keras_internals.renorm_correction(self, *batch)
            # For a batch without examples they are NaN; the gradient of gamma shall
            # be 0.
            known = ops.isfinite(r + d)
            r, d = ops.where(known, r, 1.0), ops.where(known, d, 0.0)
            gamma, beta = gamma * r, gamma * d + beta
        outputs, mean, variance = batch_normalization.normalize_batch(
            inputs, gamma, beta, axis, self.epsilon, mask, self.synchronized
        )
        finite = ops.logical_and(ops.isfinite(mean), ops.isfinite(variance))
        if renorm:
            deviation = ops.sqrt(variance + self.epsilon)
            _update_moving_average(self.renorm_mean, mean, self.renorm_momentum, finite)
            _update_moving_average(
                self.renorm_stddev, deviation, self.renorm_momentum, finite
            )
            _update_moving_average(self.moving_stddev, deviation, self.momentum, finite)
            square = ops.square(self.moving_stddev.value)
            _update_moving_average(
                self.moving_variance, ops.relu(square - self.epsilon), 0.0, finite
            )
        else:
            _update_moving_average(
                self.moving_variance, variance, self.momentum, finite
            )
        _update_moving_average(self.moving_mean, mean, self.momentum, finite)
        return outputs


def _in_fp32(variable: Any) -> Any:
    """Returns its value; a Keras layer may store it in 16 bits.

    Diagnostics run such a layer as one of ours before its weights are replaced.
    """
    return ops.cast(variable.value, "float32")


def _update_moving_average(
    average: Any, batch: Any, momentum: float, finite: Any
) -> None:
    """Updates a moving average where the statistics of the batch are finite."""
    before = _in_fp32(average)
    moved = before * momentum + batch * (1.0 - momentum)
    average.assign(ops.where(finite, moved, before))


def _expand_mask(inputs: Tensor, mask: Tensor) -> Any:
    """Returns the mask as bool, broadcast to the shape of the inputs, or None."""
    if mask is None:
        return None
    if len(mask.shape) != len(inputs.shape) - 1:
        raise ValueError(
            "The mask must have one dimension less than the inputs, all but the "
            f"channels. Received: mask.shape={mask.shape}, "
            f"inputs.shape={inputs.shape}."
        )
    mask = ops.expand_dims(ops.cast(mask, "bool"), axis=-1)
    return ops.broadcast_to(mask, ops.shape(inputs))
