"""A 16-bit weight and a remainder of 8 bits are a master of 24 bits."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers
from stored_forms import wrap

import keras_mp
from keras_mp.optimizer.compression import join, round_to_24_bits, split
from keras_mp.random_bits import STREAM_OF_WEIGHTS, noise_of_step, random_bits

MODES = pytest.mark.parametrize("jit", [False, True], ids=["eager", "xla"])
DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
# From 1 to 2: the distance of weights, and that of masters.
ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
SPACING = {dtype: ulp / 256 for dtype, ulp in ULP.items()}
# The exponent up to which the spacing does not shrink.
LEAST = {"float16": -14, "bfloat16": -110}


def make_trip(dtype, jit=False):
    """A function of masters and a step: weights, remainders, and what both are."""

    @tf.function(jit_compile=jit)
    def trip(x, step):
        bits = random_bits(x.shape, noise_of_step(0, step), STREAM_OF_WEIGHTS)
        master, weight = round_to_24_bits(x, dtype, bits)
        remainder = split(master, weight, "int8")
        return weight, remainder, join(weight, remainder)

    return trip


def stored(masters, dtype, jit=False, step=0):
    outputs = make_trip(dtype, jit)(tf.constant(masters, "float32"), tf.constant(step))
    return [oracle.value(x) for x in outputs]


def spacing_at(masters, dtype):
    """In float64: eight bits of fraction more than the weight has."""
    _, exponents = np.frexp(masters.astype("float64"))
    return np.ldexp(SPACING[dtype], np.maximum(exponents - 1, LEAST[dtype]))


def is_beside_half_way(masters, dtype):
    """Whether a neighbour in 24 bits is half-way between two weights."""
    spacing = spacing_at(masters, dtype)
    places = masters.astype("float64") / spacing
    return (np.floor(places) % 256 == 128) | (np.ceil(places) % 256 == 128)


# Dtype, master, weight and remainder.
KEPT = {
    "exact": ("float16", 1.5, 1.5, 0),
    "above": ("float16", 1 + 3 * 2.0**-18, 1.0, 3),
    # Below a power of two the masters are twice as dense.
    "below": ("float16", 1 - 3 * 2.0**-19, 1.0, -3),
    "negative": ("float16", -1 - 3 * 2.0**-18, -1.0, 3),
    "furthest": ("float16", 1 + 127 * 2.0**-18, 1.0, 127),
    "next weight": ("float16", 1 + 129 * 2.0**-18, 1 + 2.0**-10, -127),
    "smallest normal": ("float16", 2.0**-14 - 2.0**-32, 2.0**-14, -1),
    "subnormal": ("float16", 2.0**-15 + 2.0**-30, 2.0**-15, 4),
    "below all": ("float16", -(2.0**-30), -0.0, -4),
    "zero": ("float16", 0.0, 0.0, 0),
    "beyond the largest": ("float16", 65504 + 2.0**-2, 65504.0, 2),
    "bfloat16 above": ("bfloat16", 1 + 3 * 2.0**-15, 1.0, 3),
    "bfloat16 below": ("bfloat16", 1 - 3 * 2.0**-16, 1.0, -3),
    "bfloat16 tiny": ("bfloat16", 2.0**-100 * (1 + 2.0**-15), 2.0**-100, 1),
}


@MODES
@DTYPES
def test_a_master_of_24_bits_is_kept(dtype, jit):
    cases = [case for of, *case in KEPT.values() if of == dtype]
    expected, weights, remainders = (
        np.array(each) for each in zip(*cases, strict=True)
    )
    found = stored(expected, dtype, jit)
    weights = oracle.value(tf.cast(tf.constant(weights), dtype))
    oracle.assert_same_bits(found[0], weights, "weight")
    oracle.assert_same_bits(found[1], remainders.astype("int8"), "remainder")
    oracle.assert_same_bits(found[2], expected.astype("float32"), "master")


# Dtype, master, and what is kept of it.
LOST = {
    # The largest weight and the largest remainder.
    "beyond the largest": ("float16", 1e6, 65504 + 127 / 8),
    "minus infinity": ("float16", -np.inf, -65504 - 127 / 8),
    "bfloat16": ("bfloat16", 3.4e38, float.fromhex("0x1.FEFEp127")),
    "not a number": ("float16", np.nan, np.nan),
    "minus zero": ("float16", -0.0, 0.0),
    "below 2**-126": ("bfloat16", 2.0**-127, 0.0),
}


@MODES
@DTYPES
def test_what_is_lost(dtype, jit):
    cases = [case for of, *case in LOST.values() if of == dtype]
    masters, kept = (np.array(each, "float32") for each in zip(*cases, strict=True))
    np.testing.assert_array_equal(stored(masters, dtype, jit)[2], kept)


@pytest.mark.slow_except("*-eager")
@MODES
@DTYPES
def test_random_masters_are_less_than_the_spacing_off(dtype, jit):
    generator = np.random.default_rng(0)
    exponents = generator.uniform(-30, 15.9, 1_000_000)
    signs = generator.choice([-1.0, 1.0], exponents.size)
    masters = (signs * 2**exponents).astype("float32")
    weights, _, kept = stored(masters, dtype, jit)
    error = np.abs(kept.astype("float64") - masters) / spacing_at(masters, dtype)
    hole = is_beside_half_way(masters, dtype)
    assert np.max(error[~hole]) < 1
    assert np.max(error[hole]) < 2
    # Every weight is its master to nearest, and no master is half-way between two.
    nearest = oracle.value(tf.cast(tf.constant(kept), dtype))
    oracle.assert_same_bits(weights, nearest)
    assert not np.any(kept / spacing_at(kept, dtype) % 256 == 128)
    # Nothing is rounded a second time.
    again = stored(kept, dtype, jit, step=1)
    oracle.assert_same_bits(again[0], weights)
    oracle.assert_same_bits(again[2], kept)


def test_eager_and_xla_round_alike():
    masters = np.random.default_rng(1).standard_normal(10_000).astype("float32")
    for dtype in ULP:
        for one, other in zip(
            stored(masters, dtype), stored(masters, dtype, jit=True), strict=True
        ):
            oracle.assert_same_bits(one, other)


@pytest.mark.parametrize(
    ("dtype", "first", "places"),
    {
        # Of the spacing, from a power of two on; half-way to the next weight is 128.
        "float16": ("float16", 1.0, (0.25, 126.5, 127.5, 128.0, 128.75, 383.5, 384.0)),
        "negative": ("float16", -1.0, (0.25, 127.5, 128.0, 128.75, 383.5, 384.0)),
        "subnormal": ("float16", 2.0**-20, (0.25, 127.5, 128.0, 128.75, 384.0)),
        "zero": ("float16", 0.0, (0.25, -0.25, 127.5, 128.0, -128.0)),
        "bfloat16": ("bfloat16", 1.0, (0.25, 126.5, 127.5, 128.0, 128.75, 384.0)),
    }.values(),
    ids=["float16", "negative", "subnormal", "zero", "bfloat16"],
)
def test_the_mean_of_many_roundings_is_the_master(dtype, first, places):
    unit = float(spacing_at(np.float32(first), dtype)) * (-1 if first < 0 else 1)
    masters = np.array([first + place * unit for place in places], "float32")
    # 4,000 draws of each.
    _, _, kept = stored(np.tile(masters, (4000, 1)), dtype)
    error = (kept.astype("float64") - masters) / abs(unit)
    assert np.max(np.abs(error)) < 2
    # A deviation of one spacing at most.
    assert np.all(np.abs(error.mean(0)) < 5 / np.sqrt(4000))


@DTYPES
@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_its_master(dtype, weight):
    weights = tf.cast(tf.constant([weight], "float32"), dtype)
    masters = oracle.value(join(weights, tf.constant([77], "int8")))
    np.testing.assert_array_equal(masters, np.array([weight], "float32"))
    remainder = split(tf.constant([weight], "float32"), weights, "int8")
    assert oracle.value(remainder).tolist() == [0]


@DTYPES
@pytest.mark.parametrize("written", [1.0, 3.0, -0.25, 2.0**-14, 2.0**-15, 65504.0])
def test_a_weight_that_was_written_is_half_an_ulp_off_at_most(dtype, written):
    """Whatever remainder an earlier weight had left."""
    remainders = np.arange(-(2**7), 2**7, dtype="int8")
    weights = tf.cast(tf.fill([remainders.size], written), dtype)
    masters = oracle.value(join(weights, tf.constant(remainders)))
    rounded = oracle.value(weights)[0].astype("float32")
    ulp = 256 * spacing_at(rounded, dtype)
    assert np.max(np.abs(masters - rounded)) <= ulp / 2


@pytest.mark.slow_except("*-graph")
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@DTYPES
def test_updates_below_half_the_spacing_add_up(mode, dtype):
    """To nearest, none of 100 updates of a quarter of the spacing would be kept."""
    weights = [tf.Variable(tf.ones([64, 64], dtype))]
    optimizer = wrap(optimizers.SGD(SPACING[dtype] / 8), masters="int8_remainders")
    optimizer.build(weights)
    step = oracle.make_step(optimizer, weights, mode)
    for _ in range(100):
        step([tf.fill([64, 64], tf.cast(1024.0, dtype))])
    moved = 1 - np.asarray(optimizer.master_weights[0], "float64")
    # Below 1 the spacing is half as large. The middle between two weights, one place in
    # 256, is crossed by a step of two; else a step deviates by half a spacing at most.
    expected = 100 * SPACING[dtype] / 8
    deviation = np.sqrt(100) * SPACING[dtype] / 2
    assert abs(moved.mean() - expected) < 5 * deviation / 64
    assert np.max(np.abs(moved - expected)) < 6 * deviation


def test_the_seed_decides():
    def masters(seed):
        weights = [tf.Variable(tf.ones([64, 64], "float16"))]
        inner = optimizers.SGD(1e-7)
        optimizer = wrap(inner, masters="int8_remainders", seed=seed)
        optimizer.build(weights)
        optimizer.apply([tf.fill([64, 64], tf.cast(1024.0, "float16"))])
        return np.asarray(optimizer.master_weights[0])

    oracle.assert_same_bits(masters(0), masters(0))
    assert np.any(masters(0) != masters(1))


def test_what_is_assigned_is_rounded_to_nearest():
    weights = [tf.Variable(tf.ones([1, 3], "float16"))]
    optimizer = wrap(optimizers.SGD(1.0), masters="int8_remainders")
    optimizer.build(weights)
    (master,) = optimizer.master_weights
    unit = 2.0**-18
    with optimizer.fp32_weights():
        master.assign([[1 + 0.75 * unit, 1 + 0.25 * unit, 1 + 128 * unit]])
    expected = [[1 + unit, 1, 1 + 127 * unit]]
    oracle.assert_same_bits(master.numpy(), np.array(expected, "float32"))
    oracle.assert_same_bits(oracle.value(weights[0]), np.ones([1, 3], "float16"))


EDGES = [0.0, -0.0, 65503.9, 65519.8, 65519.9, 65520.0, -1e6, 1e30, -3.39e38, 2.0**-126]
EDGES += [2.0**-14 * (1 + k * 2.0**-18) for k in range(-3, 4)]
EDGES += [-edge for edge in EDGES[-7:]]
EDGES += [2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-33, -(2.0**-40), 2.0**-112, 2.0**-120]
EDGES += [first + k * 2.0**-9 / 4 for first in (1.0, -1.0, 2.0) for k in range(-9, 9)]


@DTYPES
def test_the_kernel_rounds_as_the_formulas_do(dtype):
    """A step of SGD from 0 to random masters, and to those at the edges of formats."""
    generator = np.random.default_rng(2)
    exponents = generator.uniform(-30, 16, 5000 - len(EDGES))
    random = generator.choice([-1.0, 1.0], exponents.size) * 2**exponents
    masters = np.concatenate([EDGES, random]).astype("float32")

    def stepped(constraint):
        weights = [keras.Variable(np.zeros(5000), dtype=dtype)]
        weights[0].constraint = constraint
        inner = optimizers.SGD(1.0)
        optimizer = keras_mp.wrap(inner, loss_scale=1, masters="int8_remainders")
        optimizer.scale_loss(0.0)
        optimizer.apply([tf.constant(-masters)], weights)
        remainder = optimizer.master_weights[0].remainder
        return [oracle.value(v) for v in (weights[0], remainder)]

    kernel, formulas = stepped(None), stepped(lambda weight: weight)
    oracle.assert_same_bits(kernel[0], formulas[0], "weight")
    oracle.assert_same_bits(kernel[1], formulas[1], "remainder")
    assert np.ptp(kernel[1].astype("int32")) == 254
