"""`moments`: mean and variance with FP32 accumulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from keras_mp.ops.checks import normalize_axes, resolve_output_dtype, to_float_tensor
from keras_mp.ops.gradients import defer_until_upstream
from keras_mp.ops.reductions import accumulator_dtype, squeeze_axes
from keras_mp.ops.symbolic import symbolic


@symbolic("x")
def moments(
    x: Any,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    synchronized: bool = False,
    output_dtype: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes mean and variance in FP32 and rounds each once.

    `m = sum(x) / N`, then `sum((x - m)**2) / N`: two passes avoid the cancellation in
    `mean(x**2) - m**2`. The mean errs by at most `N * 2**-24 * mean(|x|)`, the variance
    by `(N + 3) * 2**-24` of itself and the square of the mean's error. The gradient is
    computed in FP32 from `x` and the FP32 mean, which are kept for the backward pass.

    Args:
        x: float16, bfloat16 or float32 tensor. With float64, all is float64.
        axes: int, several, or None (default) for all dimensions.
        keepdims: bool, default False: whether the averaged axes remain with size 1.
        synchronized: bool, default False: whether the elements of all replicas of a
            `tf.distribute` strategy count.
        output_dtype: default the dtype of `x`; `"float32"` if the variance may exceed
            65,504.

    Returns:
        Two tensors of `output_dtype`.

    Raises:
        ValueError: `x` is not of a floating dtype, or has no such axis.

    Example:

    >>> x = np.array([-300.0, 700.0, 100.0, 700.0], "float16")
    >>> mean, variance = keras_mp.ops.moments(x, output_dtype="float32")
    >>> float(mean), float(variance)
    (300.0, 180000.0)

    Reference: Mixed Precision Training, section 3.3.
    """
    x = to_float_tensor(x, "x")
    axes = normalize_axes(axes, x)
    output_dtype = resolve_output_dtype(output_dtype, x)
    dtype, accumulator = x.dtype, accumulator_dtype(x)
    total = PooledSum(tuple(axes), cross_replica_sum() if synchronized else _identity)

    @tf.custom_gradient
    def compute_moments(x: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Any]:
        wide = tf.cast(x, accumulator)
        mean, variance, count = total.moments(wide)

        @defer_until_upstream
        def gradient(grad_mean: tf.Tensor, grad_variance: tf.Tensor) -> tf.Tensor:
            grad_mean, grad_variance = (
                total.pool(tf.reshape(tf.cast(g, accumulator), tf.shape(mean))) / count
                for g in (grad_mean, grad_variance)
            )
            centered = tf.cast(x, accumulator) - mean
            return tf.cast(grad_mean + 2.0 * centered * grad_variance, dtype)

        results = [
            tf.cast(m if keepdims else squeeze_axes(axes, m), output_dtype)
            for m in (mean, variance)
        ]
        return tuple(results), gradient

    return compute_moments(x)


def _identity(sums: tf.Tensor) -> tf.Tensor:
    return sums


@dataclass(frozen=True)
class PooledSum:
    """A sum over axes, followed by a sum over channels of a group or over replicas.

    Args:
        axes: ints, sorted.
        pool: function of the sums over the axes. It replaces each by the total of its
            group, and is therefore its own adjoint in the backward pass. The default
            changes nothing.
    """

    axes: tuple[int, ...]
    pool: Callable[[tf.Tensor], tf.Tensor] = _identity

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.pool(tf.reduce_sum(x, self.axes, keepdims=True))

    def moments(self, x: tf.Tensor, mask: Any = None) -> tuple[tf.Tensor, ...]:
        """Returns mean, variance and count, with size 1 along the axes.

        Args:
            x: tensor, in the dtype to accumulate in.
            mask: bool tensor of the shape of `x`, True for elements that count; or
                None.
        """
        if mask is None:
            sums = tf.reduce_sum(x, self.axes, keepdims=True)
            each = tf.size(x, tf.int64) // tf.maximum(tf.size(sums, tf.int64), 1)
            count = self.pool(tf.fill(tf.shape(sums), tf.cast(each, x.dtype)))
            mean = self.pool(sums) / count
            return mean, self(tf.math.squared_difference(x, mean)) / count, count
        nothing = tf.zeros([], x.dtype)
        # The epsilon makes the moments 0 if no element counts, as in Keras.
        count = self(tf.cast(mask, x.dtype)) + keras.config.epsilon()
        mean = self(tf.where(mask, x, nothing)) / count
        squares = tf.where(mask, tf.math.squared_difference(x, mean), nothing)
        return mean, self(squares) / count, count


def cross_replica_sum() -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function that sums over the replicas of a `tf.distribute` strategy.

    Outside a replica context, and with one replica, it returns its argument.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return _identity
    return lambda sums: context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
