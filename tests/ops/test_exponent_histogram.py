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


@pytest.mark.parametrize("name", CASES)
def test_each_number_falls_into_its_bin(route, name):
    numbers, expected = CASES[name]
    counts = route(exponent_histogram)(tf.constant(np.array(numbers, "float32")))
    assert counts.dtype == tf.int64 and counts.shape == (280,)
    assert {i: n for i, n in enumerate(counts.numpy().tolist()) if n} == expected


HALVES = {
    "float16": {"smallest": 2.0**-24, "subnormals": 1023, "bins": range(-24, 16)},
    "bfloat16": {"smallest": 2.0**-133, "subnormals": 127, "bins": range(-133, 128)},
}


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_16_bits(route, dtype):
    bits = tf.range(1 << 16, dtype=tf.int32)
    numbers = tf.bitcast(tf.cast(bits, tf.uint16), dtype)
    counts = route(exponent_histogram)(tf.reshape(numbers, (256, 256))).numpy()
    mantissas = {"float16": 1 << 10, "bfloat16": 1 << 7}[dtype]
    expected = np.zeros(280, int)
    expected[0], expected[278] = 2, 2
    expected[279] = 2 * (mantissas - 1)
    for e in HALVES[dtype]["bins"]:
        below = e - HALVES[dtype]["bins"][0]
        expected[e + 150] = 2 * min(1 << below, mantissas)
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("size", [1, 7, 17, 217, 989, 100_003])
def test_random_numbers_against_float64(library, size):
    random = np.random.default_rng(size)
    x = np.ldexp(random.uniform(0.5, 1, size), random.integers(-148, 129, size))
    x = x.astype("float32")
    exponents = np.frexp(x.astype("float64"))[1] - 1
    expected = np.bincount(exponents + 150, minlength=280)
    np.testing.assert_array_equal(exponent_histogram(x), expected)


# Name: random numbers, of which each kind is counted in another way.
KINDS = {
    "normal": lambda random, size: random.normal(size=size),
    "gradients": lambda random, size: 1e-6 * random.standard_cauchy(size),
    "half-zeros": lambda random, size: np.maximum(random.normal(size=size), 0),
    "any-bits": lambda random, size: random.integers(0, 1 << 32, size, "uint32"),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_counts_as_the_formula(ops_mode, kind, dtype):
    numbers = KINDS[kind](np.random.default_rng(0), (3, 70_001))
    is_bits = numbers.dtype == "uint32"
    numbers = numbers.view("float32") if is_bits else numbers.astype("float32")
    x = tf.cast(numbers, dtype)[:, 1:]
    counts = []
    for mode in ("native", "reference"):
        ops_mode(mode)
        counts.append(exponent_histogram(x).numpy())
    assert counts[0].sum() == 3 * 70_000
    np.testing.assert_array_equal(*counts, strict=True)


def test_a_number_alone_is_counted(route):
    counts = route(exponent_histogram)(tf.constant(1.0, "float16"))
    assert counts[150] == 1 and tf.reduce_sum(counts) == 1


def test_sizes_that_are_known_at_run_time(route):
    """Also for XLA, which pads such a tensor to the largest size."""
    run = route(lambda x: exponent_histogram(x[x > 0.0]))
    counts = run(tf.constant([[-1.0, 0.0, 2.0], [1.0, -3.0, 1.5]])).numpy()
    assert {i: n for i, n in enumerate(counts.tolist()) if n} == {150: 2, 151: 1}


def test_the_kernel_is_part_of_a_graph(ops_mode):
    ops_mode("native")
    run = tf.function(exponent_histogram).get_concrete_function(tf.TensorSpec(None))
    assert "KerasMp>ExponentHistogram" in {op.type for op in run.graph.get_operations()}
    assert run.outputs[0].shape == (280,)


def test_counts_have_no_gradient(route):
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            counts = tf.cast(exponent_histogram(x), tf.float32)
            total = tf.reduce_sum(counts * x[0])
        return tape.gradient(total, x)

    # That of the factor x[0] alone.
    np.testing.assert_array_equal(route(slope)(tf.constant([2.0, 3.0])), [2.0, 0.0])


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
