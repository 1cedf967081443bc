"""Gradients of gradients: for a penalty on the length of a gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mp import layers

pytestmark = pytest.mark.slow

IMAGES, ROWS = (4, 4, 6, 8), (4, 8)
CASES = {
    "batch-training": ("BatchNormalization", {}, IMAGES, {"training": True}),
    "batch-inference": ("BatchNormalization", {}, IMAGES, {"training": False}),
    "layer": ("LayerNormalization", {}, ROWS, {}),
    "rms": ("RMSNormalization", {}, ROWS, {}),
    "group": ("GroupNormalization", {"groups": 2}, IMAGES, {}),
    "unit": ("UnitNormalization", {}, ROWS, {}),
    "softmax": ("Softmax", {}, ROWS, {}),
    "average": ("AveragePooling2D", {"pool_size": 2}, IMAGES, {}),
    "global-average": ("GlobalAveragePooling2D", {}, IMAGES, {}),
    "conv": ("Conv2D", {"filters": 3, "kernel_size": 2}, IMAGES, {}),
}


def penalty_gradient(layer, x, options):
    """The gradient of sum(g**2), where g is that of a weighted sum of squares."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.cast(layer(x, **options), "float32")
            weights = tf.cast(tf.range(tf.size(y)) % 7, "float32")
            z = tf.reduce_sum(y * y * tf.reshape(weights, tf.shape(y)))
        g = tf.cast(inner.gradient(z, x), "float32")
        penalty = tf.reduce_sum(g * g)
    return outer.gradient(penalty, x)


# Eager code calls the same functions: two cases stand for the others.
RUNS = {
    f"{name}-{mode}": (*case, mode)
    for mode, names in {"graph": CASES, "eager": ("softmax", "batch-training")}.items()
    for name, case in CASES.items()
    if name in names
}


@pytest.mark.parametrize(
    ("name", "arguments", "shape", "options", "mode"), RUNS.values(), ids=RUNS
)
def test_it_is_that_of_float32(name, arguments, shape, options, mode):
    x = np.random.default_rng(0).normal(size=shape).astype("float16")
    found = []
    for package, policy in ((keras.layers, "float32"), (layers, "mixed_float16")):
        keras.utils.set_random_seed(0)
        layer = getattr(package, name)(dtype=policy, **arguments)
        of = tf.function(penalty_gradient) if mode == "graph" else penalty_gradient
        found.append(of(layer, tf.constant(x, layer.compute_dtype), options))
    expected, actual = found
    assert actual.dtype == tf.float16
    # Rounded to 16 bits are the kernel, y, g, the slopes of both and the result, each
    # relative to terms that are not larger than the largest result.
    tolerance = 8 * 2.0**-11 * np.max(np.abs(expected))
    np.testing.assert_allclose(np.float32(actual), expected, rtol=0, atol=tolerance)
