"""`moments`: mean and variance of 16-bit numbers, in FP32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from keras_mp.ops.checks import axes_of, output_dtype_of, to_floating
from keras_mp.ops.gradients import late
from keras_mp.ops.reductions import accumulator_of, without


def moments(
    x: Any,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    synchronized: bool = False,
    output_dtype: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes mean and variance in FP32 and rounds each once.

    `m = sum(x) / N`, then `sum((x - m)**2) / N`: in two passes, so that no difference
    of large numbers is taken. The mean errs by at most `N * 2**-24 * mean(|x|)`, the
    variance by `(N + 3) * 2**-24` of itself and the square of the mean's error. The
    gradient is computed in FP32 from `x`, which alone is held, beside the FP32 mean.

    Args:
        x: float16, bfloat16 or float32 tensor. With float64, all is float64.
        axes: int, several, or None (default): over all dimensions.
        keepdims: bool, default False: whether what was averaged keeps size 1.
        synchronized: bool, default False: whether the elements of all replicas of a
            `tf.distribute` strategy are taken together.
        output_dtype: default the dtype of `x`; `"float32"` where the variance may pass
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
    x = to_floating(x, "x")
    axes = axes_of(axes, x)
    output_dtype = output_dtype_of(output_dtype, x)
    dtype, accumulator = x.dtype, accumulator_of(x)
    total = Total(tuple(axes), over_replicas() if synchronized else _same)

    @tf.custom_gradient
    def of(x: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Any]:
        wide = tf.cast(x, accumulator)
        mean, variance, count = total.moments(wide)

        @late
        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            of_mean, of_variance = (
                total.pool(tf.reshape(tf.cast(g, accumulator), tf.shape(mean))) / count
                for g in (of_mean, of_variance)
            )
            centered = tf.cast(x, accumulator) - mean
            return tf.cast(of_mean + 2.0 * centered * of_variance, dtype)

        results = [
            tf.cast(m if keepdims else without(axes, m), output_dtype)
            for m in (mean, variance)
        ]
        return tuple(results), gradient

    return of(x)


def _same(sums: tf.Tensor) -> tf.Tensor:
    return sums


@dataclass(frozen=True)
class Total:
    """A sum over axes, and then over what `pool` adds to it.

    Args:
        axes: ints, sorted.
        pool: takes sums of size 1 along the axes and adds up those that belong
            together, for each of them: those of a group of channels, or of the
            replicas. So it is its own adjoint.
    """

    axes: tuple[int, ...]
    pool: Callable[[tf.Tensor], tf.Tensor] = _same

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.pool(tf.reduce_sum(x, self.axes, keepdims=True))

    def moments(self, x: tf.Tensor, mask: Any = None) -> tuple[tf.Tensor, ...]:
        """Returns mean, variance and count, of size 1 along the axes.

        Args:
            x: in the dtype to sum in.
            mask: bool, of the shape of `x`, True for what counts; or None.
        """
        if mask is None:
            sums = tf.reduce_sum(x, self.axes, keepdims=True)
            each = tf.size(x, tf.int64) // tf.maximum(tf.size(sums, tf.int64), 1)
            count = self.pool(tf.fill(tf.shape(sums), tf.cast(each, x.dtype)))
            mean = self.pool(sums) / count
            return mean, self(tf.math.squared_difference(x, mean)) / count, count
        nothing = tf.zeros([], x.dtype)
        # As in Keras, where nothing counts the moments are 0.
        count = self(tf.cast(mask, x.dtype)) + keras.config.epsilon()
        mean = self(tf.where(mask, x, nothing)) / count
        squares = tf.where(mask, tf.math.squared_difference(x, mean), nothing)
        return mean, self(squares) / count, count


def over_replicas() -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function that sums over the replicas of a `tf.distribute` strategy.

    Outside of a replica there is nothing to add.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return _same
    return lambda sums: context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
