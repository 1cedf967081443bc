"""Which weights of an attention are dropped: a hash of the seed and their position.

The kernel computes the same bits (custom_ops/src/common/attention_dropout.h).
"""

from numbers import Integral, Real
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mp.random_bits import GOLDEN, int32, mix


def check_rate(rate: Any) -> float:
    """Returns a rate of dropout as a float, rounded to FP32, as the kernel has it.

    Raises:
        ValueError: it is no number from [0, 1).
    """
    if isinstance(rate, Real) and 0 <= np.float32(rate) < 1:
        return float(np.float32(rate))
    raise ValueError(
        "`dropout` must be a number from [0, 1), in FP32. Received: "
        f"dropout={rate!r}. Without dropout it is 0."
    )


def draw(seed: Any) -> tf.Tensor:
    """Returns the two int32 numbers of a seed.

    Args:
        seed: int, two ints, or a `keras.random.SeedGenerator`, to take the next from.

    Raises:
        ValueError: it is None, or has another dtype or shape.
    """
    if isinstance(seed, keras.random.SeedGenerator):
        seed = seed.next()
    elif isinstance(seed, Integral):
        seed = [int32(int(seed)), 0]
    if seed is not None:
        numbers = tf.convert_to_tensor(seed)
        if numbers.dtype.is_integer and numbers.shape.is_compatible_with([2]):
            return tf.cast(numbers, tf.int32)  # the low 32 bits of each
    raise ValueError(
        "With `dropout`, `seed` must be an int, two ints, or a "
        f"keras.random.SeedGenerator. Received: seed={seed!r}. A generator draws other "
        "weights at every call."
    )


def keeps(rate: float, seed: tf.Tensor, sizes: Any) -> tf.Tensor:
    """Tells which weights are kept.

    Args:
        rate: float, of `check_rate`.
        seed: int32, of shape [2].
        sizes: of the weights, `[batch, heads, queries, keys]`; ints or tensors.

    Returns:
        bool tensor of these sizes.
    """
    batch, heads, queries, keys = (sizes[i] for i in range(4))
    call = mix(mix(seed[0] + int32(GOLDEN)) ^ seed[1])
    head = mix(call + tf.range(batch * heads, dtype=tf.int32))
    head = tf.reshape(head, [batch, heads, 1, 1])
    first = mix(head + tf.range(queries, dtype=tf.int32)[:, tf.newaxis])
    second = mix(first ^ head)
    bits = mix(mix(first + tf.range(keys, dtype=tf.int32)) ^ second)
    # Without a sign, as 2**31 is added to both.
    return bits + int32(2**31) >= int(2.0**32 * rate) - 2**31


def drop(weights: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns the weights with dropout; those that are kept times `1 / (1 - rate)`.

    Args:
        weights: float tensor, `[batch, heads, queries, keys]`. 16 bits are multiplied
            in FP32 and rounded once.
        rate: float, of `check_rate`.
        seed: int32, of shape [2].
    """
    wide = weights if weights.dtype.size > 2 else tf.cast(weights, tf.float32)
    scaled = tf.cast(wide * tf.constant(1 / (1 - rate), wide.dtype), weights.dtype)
    return tf.where(keeps(rate, seed, tf.shape(weights)), scaled, tf.zeros_like(scaled))
