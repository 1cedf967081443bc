"""`exponent_histogram` against numbers whose exponents are known by hand."""

import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp.ops import exponent_histogram

CASES = {
    "zeros": ([0.0, -0.0], {0: 2}),
    "a power of two opens its bin": ([1.0, -1.0, 1.9375], {150: 3}),
    "the number below it": ([np.nextafter(np.float32(1), np.float32(0))], {149: 1}),
    "smallest subnormals": ([2.0**-149, 3 * 2.0**-149, 2.0**-148], {1: 1, 2: 2}),
    "largest subnormal": ([2.0**-126 - 2.0**-149], {23: 1}),
    "smallest normal": ([2.0**-126], {24: 1}),
    "largest": ([np.finfo("float32").max], {277: 1}),
    "infinities": ([np.inf, -np.inf], {278: 2}),
    "NaN": ([np.nan, -np.nan, np.uint32(0x7F800001).view("float32")], {279: 3}),
    "none": ([], {}),
}


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_each_number_falls_into_its_bin(name, mode):
    numbers, expected = CASES[name]
    count = {
        "eager": exponent_histogram,
        "graph": tf.function(exponent_histogram),
        "xla": tf.function(exponent_histogram, jit_compile=True),
    }[mode]
    counts = count(tf.constant(np.array(numbers, "float32")))
    assert counts.dtype == tf.int64 and counts.shape == (280,)
    assert {i: n for i, n in enumerate(counts.numpy().tolist()) if n} == expected


HALVES = {
    "float16": {"smallest": 2.0**-24, "subnormals": 1023, "bins": range(-24, 16)},
    "bfloat16": {"smallest": 2.0**-133, "subnormals": 127, "bins": range(-133, 128)},
}


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_16_bits(dtype):
    bits = tf.range(1 << 16, dtype=tf.int32)
    numbers = tf.bitcast(tf.cast(bits, tf.uint16), dtype)
    counts = exponent_histogram(tf.reshape(numbers, (256, 256))).numpy()
    mantissas = {"float16": 1 << 10, "bfloat16": 1 << 7}[dtype]
    expected = np.zeros(280, int)
    expected[0], expected[278] = 2, 2
    expected[279] = 2 * (mantissas - 1)
    for e in HALVES[dtype]["bins"]:
        below = e - HALVES[dtype]["bins"][0]
        expected[e + 150] = 2 * min(1 << below, mantissas)
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("size", [1, 7, 17, 217, 989, 100_003])
def test_random_numbers_against_float64(size):
    random = np.random.default_rng(size)
    x = np.ldexp(random.uniform(0.5, 1, size), random.integers(-148, 129, size))
    x = x.astype("float32")
    exponents = np.frexp(x.astype("float64"))[1] - 1
    expected = np.bincount(exponents + 150, minlength=280)
    np.testing.assert_array_equal(exponent_histogram(x), expected)


@pytest.mark.parametrize(
    ("x", "received"),
    [
        (np.ones(2, "float64"), "float64"),
        (np.ones(2, "int32"), "int32"),
    ],
    ids=["float64", "int32"],
)
def test_other_dtypes_are_refused(x, received):
    with pytest.raises(ValueError, match=f"float16, bfloat16 or float32.*{received}"):
        keras_mp.ops.exponent_histogram(x)
