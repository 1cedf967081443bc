"""Rounding to 16 bits, against numpy, ml_dtypes and exact arithmetic in float64."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_mp.optimizer.compression import differs, round_nearest, round_stochastic

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.FEp127")}
# The spacing of the numbers just below and just above 1.
BELOW_ONE = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
ABOVE_ONE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}

BITS = np.arange(2**16, dtype=np.uint16)
# Every float16 from 0 up to the largest finite one, in order.
POSITIVE_HALVES = BITS[:0x7C00].view(np.float16)

COMPILED = pytest.mark.parametrize("jit", [False, True], ids=["eager", "xla"])


def compiled(function, jit):
    return tf.function(function, jit_compile=True) if jit else function


def nearest(x, dtype, jit=False):
    """`round_nearest` of a float32 array, as a numpy array."""
    assert x.dtype == np.float32
    rounded = compiled(lambda x: round_nearest(x, dtype), jit)(tf.constant(x))
    assert rounded.dtype == dtype
    return rounded.numpy()


def stochastic(x, dtype, seed, jit=False):
    """`round_stochastic` of a float32 array, as a numpy array."""
    assert x.dtype == np.float32
    rounded = compiled(lambda x: round_stochastic(x, dtype, seed), jit)(tf.constant(x))
    assert rounded.dtype == dtype
    return rounded.numpy()


@pytest.fixture
def seed():
    return keras.random.SeedGenerator(20180215)


def assert_same_bits(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


# To nearest.


@COMPILED
def test_every_half_rounds_to_itself(jit):
    halves = BITS.view(np.float16)
    finite = np.isfinite(halves)
    rounded = nearest(halves.astype(np.float32), "float16", jit)
    assert_same_bits(rounded[finite], halves[finite])
    np.testing.assert_array_equal(np.isnan(rounded), np.isnan(halves))
    assert nearest(np.float32([np.inf, -np.inf]), "float16", jit).tolist() == [
        65504.0,
        -65504.0,
    ]


@COMPILED
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_between_two_halves_the_nearest_wins_and_a_tie_goes_to_even(sign, jit):
    # All 31,743 pairs of neighbours, subnormals too. A midpoint has 12 significant
    # bits, so float64 and float32 both hold it exactly.
    lower, upper = POSITIVE_HALVES[:-1], POSITIVE_HALVES[1:]
    middle = (lower.astype(np.float64) + upper.astype(np.float64)) / 2
    midpoint = middle.astype(np.float32)
    np.testing.assert_array_equal(midpoint.astype(np.float64), middle)

    even = np.where(BITS[: len(lower)] % 2 == 0, lower, upper)
    just_above = np.nextafter(midpoint, np.float32(np.inf))
    just_below = np.nextafter(midpoint, np.float32(0))
    sign = np.float32(sign)
    half_sign = np.float16(sign)
    assert_same_bits(nearest(sign * midpoint, "float16", jit), half_sign * even)
    assert_same_bits(nearest(sign * just_above, "float16", jit), half_sign * upper)
    assert_same_bits(nearest(sign * just_below, "float16", jit), half_sign * lower)


# From 65520 on, the nearest multiple of the spacing is 65536: numpy says inf.
AROUND_THE_LARGEST = [65503.0, 65504.0, 65505.0, 65519.996, 65520.0, 65520.004, 65536.0]


@COMPILED
def test_float16_saturates(jit):
    x = np.float32([*AROUND_THE_LARGEST, 1e30, LARGEST["bfloat16"], np.inf])
    rounded = nearest(x, "float16", jit)
    assert rounded.tolist() == [65504.0] * len(x)
    assert nearest(-x, "float16", jit).tolist() == [-65504.0] * len(x)


@COMPILED
def test_zeros_and_what_underflows_keep_their_sign(jit):
    # 2**-25 is the midpoint of 0 and the smallest half, 2**-24: the tie goes to 0.
    x = np.float32([0.0, 2.0**-126, 2.0**-25, np.nextafter(np.float32(2**-25), 1)])
    expected = np.array([0.0, 0.0, 0.0, 2.0**-24], np.float16)
    assert_same_bits(nearest(x, "float16", jit), expected)
    assert_same_bits(nearest(-x, "float16", jit), -expected)


def random_float32(rng, size, lowest_exponent, highest_exponent):
    """Normal float32 numbers with random exponents, signs and 23 random bits."""
    exponent = rng.integers(lowest_exponent, highest_exponent, size)
    fraction = rng.integers(0, 2**23, size) * 2.0**-23
    sign = rng.choice([-1.0, 1.0], size)
    return (sign * np.ldexp(1 + fraction, exponent)).astype(np.float32)


@COMPILED
def test_float16_as_numpy_rounds(jit):
    x = random_float32(np.random.default_rng(0), 100_000, -30, 15)
    assert_same_bits(nearest(x, "float16", jit), x.astype(np.float16))


@COMPILED
def test_bfloat16_as_ml_dtypes_rounds(jit):
    # Not below 2**-126: processors flush subnormal float32 to zero.
    rng = np.random.default_rng(0)
    halves = BITS.view(ml_dtypes.bfloat16).astype(np.float32)
    halves = halves[np.abs(halves) >= 2.0**-126]
    halves = halves[np.abs(halves) < LARGEST["bfloat16"]]
    midpoints = (halves.view(np.uint32) + 0x8000).view(np.float32)
    x = np.concatenate([halves, midpoints, random_float32(rng, 100_000, -126, 127)])
    expected = x.astype(ml_dtypes.bfloat16)
    assert_same_bits(nearest(x, "bfloat16", jit), expected)


@COMPILED
def test_bfloat16_saturates(jit):
    x = np.float32([LARGEST["bfloat16"], np.finfo("float32").max, np.inf])
    assert nearest(x, "bfloat16", jit).tolist() == [LARGEST["bfloat16"]] * 3
    assert nearest(-x, "bfloat16", jit).tolist() == [-LARGEST["bfloat16"]] * 3
    assert np.isnan(nearest(np.float32([np.nan]), "bfloat16", jit)).all()


# Stochastic. x, its neighbours z1 < z2 by hand, and (x - z1) / (z2 - z1).

BETWEEN = {
    "float16": {
        "above-one": (1 + 0.25 * 2**-10, 1.0, 1 + 2.0**-10, 0.25),
        "below-one": (1 - 0.25 * 2**-11, 1 - 2.0**-11, 1.0, 0.75),
        "just-below-one": (1 - 2.0**-18, 1 - 2.0**-11, 1.0, 127 / 128),
        "just-above-one": (1 + 2.0**-17, 1.0, 1 + 2.0**-10, 1 / 128),
        "negative": (-1 - 0.25 * 2**-10, -1 - 2.0**-10, -1.0, 0.75),
        "negative-below-one": (-1 + 0.25 * 2**-11, -1.0, -1 + 2.0**-11, 0.25),
        "large": (65500.0, 65472.0, 65504.0, 28 / 32),
        "third": (2000 + 1 / 3, 2000.0, 2001.0, 1 / 3),
        "smallest-normal": (2.0**-14 - 2.0**-26, 2.0**-14 - 2.0**-24, 2.0**-14, 0.75),
        "subnormal": (2.5 * 2.0**-24, 2.0**-23, 3 * 2.0**-24, 0.5),
        "negative-subnormal": (-2.75 * 2.0**-24, -3 * 2.0**-24, -(2.0**-23), 0.25),
        "below-the-smallest": (0.1 * 2.0**-24, 0.0, 2.0**-24, 0.1),
        "negative-below-the-smallest": (-0.1 * 2.0**-24, -(2.0**-24), 0.0, 0.9),
    },
    "bfloat16": {
        "above-one": (1 + 0.25 * 2**-7, 1.0, 1 + 2.0**-7, 0.25),
        "below-one": (1 - 0.25 * 2**-8, 1 - 2.0**-8, 1.0, 0.75),
        "negative": (-1 - 0.25 * 2**-7, -1 - 2.0**-7, -1.0, 0.75),
        "large": (2.0**127 * (1 + 2**-9), 2.0**127, 2.0**127 * (1 + 2**-7), 0.25),
        "small": (2.0**-119 * (1 + 2**-8), 2.0**-119, 2.0**-119 * (1 + 2**-7), 0.5),
    },
}
CASES = {
    f"{dtype}-{name}": (dtype, *case)
    for dtype, cases in BETWEEN.items()
    for name, case in cases.items()
}
BETWEEN_CASES = pytest.mark.parametrize(
    ("dtype", "x", "lower", "upper", "share"), CASES.values(), ids=CASES
)

DRAWS = 100_000


@BETWEEN_CASES
def test_stochastic_rounding_is_unbiased(dtype, x, lower, upper, share, seed):
    draws = stochastic(np.full(DRAWS, x, np.float32), dtype, seed)
    assert set(draws.tolist()) == {lower, upper}

    # The number of upper neighbours is binomial: 5 standard deviations are exceeded
    # once in 1.7 million. The uniform draw has 23 bits, which may move the
    # probability by 2**-23; so may the rounding of x to float32.
    tolerance = 5 * np.sqrt(share * (1 - share) / DRAWS) + 2 * 2.0**-23
    assert abs(np.mean(draws == upper) - share) <= tolerance
    # Hence the mean, in float64, converges to x.
    error = abs(np.mean(draws.astype(np.float64)) - x)
    assert error <= tolerance * (upper - lower)


@BETWEEN_CASES
def test_the_neighbours_of_the_table_are_neighbours(dtype, x, lower, upper, share):
    # Checks the table, not the code: nothing representable lies between.
    half = NUMPY[dtype]
    assert float(half(lower)) == lower < x < upper == float(half(upper))
    assert np.nextafter(half(lower), half(np.inf)) == half(upper)
    # Exact but for the decimal x, which float64 rounds: 2**-52 * 2000.3 / 1.
    assert abs((x - lower) / (upper - lower) - share) <= 2.0**-41


@COMPILED
def test_every_half_is_unchanged_by_stochastic_rounding(jit, seed):
    halves = BITS.view(np.float16)
    halves = halves[np.isfinite(halves)]
    rounded = stochastic(halves.astype(np.float32), "float16", seed, jit)
    # By value: -0 may become 0.
    np.testing.assert_array_equal(rounded, halves, strict=True)


@COMPILED
def test_every_bfloat16_is_unchanged_by_stochastic_rounding(jit, seed):
    halves = BITS.view(ml_dtypes.bfloat16)
    size = np.abs(halves.astype(np.float32))
    halves = halves[np.isfinite(size) & ((size >= 2.0**-119) | (size == 0))]
    rounded = stochastic(halves.astype(np.float32), "bfloat16", seed, jit)
    np.testing.assert_array_equal(rounded, halves, strict=True)


@COMPILED
@pytest.mark.parametrize("dtype", NUMPY)
def test_stochastic_rounding_lands_on_one_of_the_two_neighbours(dtype, jit, seed):
    exponents = {"float16": (-30, 15), "bfloat16": (-119, 127)}[dtype]
    x = random_float32(np.random.default_rng(1), 100_000, *exponents)
    rounded = stochastic(x, dtype, seed, jit)
    # One of the two is the nearest, and the other lies on the other side of x.
    half = x.astype(NUMPY[dtype])
    away = np.where(half.astype(np.float32) < x, np.inf, -np.inf)
    other = np.nextafter(half, away.astype(NUMPY[dtype]))
    exact = half.astype(np.float32) == x
    is_nearest, is_other = rounded == half, rounded == other
    assert np.all(is_nearest | (is_other & ~exact))
    # The nearest is drawn with a probability above 1/2, the other still often.
    assert 0.1 < np.mean(is_other) < 0.5


@COMPILED
@pytest.mark.parametrize("dtype", NUMPY)
def test_stochastic_rounding_saturates(dtype, jit, seed):
    largest = LARGEST[dtype]
    above = {
        "float16": [65505.0, 65519.0, 65520.0, 65535.9, 65536.0, 1e30],
        "bfloat16": [np.finfo("float32").max],
    }[dtype]
    x = np.repeat(np.float32([largest, *above, np.inf]), 100)
    x = np.concatenate([x, -x, np.float32([np.nan])])
    *finite, not_a_number = stochastic(x, dtype, seed, jit).tolist()
    assert finite == [largest] * (len(x) // 2) + [-largest] * (len(x) // 2)
    assert np.isnan(not_a_number)


@COMPILED
def test_draws_are_reproducible_by_seed_and_differ_between_calls(jit):
    x = np.full(1000, 1 + 2.0**-11, np.float32)

    def three_calls(number):
        seed = keras.random.SeedGenerator(number)
        rounding = compiled(lambda x: round_stochastic(x, "float16", seed), jit)
        return [rounding(tf.constant(x)).numpy().tolist() for _ in range(3)]

    first, second, third = three_calls(1)
    assert [first, second, third] == three_calls(1)
    assert first != second != third != first
    assert first != three_calls(2)[0]


def test_a_traced_function_draws_anew_at_every_call(seed):
    rounding = tf.function(lambda x: round_stochastic(x, "float16", seed))
    x = tf.fill([1000], 1 + 2.0**-11)
    assert rounding(x).numpy().tolist() != rounding(x).numpy().tolist()


def test_each_element_has_a_draw_of_its_own(seed):
    x = np.full((100, 100), 1 + 2.0**-11, np.float32)
    rounded = stochastic(x, "float16", seed)
    assert rounded.shape == (100, 100)
    # Of 100 rows or columns of 100 fair draws, no two are equal.
    assert len({row.tobytes() for row in rounded}) == 100
    assert len({column.tobytes() for column in rounded.T}) == 100


# Is a weight a rounding of its master?

INF, NAN = np.inf, np.nan


def differs_cases(dtype):
    """Name: (weight, master, differs under nearest, differs under stochastic)."""
    below, above, largest = BELOW_ONE[dtype], ABOVE_ONE[dtype], LARGEST[dtype]
    cases = {
        "equal": (1.5, 1.5, False, False),
        "negative-equal": (-1.5, -1.5, False, False),
        "one-ulp-above": (1 + above, 1.0, True, True),
        "one-ulp-below": (1 - below, 1.0, True, True),
        "negative-one-ulp": (-1 - above, -1.0, True, True),
        "nearest-of-a-quarter": (1.0, 1 + above / 4, False, False),
        "other-of-a-quarter": (1 + above, 1 + above / 4, True, False),
        "beyond-the-upper": (1 + 2 * above, 1 + above / 4, True, True),
        "below-the-lower": (1 - below, 1 + above / 4, True, True),
        "tie-to-even": (1.0, 1 + above / 2, False, False),
        "tie-to-odd": (1 + above, 1 + above / 2, True, False),
        "below-one-nearest": (1.0, 1 - below / 4, False, False),
        "below-one-other": (1 - below, 1 - below / 4, True, False),
        "below-one-beyond": (1 + above, 1 - below / 4, True, True),
        "negative-nearest": (-1.0, -1 - above / 4, False, False),
        "negative-other": (-1 - above, -1 - above / 4, True, False),
        "negative-beyond": (-1 + below, -1 - above / 4, True, True),
        "other-sign": (-1.0, 1.0, True, True),
        # A stochastic rounding of -0 is 0.
        "minus-zero": (-0.0, 0.0, True, False),
        "zero-for-minus-zero": (0.0, -0.0, True, False),
        "both-minus-zero": (-0.0, -0.0, False, False),
        "saturated": (largest, 1e39, False, False),
        "negative-saturated": (-largest, -1e39, False, False),
        "saturated-from-inf": (largest, INF, False, False),
        "inf-from-inf": (INF, INF, True, True),
        "inf-from-finite": (INF, 1.0, True, True),
        "nan-from-finite": (NAN, 1.0, True, True),
        "finite-from-nan": (1.0, NAN, True, True),
        "zero-from-nan": (0.0, NAN, True, True),
    }
    if dtype == "float16":
        cases |= {
            "saturated-from-65520": (largest, 65520.0, False, False),
            "before-the-largest": (65472.0, 1e6, True, True),
            "subnormal": (2.0**-24, 1.25 * 2.0**-24, False, False),
            "subnormal-other": (2.0**-23, 1.25 * 2.0**-24, True, False),
            "subnormal-beyond": (3 * 2.0**-24, 1.25 * 2.0**-24, True, True),
            "underflow": (0.0, 2.0**-26, False, False),
            "underflow-other": (2.0**-24, 2.0**-26, True, False),
            "underflow-negative": (-(2.0**-24), 2.0**-26, True, True),
        }
    return cases


DIFFERS = {
    f"{dtype}-{name}": (dtype, *case)
    for dtype in NUMPY
    for name, case in differs_cases(dtype).items()
}


@pytest.mark.parametrize(
    ("dtype", "weight", "master", "nearest", "stochastic"),
    DIFFERS.values(),
    ids=DIFFERS,
)
def test_differs(dtype, weight, master, nearest, stochastic):
    with np.errstate(over="ignore"):
        master = tf.constant(np.array([master]).astype(np.float32))
    weight = tf.constant(np.array([weight]).astype(NUMPY[dtype]))
    for rounding, expected in [("nearest", nearest), ("stochastic", stochastic)]:
        found = differs(weight, master, rounding)
        assert found.dtype == tf.bool
        assert found.numpy().tolist() == [expected], rounding


@COMPILED
@pytest.mark.parametrize("dtype", NUMPY)
def test_differs_in_one_compiled_call(dtype, jit):
    # The whole table at once: a compiler may widen a comparison of halves.
    weights, masters, nearest, stochastic = zip(
        *differs_cases(dtype).values(), strict=True
    )
    with np.errstate(over="ignore"):
        masters = tf.constant(np.array(masters).astype(np.float32))
    weights = tf.constant(np.array(weights).astype(NUMPY[dtype]))
    for rounding, expected in [("nearest", nearest), ("stochastic", stochastic)]:
        found = compiled(lambda w, m, r=rounding: differs(w, m, r), jit)
        assert found(weights, masters).numpy().tolist() == list(expected)


@COMPILED
@pytest.mark.parametrize("dtype", NUMPY)
def test_a_rounding_never_differs_from_its_master(dtype, jit, seed):
    # Otherwise a master would be lost at every step.
    exponents = {"float16": (-30, 18), "bfloat16": (-119, 127)}[dtype]
    x = random_float32(np.random.default_rng(2), 50_000, *exponents)

    def roundings_differ(x):
        return (
            differs(round_nearest(x, dtype), x, "nearest"),
            differs(round_stochastic(x, dtype, seed), x, "stochastic"),
        )

    by_nearest, by_stochastic = compiled(roundings_differ, jit)(tf.constant(x))
    assert not np.any(by_nearest)
    assert not np.any(by_stochastic)
