"""The dropout of dot_product_attention: its weights, gradients, seeds and chances."""

import itertools

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from attention_oracle import (
    CASES,
    assert_within,
    draw,
    expected,
    kept_weights,
    problem,
    random_bits,
)

from keras_mp.ops import attention_dropout, dot_product_attention

SEED = (7, -3)
RATE = 0.3


def values_and_gradients(run, tensors, mask, is_causal, dtype):
    mask = None if mask is None else tf.constant(mask)

    @run
    def compute(query, key, value, upstream, seed):
        options = {"mask": mask, "is_causal": is_causal, "dropout": RATE, "seed": seed}
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            y = dot_product_attention(query, key, value, **options)
        return [y, *tape.gradient(y, [query, key, value], upstream)]

    given = [tf.cast(x, dtype) for x in tensors]
    return compute(*given, tf.constant(SEED))


@pytest.mark.slow_except("*-float16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_values_and_gradients(route, dtype):
    for name, case in CASES.items():
        tensors, mask, is_causal = given = problem(*case, dtype)
        batch, queries, heads, _ = tensors[0].shape
        kept = kept_weights(RATE, SEED, batch, heads, queries, tensors[1].shape[1])
        found = values_and_gradients(route, *given, dtype)
        wanted = expected(tensors, mask, is_causal, dtype, kept)
        assert_within(found, wanted, dtype, name)


def dropped(seed, rate=0.5, dtype="float32", run=lambda f: f):
    """The weights of 150 keys with equal scores: the identity, attended to."""
    query = tf.zeros((2, 3, 4, 1), dtype)
    value = tf.eye(150, batch_shape=[2], dtype=dtype)[:, :, tf.newaxis]
    key = tf.zeros((2, 150, 1, 1), dtype)

    @run
    def attend(seed):
        return dot_product_attention(query, key, value, dropout=rate, seed=seed)

    return np.transpose(tf.cast(attend(seed), tf.float32), (0, 2, 1, 3))


def test_every_route_drops_the_same_weights(route):
    """Those that the hash says, across the blocks of 128 keys of the kernel."""
    for seed, dtype in itertools.product([(0, 0), SEED, (-(2**31), 2**31 - 1)], HALVES):
        kept = kept_weights(0.5, seed, 2, 4, 3, 150) > 0
        found = dropped(tf.constant(seed), dtype=dtype, run=route)
        np.testing.assert_array_equal(found > 0, kept)


HALVES = ("float16", "bfloat16")
# What is a seed, and the two numbers that it is.
SEEDS = {
    "int": (5, (5, 0)),
    "large-int": (2**32 - 1, (-1, 0)),
    "int-of-numpy": (np.int64(5), (5, 0)),
    "list": ([5, 6], (5, 6)),
    "int64": (np.array([2**32 - 1, 6]), (-1, 6)),
    "uint32": (np.uint32([2**32 - 1, 6]), (-1, 6)),
}


@pytest.mark.parametrize("name", SEEDS)
def test_what_is_a_seed(library, name):
    seed, numbers = SEEDS[name]
    np.testing.assert_array_equal(dropped(seed), dropped(tf.constant(numbers)))


def test_a_generator_drops_others_at_every_call(route):
    generator, same = (keras.random.SeedGenerator(3) for _ in range(2))
    run = route(lambda: dropped_by(generator))
    first, second = run(), run()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(dropped_by(same), first)
    np.testing.assert_array_equal(generator.state, [3, 2])


def dropped_by(generator):
    x = tf.ones((1, 9, 2, 1))
    return dot_product_attention(x, x, x, dropout=0.5, seed=generator)


def test_a_rate_of_0_changes_no_bit(route):
    """Nor does it take a seed."""
    x = tf.cast(draw(0, 2, 9, 2, 8), "float16")
    generator = keras.random.SeedGenerator(3)
    plain = route(lambda x: dot_product_attention(x, x, x))(x)
    found = route(
        lambda x: dot_product_attention(x, x, x, dropout=0.0, seed=generator)
    )(x)
    oracle.assert_same_bits(found.numpy(), plain.numpy())
    np.testing.assert_array_equal(generator.state, [3, 0])


def test_a_query_that_sees_no_key_drops_too(route):
    """As it attends to all keys equally."""
    x = tf.zeros((1, 3, 1, 1), "float16")
    value = tf.eye(3, batch_shape=[1], dtype="float16")[:, :, tf.newaxis]
    mask = tf.zeros((1, 1, 3, 3), "bool")

    @route
    def slopes(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            y = dot_product_attention(
                query, key, value, mask=mask, dropout=0.5, seed=SEED
            )
        return [y, *tape.gradient(y, [query, key, value])]

    y, of_query, of_key, of_value = slopes(x, x, value)
    kept = np.float16(kept_weights(0.5, SEED, 1, 1, 3, 3) / 3)
    np.testing.assert_array_equal(y[:, :, 0], kept[0])
    assert not np.any(of_query) and not np.any(of_key)
    # A sum of up to three numbers, of which each is rounded once.
    per_key = kept.astype("float64").sum(2)[0, 0]
    np.testing.assert_allclose(of_value[0, :, 0, 0], per_key, rtol=2**-9, atol=0)


@pytest.mark.slow
def test_the_chance_is_the_rate():
    """Of 2^22 weights, and of pairs of them that lie next to each other.

    A mean of n independent bits has a standard deviation of sqrt(p (1 - p) / n), and
    passes 5 of them with a chance of 6e-7. A pair shares a bit with two other ones,
    with each of which it correlates by at most a half: twice the variance.
    """
    sizes = (4, 8, 128, 1024)
    for seed, rate in itertools.product([(0, 0), (1, 0), (0, 1), SEED], (0.1, 0.5)):
        kept = np.array(attention_dropout.keeps(rate, tf.constant(seed), sizes))
        off = abs(kept.mean() - (1 - rate))
        assert off <= 5 * np.sqrt(rate * (1 - rate) / kept.size), (seed, rate)
        for axis, step in itertools.product(range(4), (1, 2)):
            one = np.take(kept, range(step, sizes[axis]), axis)
            other = np.take(kept, range(sizes[axis] - step), axis)
            chance = (1 - rate) ** 2
            off = abs((one & other).mean() - chance)
            most = 5 * np.sqrt(2 * chance * (1 - chance) / one.size)
            assert off <= most, (seed, rate, axis, step)


def test_no_two_queries_have_the_same_weights():
    """Nor two seeds that differ by one, as those of two steps do."""
    bits = np.stack([random_bits((9, step), 2, 8, 64, 4) for step in range(3)])
    rows = bits.reshape(-1, 4)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_small_rate_is_a_multiple_of_2_to_the_minus_32():
    """2^-20 drops what has fewer than 12 bits of 32: about 4 of 2^22."""
    sizes = (4, 8, 128, 1024)
    bits = random_bits(SEED, *sizes)
    kept = attention_dropout.keeps(2.0**-20, tf.constant(SEED), sizes)
    np.testing.assert_array_equal(kept, bits >= 2**12)
    assert np.all(attention_dropout.keeps(2.0**-33, tf.constant(SEED), sizes))


REFUSED = {
    "no-seed": ({"dropout": 0.1}, "seed=None"),
    "seed-of-fractions": ({"dropout": 0.1, "seed": [0.5, 0.7]}, "two ints"),
    "seed-of-three": ({"dropout": 0.1, "seed": [1, 2, 3]}, "two ints"),
    "rate-of-1": ({"dropout": 1.0, "seed": 1}, "dropout=1.0"),
    "rate-near-1": ({"dropout": 1 - 2.0**-26, "seed": 1}, "in FP32"),
    "negative": ({"dropout": -0.1, "seed": 1}, "dropout=-0.1"),
    "nan": ({"dropout": float("nan"), "seed": 1}, "dropout=nan"),
    "a-tensor": ({"dropout": tf.constant(0.1), "seed": 1}, "must be a number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_dropout_is_refused(library, name):
    options, message = REFUSED[name]
    x = np.zeros((1, 2, 1, 1), "float16")
    with pytest.raises(ValueError, match=message):
        dot_product_attention(x, x, x, **options)


def test_a_graph_of_an_earlier_version_is_read(ops_mode):
    """Its ops have neither a seed nor a rate."""
    ops_mode("native")
    x = tf.cast(draw(0, 1, 3, 2, 4), "float16")

    @tf.function
    def attend(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = dot_product_attention(x, x, x, is_causal=True)
        return y, tape.gradient(y, x)

    concrete = attend.get_concrete_function(tf.TensorSpec(x.shape, x.dtype))
    graph = concrete.graph.as_graph_def()
    changed = [node for node in graph.node if node.op.startswith("KerasMp>Attention")]
    assert len(changed) == 2
    for node in changed:
        del node.attr["num_seed"], node.attr["dropout"]
    names = [concrete.inputs[0].name, *(y.name for y in concrete.outputs)]
    earlier = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=""), []
    ).prune(names[0], names[1:])
    for found, expected_ in zip(earlier(x), attend(x), strict=True):
        oracle.assert_same_bits(found.numpy(), expected_.numpy())
