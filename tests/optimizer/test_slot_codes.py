"""Slots in 8 and in 4 bits with an exponent for each group of 32."""

import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp.optimizer.slot_codes import (
    TO_NEAREST,
    SlotCode,
    decode,
    encode,
    encode_by,
)
from keras_mp.random_bits import noise_of_step

SIGNED, UNSIGNED = SlotCode(8, True), SlotCode(8, False)
SIGNED_4, UNSIGNED_4 = SlotCode(4, True), SlotCode(4, False)
ALL = {
    "signed": SIGNED,
    "unsigned": UNSIGNED,
    "signed, 4 bits": SIGNED_4,
    "unsigned, 4 bits": UNSIGNED_4,
}
CODES = pytest.mark.parametrize("code", ALL.values(), ids=list(ALL))
# Of neighbours, over the smaller one: of normal numbers, at most.
DISTANCE = {8: 1 / 8, 4: 1 / 2}
# Of neighbours, in a group whose power of two is 1: of small numbers.
UNIT = {SIGNED: 2.0**-17, UNSIGNED: 2.0**-33, SIGNED_4: 2.0**-3, UNSIGNED_4: 2.0**-8}


def make_trip(code, jit=False):
    """A function of numbers and a step: the codes, exponents, and what they are."""

    def trip(x, step):
        codes, exponents = encode(x, code, noise_of_step(0, step), stream=0)
        return codes, exponents, decode(codes, exponents, code, x.shape)

    return trip if jit is None else tf.function(trip, jit_compile=jit)


def stored(x, code, jit=None):
    outputs = make_trip(code, jit)(tf.constant(x, "float32"), tf.constant(0))
    return [oracle.value(y) for y in outputs]


def in_pairs(codes):
    """Codes of 4 bits, of one group that ends with zeros, as bytes."""
    group = np.zeros(32, "uint8")
    group[: len(codes)] = codes
    return group[:16] | group[16:] << 4


# Code, numbers of one group, their codes, and its exponent. In a group of largest
# element 1.5 the power of two is 1, with exponent 127; its codes are
# 120 + 8 fraction for E4M3 and 248 + 8 fraction for E5M3.
KNOWN = {
    "signed": (SIGNED, [1.5, -1.0, 0.5, 0.0], [124, 128 + 120, 112, 0], 127),
    "unsigned": (UNSIGNED, [1.5, 1.0, 0.5, 0.0], [252, 248, 240, 0], 127),
    "scaled": (UNSIGNED, [1.5 * 2.0**-100, 2.0**-100], [252, 248], 27),
    "smallest normal": (SIGNED, [1.0, 2.0**-14], [120, 8], 127),
    "subnormal": (SIGNED, [1.0, 2.0**-14 * 3 / 8], [120, 3], 127),
    "of a second moment": (UNSIGNED, [1.0, 2.0**-30, 2.0**-33], [248, 8, 1], 127),
    "never 0": (UNSIGNED, [1.0, 2.0**-90], [248, 1], 127),
    "largest code": (SIGNED, [1.875, -1.875], [127, 255], 127),
    "next power of two": (SIGNED, [2.0, -1.875], [120, 128 + 119], 128),
    "zeros": (SIGNED, [0.0, -0.0], [0, 0], 0),
    "inf": (UNSIGNED, [np.inf, 1.0], [255, 1], 253),
    "nan": (SIGNED, [np.nan, 0.0], [127, 0], 253),
    "huge": (UNSIGNED, [1.75 * 2.0**127], [255], 253),
    "signed, 4 bits": (
        SIGNED_4,
        [1.5, -1.5, 1.0, 0.75, 0.5, -0.375, 0.25, 0.125, 0.0, -0.0],
        in_pairs([7, 15, 6, 5, 4, 8 + 3, 2, 1, 0, 0]),
        127,
    ),
    "unsigned, 4 bits": (
        UNSIGNED_4,
        [2.0**-8 * k for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)]
        + [0.5, 0.75, 1.0],
        in_pairs(range(16)),
        127,
    ),
    "of 4 bits in both halves": (
        UNSIGNED_4,
        [1.0] + 15 * [0.5] + [0.75] + 15 * [0.25],
        in_pairs([15] + 15 * [13] + [14] + 15 * [11]),
        127,
    ),
    "no 0 in 4 bits": (
        UNSIGNED_4,
        [1.0, 2.0**-90, 0.0],
        in_pairs([15, 0, 0]),
        127,
    ),
    "zeros in 4 bits": (UNSIGNED_4, [0.0, 0.0], in_pairs([0, 0]), 0),
    "next power of two, 4 bits": (UNSIGNED_4, [1.5], in_pairs([14]), 128),
    "inf in 4 bits": (UNSIGNED_4, [np.inf, 1.0], in_pairs([15, 0]), 253),
    "nan in 4 bits": (SIGNED_4, [np.nan, 0.0], in_pairs([7, 0]), 253),
}


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@CODES
def test_numbers_that_are_exact_or_cut_off(code, jit):
    """A group for each case, which zeros fill."""
    cases = {name: rest for name, (of, *rest) in KNOWN.items() if of == code}
    groups = np.zeros([len(cases), 32], "float32")
    for group, (x, _, _) in zip(groups, cases.values(), strict=True):
        group[: len(x)] = x
    found, exponents, _ = stored(groups.reshape(-1), code, jit=jit)
    assert found.dtype == exponents.dtype == np.uint8
    rows = zip(found.reshape(len(cases), -1), exponents, strict=True)
    for (name, (_, codes, exponent)), row in zip(cases.items(), rows, strict=True):
        assert row[0][: len(codes)].tolist() == list(codes), name
        assert row[1] == exponent, name


@CODES
def test_every_code_is_stored_as_it_was(code):
    every = np.arange(2**code.bits, dtype="uint8")
    if code.is_signed:
        every[code.sign] = 0  # no second zero
    # A group for each, with the largest code beside it, so that its exponent is known.
    groups = np.zeros([every.size, 32], "uint8")
    groups[:, 0], groups[:, 1] = code.sign - 1, every
    if code.bits == 4:
        groups = groups[:, :16] | groups[:, 16:] << 4
    codes, shape = groups.reshape(-1), (32 * every.size,)
    exponents = np.full([every.size], 120, "uint8")
    x = oracle.value(decode(tf.constant(codes), tf.constant(exponents), code, shape))
    assert x.dtype == np.float32
    trip = make_trip(code)
    for step in range(3):
        again, same, _ = trip(tf.constant(x), tf.constant(step))
        oracle.assert_same_bits(oracle.value(again), codes)
        oracle.assert_same_bits(oracle.value(same), exponents)


@CODES
def test_what_was_read_is_stored_again_unchanged(code):
    """Even if all of a group were rounded down, so that it has another exponent."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal([320]).astype("float32")
    x = x if code.is_signed else x**2
    _, _, once = stored(x, code)
    _, _, again = stored(once, code)
    oracle.assert_same_bits(again, once)


@CODES
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 32, 33, 1000])
def test_groups_that_do_not_fill(code, size):
    generator = np.random.default_rng(size)
    x = generator.standard_normal(size).astype("float32")
    x = x if code.is_signed else x**2
    # Eagerly Keras has no maximum of nothing; nothing as small is stored so.
    codes, exponents, back = stored(x, code, jit=None if size else False)
    assert exponents.shape == ((size + 31) // 32,)
    in_bytes = 16 * exponents.size if code.bits == 4 else size
    assert codes.shape == (in_bytes,)
    group = np.repeat(2.0 ** (exponents.astype("int64") - 127), 32)[:size]
    unit = np.maximum(np.abs(x) * DISTANCE[code.bits], group * UNIT[code])
    assert np.all(np.abs(back - x) <= unit)
    if not code.is_signed:
        assert np.all(back[x > 0] > 0)


@CODES
def test_the_mean_of_many_roundings_is_the_number(code):
    generator = np.random.default_rng(1)
    least = -20 if code.has_zero else -8
    x = 2.0 ** generator.uniform(least, 0, (64,)).astype("float32")
    x[::32] = 1.0  # of every group
    if code.is_signed:
        x = x * generator.choice([-1.0, 1.0], x.shape).astype("float32")
    trip = make_trip(code)
    steps = [tf.constant(step) for step in range(400)]
    drawn = np.array([oracle.value(trip(tf.constant(x), step)[2]) for step in steps])
    error = drawn.mean(0) - x
    # Of two neighbours the deviation is at most half of their distance.
    deviation = np.maximum(np.abs(x) * DISTANCE[code.bits], UNIT[code]) / 2
    assert np.all(np.abs(error) < 5 * deviation / np.sqrt(400))


@CODES
def test_to_nearest(code):
    """As the initial value of a slot is rounded."""
    bits = tf.constant([TO_NEAREST])
    for x, nearest in {1.0: 1.0, 0.7: {8: 0.6875, 4: 0.75}[code.bits]}.items():
        codes, exponents = encode_by(tf.constant([x]), code, bits)
        assert oracle.value(decode(codes, exponents, code, (1,))) == nearest


def test_a_small_second_moment_is_no_division_by_epsilon():
    """Scales in FP16 lose roots below 6e-8; then an update divides by epsilon alone."""
    v = np.full([32], (1e-9) ** 2, "float32")
    v[5] = (1e-10) ** 2
    _, _, back = stored(v, UNSIGNED)
    np.testing.assert_allclose(back, v, rtol=1 / 8)
    v[5] = (2e-10) ** 2
    _, _, back = stored(v, UNSIGNED_4)
    np.testing.assert_allclose(back, v, rtol=1 / 2)


def test_4_bits_make_the_smallest_second_moments_larger():
    """Below 2**-8 of a group's largest number, up to twice its own."""
    v = np.array([1.0, 2.0**-9, 1e-30, 0.0], "float32")
    _, _, back = stored(v, UNSIGNED_4)
    np.testing.assert_array_equal(back, [1.0, 2.0**-8, 2.0**-8, 2.0**-8])


@pytest.mark.parametrize(
    ("code", "x", "neighbours", "exponent"),
    [
        (SIGNED, 1.99, (1.875, 2.0), 128),
        (UNSIGNED, 1.99, (1.875, 2.0), 128),
        (SIGNED_4, 1.9, (1.5, 2.0), 128),
        (UNSIGNED_4, 1.4, (1.0, 1.5), 128),
    ],
    ids=list(ALL),
)
def test_what_is_above_the_largest_code_is_rounded_without_bias(
    code, x, neighbours, exponent
):
    """1.99 lies between 1.875 and 2: cut off at 1.875, nothing would ever reach 2."""
    numbers = np.full([3200], x, "float32")
    _, exponents, back = stored(numbers, code)
    assert np.all(exponents == exponent)
    below, above = neighbours
    assert set(back.tolist()) == {below, above}
    assert abs(back.mean() - x) < 5 * (above - below) / 2 / np.sqrt(3200)


DECAYS = pytest.mark.parametrize("bits", [8, 4])


def run_of_moments(bits, squares, start, steps):
    """Second moments, with beta 0.999, of squares of gradients that are constant."""
    code = SlotCode(bits, is_signed=False)
    shape = squares.shape

    @tf.function
    def run():
        noise = noise_of_step(0, 0)
        codes, exponents = encode(tf.constant(start), code, noise, stream=1)
        for step in tf.range(steps):
            v = decode(codes, exponents, code, shape)
            v = v + (tf.constant(squares) - v) * 0.001
            codes, exponents = encode(v, code, noise_of_step(0, step + 1), stream=1)
        return decode(codes, exponents, code, shape)

    return oracle.value(run())


@DECAYS
def test_a_second_moment_follows_its_gradients(bits):
    """It grows from 0 by less than a code in each step, over many powers of two."""
    squares = np.full([3200], 1e-6, "float32")
    found = run_of_moments(bits, squares, 0 * squares, 1000)
    exact = 1e-6 * (1 - 0.999**1000)
    # A rounding up has the probability of an increment over the distance of codes, so
    # that its variance is their product, of v times an increment at most that of
    # DISTANCE. All increments of a moment add up to v.
    assert abs(found.mean() / exact - 1) < 5 * np.sqrt(DISTANCE[bits] / 3200)


@pytest.mark.xslow_except("falls-8", "grows-4", "rows without a gradient-4")
@pytest.mark.slow
@DECAYS
@pytest.mark.parametrize(
    ("start", "square", "steps"),
    [(1e-4, 1e-6, 5000), (1e-6, 1e-4, 5000), (3e-3, 0.0, 2000)],
    ids=["falls", "grows", "rows without a gradient"],
)
def test_a_second_moment_does_not_stick(bits, start, square, steps):
    """To nearest none of these would ever move."""
    starts = np.full([3200], start, "float32")
    found = run_of_moments(bits, np.full([3200], square, "float32"), starts, steps)
    exact = square + (start - square) * 0.999**steps
    # The variance of a rounding is at most an eighth, or half, of v times the change.
    # Its share decays with twice the rate: after a fall from many times the end, that
    # is less than the end times the start times 0.999**steps, and at most the square
    # of the larger of both else.
    variance = DISTANCE[bits] * exact * max(start * 0.999**steps, 4 * exact)
    assert abs(found.mean() - exact) < 5 * np.sqrt(variance / 3200)


@pytest.mark.slow
def test_a_small_second_moment_of_4_bits_is_held_at_the_smallest_code():
    """And follows when the rest of its group has become small."""
    squares = np.where(np.arange(320) % 32 == 0, 1.0, 1e-4).astype("float32")
    found = run_of_moments(4, squares, squares, 3000)
    largest = found[::32]
    assert abs(largest.mean() - 1) < 5 * np.sqrt(0.5 / 10)
    others = found.reshape(-1, 32)[:, 1:]
    # At least 2**-8 of the largest, at most of the power of two above it.
    assert np.all(others >= largest[:, None] * 2.0**-8)
    assert np.mean(others) < 2.5 * 2.0**-8
