"""Attention by the kernel beside the way that has scores: masks, dropout, gradients."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mp import layers
from keras_mp.ops.attention import has_kernel

QUERY, VALUE, KEY, SLOPE = (
    np.random.default_rng(i).uniform(-1, 1, shape)
    for i, shape in enumerate([(2, 5, 3), (2, 7, 4), (2, 7, 3), (2, 5, 4)])
)
VALUE_MASK = np.arange(7) < np.array([[5], [7]])
QUERY_MASK = np.arange(5) < np.array([[5], [2]])
MASKS = {
    "none": None,
    "of-the-values": [None, VALUE_MASK],
    "of-both": [QUERY_MASK, VALUE_MASK],
}


def outputs_and_gradients(layer, run=lambda f: f, **options):
    @run
    def compute(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = layer(list(inputs), **options)
            y = y[0] if isinstance(y, tuple) else y
        return [y, *tape.gradient(y, inputs, tf.cast(SLOPE, y.dtype))]

    inputs = [tf.cast(x, layer.compute_dtype) for x in (QUERY, VALUE, KEY)]
    return [np.float64(tf.cast(x, "float64")) for x in compute(*inputs)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_kernel_computes_what_the_scores_say(mask, dtype):
    """Both ways round weights below 4, results, or neither: 12 roundings."""
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    for is_causal, dropout in itertools.product((False, True), (0.0, 0.5)):
        options = {
            "mask": MASKS[mask],
            "training": True,
            "use_causal_mask": is_causal,
        }
        found = []
        for returned in (False, True):
            layer = layers.Attention(dropout=dropout, seed=1, dtype=dtype)
            options["return_attention_scores"] = returned
            found.append(outputs_and_gradients(layer, **options))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=4 * 12 * unit)
            assert np.any(one)


@pytest.mark.parametrize("jit", [False, True])
def test_graphs_and_xla_drop_what_eager_drops(jit):
    layer, other = (
        layers.Attention(dropout=0.5, seed=1, dtype="float16") for _ in range(2)
    )
    wanted = outputs_and_gradients(layer, training=True)
    run = functools.partial(tf.function, jit_compile=jit)
    found = outputs_and_gradients(other, run, training=True)
    for one, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=4 * 2.0**-10)


# By name: the options of a layer, and whether the kernel computes it.
KERNEL = {
    "plain": ({}, True),
    "dropout": ({"dropout": 0.5}, True),
    "scale": ({"use_scale": True}, False),
    "concat": ({"score_mode": "concat"}, False),
}


@pytest.mark.parametrize("name", KERNEL)
def test_which_layers_make_no_tensor_of_the_scores(name):
    options, is_one_pass = KERNEL[name]
    layer = layers.Attention(dtype="float16", **options)

    @tf.function
    def attend(query, value):
        return layer([query, value], training=True)

    specs = [tf.TensorSpec([1, length, 6], "float16") for length in (33, 35)]
    graph = attend.get_concrete_function(*specs).graph
    shapes = [x.shape for op in graph.get_operations() for x in op.outputs]
    has_scores = any({33, 35} <= set(shape) for shape in shapes)
    assert has_scores != (is_one_pass and has_kernel("float16"))


class Doubled(layers.Attention):
    """Computes other scores by the method that Keras documents."""

    def _calculate_scores(self, query, key):
        return 2 * super()._calculate_scores(query, key)


def test_a_subclass_computes_its_own_scores():
    given = [np.float16(x) for x in (QUERY, VALUE, KEY)]
    doubled = Doubled(dtype="float16")(given)
    expected = layers.Attention(dtype="float16")([2 * given[0], *given[1:]])
    np.testing.assert_allclose(doubled, expected, rtol=0, atol=4 * 2.0**-10)
    assert np.any(np.abs(doubled - layers.Attention(dtype="float16")(given)) > 0.05)


@pytest.mark.parametrize("inputs", [QUERY, [QUERY], [QUERY] * 4], ids=["one", "1", "4"])
def test_inputs_that_keras_refuses_are_refused(inputs):
    for package in (keras.layers, layers):
        with pytest.raises(ValueError, match="list"):
            package.Attention(dtype="float16")(inputs)
