"""Batch normalization: the kernels compared with the formula, and their dispatch."""

import numpy as np
import pytest
import tensorflow as tf

from keras_mp.ops import batch_normalization
from keras_mp.ops.kernels import dispatch

SHAPES = {
    "images": ((4, 5, 6, 3), 3),
    "channels-first": ((4, 3, 6, 7), 1),
    "rows": ((9, 3), 1),
    "sequences": ((4, 5, 3), 2),
    "sequences-channels-first": ((4, 3, 5), 1),
    "volumes": ((2, 3, 4, 5, 6), 4),
    "first-axis": ((3, 4, 5), 0),
}


def normalize(x, gamma, beta, upstream, axis):
    with tf.GradientTape() as tape:
        tape.watch([x, gamma, beta])
        y, mean, variance = batch_normalization.normalize_batch(
            x, gamma, beta, axis, 1e-3
        )
    return y, mean, variance, *tape.gradient(y, [x, gamma, beta], upstream)


def apply(x, gamma, beta, upstream, axis):
    mean, variance = (tf.fill(gamma.shape, number) for number in (2.0, 3.0))
    with tf.GradientTape() as tape:
        tape.watch([x, gamma, beta])
        y = batch_normalization.apply_statistics(
            x, gamma, beta, mean, variance, axis, 1e-3
        )
    return y, *tape.gradient(y, [x, gamma, beta], upstream)


@pytest.mark.parametrize("function", [normalize, apply])
@pytest.mark.parametrize(("shape", "axis"), SHAPES.values(), ids=SHAPES)
def test_the_kernels_are_the_formula(ops_mode, function, shape, axis, monkeypatch):
    ops_mode("native")
    rng = np.random.default_rng(0)
    x, upstream = (tf.constant(rng.normal(1, 2, shape), tf.float16) for _ in range(2))
    gamma, beta = (
        tf.constant(rng.uniform(0.5, 1.5, shape[axis]), tf.float32) for _ in range(2)
    )
    arguments = x, gamma, beta, upstream, axis
    by_kernel = function(*arguments), tf.function(function)(*arguments)
    monkeypatch.setattr(batch_normalization, "find_kernel", lambda *_: None)
    expected = function(*arguments)
    for found in by_kernel:
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.dtype == wanted.dtype
            assert actual.shape == wanted.shape
            # One rounding each, of FP32 sums of at most 144 numbers; values are below 8
            # and the sums of slopes below 512.
            unit = 2.0**-11 if actual.dtype == tf.float16 else 144 * 2.0**-24
            size = max(1.0, np.max(np.abs(wanted)))
            np.testing.assert_allclose(
                np.float64(actual), np.float64(wanted), rtol=0, atol=2 * unit * size
            )


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_constant_channel_is_beta(jit):
    # The variance of TensorFlow's FusedBatchNormV3 is a difference in XLA: -20 here.
    x = tf.fill([64, 7, 7, 2], tf.constant(1000.0, tf.float16))
    one = tf.ones([2])
    run = tf.function(normalize, jit_compile=jit)
    y, mean, variance, *gradients = run(x, one, 3.0 * one, x, 3)
    np.testing.assert_array_equal(y, np.full(x.shape, 3.0))
    np.testing.assert_array_equal(mean, [1000.0, 1000.0])
    np.testing.assert_array_equal(variance, [0.0, 0.0])
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_a_cpu_takes_the_kernel_and_an_accelerator_the_formula(ops_mode, monkeypatch):
    ops_mode("native")
    assert batch_normalization.find_kernel("NHWC", 1e-3) is not None
    monkeypatch.setattr(dispatch, "has_accelerator", lambda: True)
    assert batch_normalization.find_kernel("NHWC", 1e-3) is None


def test_without_the_library_a_cpu_takes_the_formula(ops_mode):
    ops_mode("reference")
    assert batch_normalization.find_kernel("NHWC", 1e-3) is None
