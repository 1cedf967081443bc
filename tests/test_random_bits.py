"""Random bits that are a hash of a step, a stream and a position."""

import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp import random_bits


def hash_of(x):
    """The hash, in Python's integers."""
    x %= 2**32
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return x ^ (x >> 16)


def unsigned(x):
    return oracle.value(x).astype("int64") % 2**32


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "xla"])
@pytest.mark.parametrize("step", [0, 1, 2**31 - 1])
@pytest.mark.parametrize("stream", [0, 3])
def test_every_bit_is_that_of_the_contract(jit, step, stream):
    def draw(step):
        of_step = random_bits.noise_of_step(7, step)
        return of_step, random_bits.random_bits((2, 3), of_step, stream)

    of_step, bits = tf.function(draw, jit_compile=jit)(tf.constant(step, "int64"))
    expected = hash_of(step * 0x9E3779B9 + 7)
    assert unsigned(of_step) == expected
    assert unsigned(bits).tolist() == [
        [hash_of(i + expected + stream * 0x9E3779B9) for i in row]
        for row in ((0, 1, 2), (3, 4, 5))
    ]


def test_halves_are_exact():
    low, high = random_bits.halves_of(tf.constant(-2, "int32"))
    assert (low.dtype, high.dtype) == ("float32", "float32")
    assert (float(low), float(high)) == (2.0**16 - 2, 2.0**16 - 1)


def test_uniforms_are_uniform():
    drawn = oracle.value(
        random_bits.uniforms((100_000,), random_bits.noise_of_step(0, 5))
    )
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # Five standard errors: of a mean of n, 1 / sqrt(12 n).
    assert abs(drawn.mean() - 0.5) < 5 / np.sqrt(12 * drawn.size)
    counts, _ = np.histogram(drawn, 16, (0, 1))
    assert np.max(np.abs(counts - 6250)) < 5 * np.sqrt(6250)
