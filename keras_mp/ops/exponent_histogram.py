"""`exponent_histogram`: how many numbers lie between each two powers of two."""

from typing import Any

import tensorflow as tf

from keras_mp.ops.checks import to_tensor
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import has_cpu_kernels

MIN_EXPONENT, MAX_EXPONENT = -149, 127
EXPONENTS = range(MIN_EXPONENT, MAX_EXPONENT + 1)
# Of zero and of 2^-149; those of infinity and NaN come after that of 2^127.
ZERO_BIN, FIRST_BIN = 0, 1
INF_BIN, NAN_BIN = len(EXPONENTS) + 1, len(EXPONENTS) + 2
BINS = len(EXPONENTS) + 3

_MANTISSA_BITS, _BIAS = 23, 127
_MANTISSA = (1 << _MANTISSA_BITS) - 1
_INF = 0xFF << _MANTISSA_BITS


def exponent_histogram(x: Any) -> tf.Tensor:
    """Counts the values of a tensor by the exponent of their magnitude.

    Bin 0 counts zeros; bin `e + 150` counts the magnitudes in `[2**e, 2**(e + 1))`, for
    e from -149 (the smallest subnormal FP32 number) to 127; bin 278 counts infinities
    and bin 279 NaN. The exponent is read from the bits, so that subnormal values are
    counted as such, even if the processor flushes them to zero. On a CPU a native
    kernel counts, in one pass over the tensor.

    Args:
        x: float16, bfloat16 or float32 tensor, of any shape.

    Returns:
        int64 tensor of shape (280,).

    Raises:
        ValueError: `x` is of another dtype.

    Example:

    >>> counts = keras_mp.ops.exponent_histogram([0.0, 1.0, -1.5, 2.0**-30])
    >>> {i: n for i, n in enumerate(counts.numpy().tolist()) if n}
    {0: 1, 120: 1, 150: 2}

    Reference: Mixed Precision Training, section 3.2 and figure 3.
    """
    x = _checked(x)
    if has_cpu_kernels():
        return native.library().keras_mp_exponent_histogram(x=x)
    bins = tf.reshape(_bin_of(magnitude_bits(x)), [-1])
    # Not `tf.math.bincount`, whose size XLA does not take for a constant.
    return tf.math.unsorted_segment_sum(tf.ones_like(bins, tf.int64), bins, BINS)


def magnitude_bits(x: Any) -> tf.Tensor:
    """Returns the bits of |x| in FP32, as int32: they are ordered as |x| is.

    Args:
        x: float16, bfloat16 or float32 tensor.
    """
    x = _checked(x)
    if x.dtype == tf.bfloat16:
        # The upper half of an FP32 number. A conversion might flush subnormal ones.
        bits = tf.bitwise.left_shift(tf.cast(tf.bitcast(x, tf.uint16), tf.int32), 16)
    else:
        bits = tf.bitcast(tf.cast(x, tf.float32), tf.int32)
    return tf.bitwise.bitwise_and(bits, 0x7FFFFFFF)


def _checked(x: Any) -> tf.Tensor:
    """Returns `x` as a tensor; raises ValueError unless its dtype has bins."""
    x = to_tensor(x, "x", "of dtype float16, bfloat16 or float32")
    if x.dtype == tf.float64:
        raise ValueError(
            "`x` must be of dtype float16, bfloat16 or float32. Received: "
            f"x.dtype=float64, shape {x.shape}. Cast it first."
        )
    return x


def _bin_of(bits: tf.Tensor) -> tf.Tensor:
    mantissa = tf.bitwise.bitwise_and(bits, _MANTISSA)
    # A subnormal number is mantissa * 2^-149, and the conversion to float is exact.
    is_subnormal = bits <= _MANTISSA
    as_normal = tf.bitcast(tf.cast(mantissa, tf.float32), tf.int32)
    exponent = tf.where(
        is_subnormal,
        _exponent_of(as_normal) + MIN_EXPONENT,
        _exponent_of(bits),
    )
    bins = exponent - MIN_EXPONENT + FIRST_BIN
    bins = tf.where(bits == 0, ZERO_BIN, bins)
    bins = tf.where(bits == _INF, INF_BIN, bins)
    return tf.where(bits > _INF, NAN_BIN, bins)


def _exponent_of(bits: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(bits, _MANTISSA_BITS) - _BIAS
