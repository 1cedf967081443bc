"""Softmax: many logits, and masks whatever stands behind them."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp import keras_internals, layers

UNIT = 2.0**-11


def run(x, upstream=None, mode="eager", policy="float16", axis=-1, mask=None):
    """The probabilities, and the gradient of the logits."""
    layer = layers.Softmax(axis=axis, dtype=policy)
    x = tf.constant(x, layer.compute_dtype)
    mask = None if mask is None else tf.constant(mask)

    def probabilities(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, mask=mask)
        slope = tf.zeros_like(y) if upstream is None else tf.cast(upstream, y.dtype)
        return y, tape.gradient(y, x, slope)

    if mode == "jit":
        probabilities = tf.function(probabilities, jit_compile=True)
    y, gradient = probabilities(x)
    assert y.dtype == gradient.dtype == layer.compute_dtype
    return y.numpy(), gradient.numpy()


MANY = {
    "last": ((2, 100_000), -1),
    "first": ((100_000, 2), 0),
    "several": ((2, 250, 400), (1, 2)),
    "not-neighbours": ((250, 2, 400), [0, -1]),
}


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "eager") for name in MANY), ("last", "jit")]
)
def test_100_000_equal_logits(name, mode):
    shape, axis = MANY[name]
    y, _ = run(np.full(shape, 3.0), axis=axis, mode=mode)
    np.testing.assert_array_equal(y, np.full(shape, np.float16(1e-5)))


# TensorFlow's own kernel: on a CPU with AVX512-FP16, oneDNN has another.
IN_FP16 = """
import keras, numpy as np, tensorflow as tf
layer = keras.layers.Softmax(dtype="float16")
print("zeros:", not np.any(layer(tf.zeros((1, 100_000), tf.float16))))
"""


@pytest.mark.xslow
def test_100_000_equal_logits_in_fp16():
    done = subprocess.run(
        [sys.executable, "-c", IN_FP16],
        env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "zeros: True" in done.stdout, done.stderr


def test_the_gradient_of_100_000_logits():
    # p * (upstream - p . upstream): 1e-5 * (1 - 0.5) and 1e-5 * (0 - 0.5).
    upstream = np.resize([1, 0], (1, 100_000))
    _, gradient = run(np.zeros((1, 100_000)), upstream)
    np.testing.assert_array_equal(gradient, np.float16((upstream - 0.5) * 1e-5))


def test_a_gradient_is_rounded_once():
    # Of probabilities 1 - 2**-12 and 2**-12, of which FP16 has no first; in float64
    # the slopes are p * q = +-2**-12 * (1 - 2**-12).
    logit = np.float16(np.log(2.0**12 - 1))
    p = 1 / (1 + np.exp(-np.float64(logit)))
    y, gradient = run([[logit, 0]], [[1, 0]])
    np.testing.assert_array_equal(y, np.float16([[p, 1 - p]]))
    slope = p * (1 - p)
    np.testing.assert_allclose(gradient, [[slope, -slope]], rtol=1.01 * UNIT)


def test_the_largest_logits():
    y, gradient = run([[65504, -65504, 65504]], [[1, 0, 0]])
    np.testing.assert_array_equal(y, [[0.5, 0, 0.5]])
    np.testing.assert_array_equal(gradient, [[0.25, 0, -0.25]])


# Masks.


@pytest.mark.parametrize(
    ("policy", "mode"), [("mixed_float16", "eager"), ("float16", "jit")]
)
def test_logits_below_those_that_are_masked_in_keras(policy, mode):
    # Keras puts -3e4 where the mask is False and, from 3.10 on, 0 into the result.
    logits, mask = [[-65504, 0, -65504]], [[True, False, True]]
    theirs = keras.layers.Softmax(dtype=policy)
    keras_result = theirs(tf.constant(logits, tf.float16), mask=tf.constant(mask))
    hidden = 0 if keras_internals.KERAS >= (3, 10) else 1
    np.testing.assert_array_equal(keras_result, [[0, hidden, 0]])
    y, gradient = run(logits, [[1, 1, 0]], mode, policy, mask=mask)
    np.testing.assert_array_equal(y, [[0.5, 0, 0.5]])
    np.testing.assert_array_equal(gradient, [[0.25, 0, -0.25]])


@pytest.mark.parametrize("hidden", [65504, np.inf, np.nan, -np.inf], ids=str)
@pytest.mark.parametrize("dtype", ["bool", "int32", "float16"])
def test_what_stands_behind_a_mask_does_not_count(dtype, hidden):
    mask = np.array([[1, 0, 1]], dtype)
    y, gradient = run([[1, hidden, 1]], [[1, 5, 0]], mask=mask)
    np.testing.assert_array_equal(y, [[0.5, 0, 0.5]])
    np.testing.assert_array_equal(gradient, [[0.25, 0, -0.25]])


ROWS = {
    "last": (-1, [[0, 0], [1, 1]], [[0, 0], [0.5, 0.5]]),
    "first": (0, [[0, 1], [0, 1]], [[0, 0.5], [0, 0.5]]),
    "several": ((0, 1), [[0, 0], [0, 0]], [[0, 0], [0, 0]]),
    "broadcast": (-1, [[0], [1]], [[0, 0], [0.5, 0.5]]),
    "broadcast-rank": (0, [0, 1], [[0, 0.5], [0, 0.5]]),
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "eager") for name in ROWS), ("last", "jit"), ("several", "jit")],
)
def test_rows_that_are_masked_as_a_whole_are_0(name, mode):
    axis, mask, expected = ROWS[name]
    mask = np.array(mask, bool)
    y, gradient = run(np.full((2, 2), 7), np.eye(2), mode, axis=axis, mask=mask)
    np.testing.assert_array_equal(y, expected)
    # p * (upstream - p . upstream), of which p . upstream is 0.5 at most.
    np.testing.assert_array_equal(gradient, expected * (np.eye(2) - 0.5))


def test_a_number_of_more_than_a_half_is_not_masked():
    mask = np.float32([[0.5, 0.75, 1]])
    y, _ = run([[1, 1, 1]], mask=mask)
    np.testing.assert_array_equal(y, [[0, 0.5, 0.5]])


@pytest.mark.parametrize(
    "policy", [pytest.param("float32", marks=needs("Keras", 3, 14)), "mixed_float16"]
)
@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (1, 2, 3), (4,)], ids=str)
def test_a_mask_that_does_not_broadcast_is_refused(shape, policy):
    layer = layers.Softmax(dtype=policy)
    x = tf.zeros((2, 3), layer.compute_dtype)
    if shape == (1, 3):
        assert layer(x, mask=tf.ones(shape)).shape == (2, 3)
        return
    with pytest.raises(ValueError, match=r"broadcast(able)? to"):
        layer(x, mask=tf.ones(shape))


def test_sizes_that_are_not_known_while_a_graph_is_made():
    layer = layers.Softmax(axis=(1, 2), dtype="float16")
    unknown = [tf.TensorSpec([None] * 3, dtype) for dtype in (tf.float16, tf.bool)]
    call = tf.function(lambda x, mask: layer(x, mask=mask), input_signature=unknown)
    for rows in (0, 2):
        y = call(tf.zeros((rows, 2, 2), tf.float16), tf.ones((1, 2, 2), tf.bool))
        np.testing.assert_array_equal(y, np.full((rows, 2, 2), 0.25))


@pytest.mark.parametrize("upstream", [np.inf, np.nan])
def test_an_overflow_at_a_masked_place_has_no_effect(upstream):
    x, mask = tf.zeros((1, 4), "float16"), tf.constant([[True, True, False, False]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layers.Softmax(dtype="float16")(x, mask=mask)
    gradient = tape.gradient(y, x, tf.constant([[1.0, 0, upstream, 0]], "float16"))
    # p (g - sum(p g)), with p = 1/2.
    np.testing.assert_array_equal(gradient, [[0.25, -0.25, 0.0, 0.0]])
