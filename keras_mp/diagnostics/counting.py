"""The counts that `TensorStatistics` is made of, computed where the tensor is.

One int64 vector a tensor, of constant length, so that a training step can leave it in a
variable, under XLA too.
"""

import functools
from typing import Any

import numpy as np

# The parts of the vector: three histograms of 280 bins as `exponent_histogram` has
# them, and four numbers. The smallest and largest magnitude are the bits of float32
# numbers, which are ordered as the numbers are, and which nothing flushes to zero.
BINS = 280
ALL, POWERS, TOPS = (slice(i * BINS, (i + 1) * BINS) for i in range(3))
ELEMENTS, SUBNORMALS, SMALLEST, LARGEST = range(3 * BINS, 3 * BINS + 4)
LENGTH = 3 * BINS + 4

_MANTISSA = (1 << 23) - 1
_INF = 0xFF << 23
# Halfway between FP16's largest number and 2^16, which rounding to even makes infinity.
_OVERFLOW_MANTISSA = int((65_520 / 2**15 - 1) * 2**23)


def counts_of(tensor: Any) -> Any:
    """Returns the counts of a float16, bfloat16 or float32 tensor.

    Returns:
        int64 tensor of shape (LENGTH,). If no number is finite and not zero, the
        largest magnitude is 0.
    """
    import tensorflow as tf

    from keras_mp.ops.exponent_histogram import exponent_histogram, magnitude_bits

    bits = tf.reshape(magnitude_bits(tensor), [-1])
    mantissas = tf.bitwise.bitwise_and(bits, _MANTISSA)
    # A subnormal FP32 number is a power of two if one bit of it is set.
    one_bit = tf.equal(tf.bitwise.bitwise_and(bits, bits - 1), 0)
    is_power = tf.where(bits <= _MANTISSA, one_bit, tf.equal(mantissas, 0))
    subnormal = (bits > _bits(2.0**-25)) & (bits < _bits(2.0**-14 - 2.0**-25))
    is_finite = (bits > 0) & (bits < _INF)
    # Others become zeros, which only the count of zeros sees.
    histograms = [
        exponent_histogram(tf.bitcast(each, tf.float32))
        for each in (
            bits,
            tf.where(is_power, bits, 0),
            tf.where(mantissas >= _OVERFLOW_MANTISSA, bits, 0),
        )
    ]
    numbers = [
        tf.size(bits, tf.int64),
        tf.math.count_nonzero(subnormal),
        tf.cast(tf.reduce_min(tf.where(is_finite, bits, _INF)), tf.int64),
        # At least 0: of no elements TensorFlow's maximum is the smallest int.
        tf.cast(tf.maximum(tf.reduce_max(tf.where(is_finite, bits, 0)), 0), tf.int64),
    ]
    return tf.concat([*histograms, tf.stack(numbers)], 0)


def compiled_counts_of(tensor: Any) -> Any:
    """Returns what `counts_of` does, faster: computed by one graph."""
    import tensorflow as tf

    flat = tf.reshape(tf.convert_to_tensor(tensor), [-1])
    return _compiled(flat.dtype)(flat)


@functools.cache
def _compiled(dtype: Any) -> Any:
    import tensorflow as tf

    signature = [tf.TensorSpec([None], dtype)]
    return tf.function(counts_of, input_signature=signature, autograph=False)


def _bits(magnitude: float) -> int:
    return int(np.float32(magnitude).view(np.int32))
