"""Slots in 8 bits with an exponent for each group of 32."""

import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp.optimizer.compression import decode, encode, groups_in
from keras_mp.random_bits import noise_of_step

SIGNS = pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "unsigned"])


def make_trip(is_signed, jit=False):
    """A function of numbers and a step: the codes, exponents, and what they are."""

    @tf.function(jit_compile=jit)
    def trip(x, step):
        codes, exponents = encode(x, is_signed, noise_of_step(0, step), stream=0)
        return codes, exponents, decode(codes, exponents, is_signed)

    return trip


def stored(x, is_signed, jit=False):
    outputs = make_trip(is_signed, jit)(tf.constant(x, "float32"), tf.constant(0))
    return [oracle.value(y) for y in outputs]


@pytest.mark.slow_except("*-graph")
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize(
    ("is_signed", "x", "codes", "exponent"),
    {
        # In a group of largest element 1.5 the power of two is 1, with exponent 127;
        # its codes are 120 + 8 fraction for E4M3 and 248 + 8 fraction for E5M3.
        "signed": (True, [1.5, -1.0, 0.5, 0.0], [124, 128 + 120, 112, 0], 127),
        "unsigned": (False, [1.5, 1.0, 0.5, 0.0], [252, 248, 240, 0], 127),
        "scaled": (False, [1.5 * 2.0**-100, 2.0**-100], [252, 248], 27),
        "smallest normal": (True, [1.0, 2.0**-14], [120, 8], 127),
        "subnormal": (True, [1.0, 2.0**-14 * 3 / 8], [120, 3], 127),
        "of a second moment": (False, [1.0, 2.0**-30, 2.0**-33], [248, 8, 1], 127),
        "never 0": (False, [1.0, 2.0**-90], [248, 1], 127),
        "largest code": (True, [1.875, -1.875], [127, 255], 127),
        "next power of two": (True, [2.0, -1.875], [120, 128 + 119], 128),
        "zeros": (True, [0.0, -0.0], [0, 0], 0),
        "inf": (False, [np.inf, 1.0], [255, 1], 253),
        "nan": (True, [np.nan, 0.0], [127, 0], 253),
        "huge": (False, [1.75 * 2.0**127], [255], 253),
    }.values(),
)
def test_numbers_that_are_exact_or_cut_off(jit, is_signed, x, codes, exponent):
    found, exponents, _ = stored(x, is_signed, jit=jit)
    oracle.assert_same_bits(found, np.array(codes, "uint8"))
    oracle.assert_same_bits(exponents, np.array([exponent], "uint8"))


@SIGNS
def test_every_code_is_stored_as_it_was(is_signed):
    every = np.arange(256, dtype="uint8")
    if is_signed:
        every[0x80] = 0  # no second zero
    # A group for each, with the largest code beside it, so that its exponent is known.
    groups = np.zeros([256, 32], "uint8")
    groups[:, 0], groups[:, 1] = 127 if is_signed else 255, every
    codes = groups.reshape(-1)
    exponents = np.full([groups_in(codes.size)], 120, "uint8")
    x = oracle.value(decode(tf.constant(codes), tf.constant(exponents), is_signed))
    assert x.dtype == np.float32
    trip = make_trip(is_signed)
    for step in range(3):
        again, same, _ = trip(tf.constant(x), tf.constant(step))
        oracle.assert_same_bits(oracle.value(again), codes)
        oracle.assert_same_bits(oracle.value(same), exponents)


@SIGNS
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1000])
def test_groups_that_do_not_fill(is_signed, size):
    generator = np.random.default_rng(size)
    x = generator.standard_normal(size).astype("float32")
    x = x if is_signed else x**2
    _, exponents, back = stored(x, is_signed)
    assert exponents.shape == ((size + 31) // 32,)
    # An eighth is the distance of neighbours: of all numbers, but for small ones
    # in a signed group, that is 2**-17 of the group's power of two.
    group = np.repeat(2.0 ** (exponents.astype("int64") - 127), 32)[:size]
    unit = np.maximum(np.abs(x) / 8, group * (2.0**-17 if is_signed else 2.0**-33))
    assert np.all(np.abs(back - x) <= np.maximum(unit, (np.abs(x) > 1.875 * group) * x))


@SIGNS
def test_the_mean_of_many_roundings_is_the_number(is_signed):
    generator = np.random.default_rng(1)
    x = 2.0 ** generator.uniform(-20, 0.8, (64,)).astype("float32")
    x[::32] = 1.0  # of every group
    x = x * generator.choice([-1.0, 1.0], x.shape).astype("float32") if is_signed else x
    trip = make_trip(is_signed)
    steps = [tf.constant(step) for step in range(400)]
    drawn = np.array([oracle.value(trip(tf.constant(x), step)[2]) for step in steps])
    error = drawn.mean(0) - x
    # Of two neighbours at a distance of x / 8 or less the deviation is at most half.
    group = 2.0**-17 if is_signed else 2.0**-33
    deviation = np.maximum(np.abs(x) / 8, group) / 2
    assert np.all(np.abs(error) < 5 * deviation / np.sqrt(400))


def test_a_small_second_moment_is_no_division_by_epsilon():
    """Scales in FP16 lose roots below 6e-8; then an update divides by epsilon alone."""
    v = np.full([32], (1e-9) ** 2, "float32")
    v[5] = (1e-10) ** 2
    _, _, back = stored(v, is_signed=False)
    np.testing.assert_allclose(back, v, rtol=1 / 8)


@SIGNS
def test_what_is_above_the_largest_code_is_rounded_without_bias(is_signed):
    """1.99 lies between 1.875 and 2: cut off at 1.875, nothing would ever reach 2."""
    x = np.full([3200], 1.99, "float32")
    _, exponents, back = stored(x, is_signed)
    assert np.all(exponents == 128)
    assert set(back.tolist()) == {1.875, 2.0}
    assert abs(back.mean() - 1.99) < 5 * 0.0625 / np.sqrt(3200)


def test_a_second_moment_follows_its_gradients():
    """It grows from 0 by less than a code in each step, over many powers of two."""

    @tf.function
    def run():
        noise = noise_of_step(0, 0)
        codes, exponents = encode(tf.zeros([3200]), False, noise, stream=1)
        for step in tf.range(1000):
            v = decode(codes, exponents, False)
            v = v + (1e-6 - v) * 0.001
            codes, exponents = encode(v, False, noise_of_step(0, step), stream=1)
        return decode(codes, exponents, False)

    exact = 1e-6 * (1 - 0.999**1000)
    mean = np.mean(oracle.value(run())) / exact
    # A rounding up has the probability of an increment over the distance of codes, so
    # that its variance is their product, an eighth of v times an increment. All
    # increments of a moment add up to v: its deviation is at most sqrt(1/8) of it.
    assert abs(mean - 1) < 5 * np.sqrt(1 / 8 / 3200)
