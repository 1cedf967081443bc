"""A 16-bit weight and its remainder are the FP32 master."""

import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp.optimizer.compression import join, round_nearest, split

MODES = pytest.mark.parametrize("jit", [False, True], ids=["eager", "xla"])
DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
ULP = 2.0**-23  # of FP32 numbers from 1 to 2


def there_and_back(masters, dtype, jit=False):
    """The weights, remainders, and what both are together."""

    def trip(x):
        weight = round_nearest(x, dtype)
        remainder = split(x, weight)
        return weight, remainder, join(weight, remainder)

    run = tf.function(trip, jit_compile=True) if jit else trip
    return [oracle.value(x) for x in run(tf.constant(masters, "float32"))]


# Dtype, master, weight and remainder.
KEPT = {
    "exact": ("float16", 1.5, 1.5, 0),
    "above": ("float16", 1 + 3 * ULP, 1.0, 3),
    # Below a power of two the FP32 numbers are twice as dense.
    "below": ("float16", 1 - 3 * ULP / 2, 1.0, -3),
    "negative": ("float16", -1 - 3 * ULP, -1.0, 3),
    "half-way": ("float16", 1 + 2.0**-11, 1.0, 2**12),
    "half-way to even": ("float16", 1 + 3 * 2.0**-11, 1 + 2.0**-9, -(2**12)),
    "smallest normal": ("float16", 2.0**-14 - 2.0**-26, 2.0**-14, -(2**14)),
    "subnormal": ("float16", 2.0**-15 + 2.0**-38, 2.0**-15, 4),
    "below all": ("float16", -(2.0**-30), -0.0, -(2**10)),
    "zero": ("float16", 0.0, 0.0, 0),
    "minus zero": ("float16", -0.0, -0.0, 0),
    "beyond the largest": ("float16", 65504 + 2.0**-7, 65504.0, 2),
    "bfloat16 above": ("bfloat16", 1 + 3 * ULP, 1.0, 3),
    "bfloat16 below": ("bfloat16", 1 - 3 * ULP / 2, 1.0, -3),
    "bfloat16 tiny": ("bfloat16", 2.0**-100 * (1 + ULP), 2.0**-100, 1),
    "bfloat16 half-way to even": (
        "bfloat16",
        1 + 3 * 2.0**-8,
        1 + 2.0**-6,
        -(2**15),
    ),
}


@MODES
@DTYPES
def test_a_master_is_kept_to_the_bit(dtype, jit):
    cases = [case for of, *case in KEPT.values() if of == dtype]
    expected, weights, remainders = (
        np.array(each) for each in zip(*cases, strict=True)
    )
    found = there_and_back(expected, dtype, jit)
    weights = oracle.value(tf.cast(tf.constant(weights), dtype))
    oracle.assert_same_bits(found[0], weights, "weight")
    oracle.assert_same_bits(found[1], remainders.astype("int16"), "remainder")
    oracle.assert_same_bits(found[2], expected.astype("float32"), "master")


@pytest.mark.parametrize(
    ("dtype", "master", "kept"),
    {
        # 65,537 masters round to an even bfloat16 weight.
        "half-way above an even bfloat16": ("bfloat16", 1 + 2.0**-8, 1 + 2.0**-8 - ULP),
        "far beyond the largest": ("float16", 1e6, 65520.0),
        "inf": ("float16", np.inf, 65520.0),
        # Multiples of 2^-40; half of one rounds to even.
        "finer than its unit": ("float16", 2.0**-20 + 2.0**-41, 2.0**-20),
    }.values(),
    ids=[
        "half-way above an even bfloat16",
        "far beyond the largest",
        "inf",
        "finer than its unit",
    ],
)
def test_what_is_lost(dtype, master, kept):
    _, _, masters = there_and_back([master], dtype)
    oracle.assert_same_bits(masters, np.array([kept], "float32"))


@DTYPES
@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_its_master(dtype, weight):
    weights = tf.cast(tf.constant([weight], "float32"), dtype)
    masters = oracle.value(join(weights, tf.constant([77], "int16")))
    np.testing.assert_array_equal(masters, np.array([weight], "float32"))
    remainder = split(tf.constant([weight], "float32"), weights)
    assert oracle.value(remainder).tolist() == [0]


@DTYPES
def test_random_masters(dtype):
    generator = np.random.default_rng(0)
    exponents = generator.uniform(-30, 15.9, 2_000_000)
    signs = generator.choice([-1.0, 1.0], exponents.size)
    masters = (signs * 2**exponents).astype("float32")
    weights, _, kept = there_and_back(masters, dtype)
    rounded = np.abs(weights.astype("float32"))
    if dtype == "bfloat16":
        # A tie is one in 2**16, above an even weight one in 2**17: 15 of 2 million.
        differ = kept != masters
        assert differ.sum() < 50
        assert np.all(masters.view("int32")[differ] % 2**16 == 2**15)
        return
    exact = (rounded > 2.0**-14) & (np.abs(masters) <= 65520)
    oracle.assert_same_bits(kept[exact], masters[exact])
    assert np.max(np.abs(kept - masters)[rounded <= 2.0**-14]) <= 2.0**-40
    exact = (rounded <= 2.0**-14) & (np.abs(masters) >= 2.0**-17)
    # Of units of 2**-40 all but the largest, half-way above an even weight, fit.
    assert np.mean(kept[exact] != masters[exact]) < 1e-4


@DTYPES
@pytest.mark.parametrize("written", [1.0, 3.0, -0.25, 2.0**-14, 2.0**-15, 65504.0])
def test_a_weight_that_was_written_is_half_an_ulp_off_at_most(dtype, written):
    """Whatever remainder an earlier weight had left."""
    remainders = np.arange(-(2**15), 2**15, dtype="int16")
    weights = tf.cast(tf.fill([remainders.size], written), dtype)
    masters = oracle.value(join(weights, tf.constant(remainders)))
    rounded = oracle.value(weights)[0].astype("float32")
    least = 2.0**-24 if dtype == "float16" else 0.0
    ulp = max(2.0 ** np.floor(np.log2(abs(rounded))) * EPSILON[dtype], least)
    assert np.max(np.abs(masters - rounded)) <= ulp / 2
