"""Layers in `tf.vectorized_map`, `tape.jacobian` and `tape.batch_jacobian`."""

import numpy as np
import pytest
import tensorflow as tf

from keras_mp import layers

IMAGES, ROWS = (4, 4, 2), (6,)
CASES = {
    "batch-training": ("BatchNormalization", {}, IMAGES, {"training": True}),
    "batch-inference": ("BatchNormalization", {}, IMAGES, {"training": False}),
    "layer": ("LayerNormalization", {}, ROWS, {}),
    "rms": ("RMSNormalization", {}, ROWS, {}),
    "unit": ("UnitNormalization", {}, ROWS, {}),
    "softmax": ("Softmax", {}, ROWS, {}),
    "average": ("AveragePooling2D", {"pool_size": 2}, IMAGES, {}),
    "global-average": ("GlobalAveragePooling2D", {}, IMAGES, {}),
    "dense": ("Dense", {"units": 3}, ROWS, {}),
}
EACH = pytest.mark.parametrize(
    ("name", "arguments", "shape", "options"), CASES.values(), ids=CASES
)


def draw(*shape):
    return tf.constant(np.random.default_rng(0).normal(size=shape), tf.float16)


@EACH
def test_a_vectorized_map_is_that_of_each_element(name, arguments, shape, options):
    layer = getattr(layers, name)(dtype="mixed_float16", **arguments)
    # Each element of the map is a batch.
    batches = draw(3, 2, *shape)
    layer.build((2, *shape))
    mapped = tf.vectorized_map(lambda x: layer(x, **options), batches)
    expected = tf.stack([layer(x, **options) for x in batches])
    assert mapped.dtype == tf.float16
    np.testing.assert_array_equal(mapped, expected)


@pytest.mark.slow_except("*-graph")
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@EACH
def test_a_jacobian_is_that_of_a_loop(name, arguments, shape, options, jit):
    layer = getattr(layers, name)(dtype="mixed_float16", **arguments)
    x = draw(2, *shape)
    layer.build(x.shape)

    @tf.function(jit_compile=jit)
    def jacobian(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reshape(layer(x, **options), [-1])[:4]
        return tape.jacobian(y, x)

    def slope(k):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reshape(layer(x, **options), [-1])[k]
        return tape.gradient(y, x)

    found = jacobian(x)
    expected = tf.stack([slope(k) for k in range(4)])
    assert found.dtype == tf.float16
    assert found.shape == expected.shape
    # The same sums in FP32, in another order in XLA: one rounding apart, of slopes that
    # are at most the largest.
    tolerance = 2.0**-10 * max(1.0, float(np.max(np.abs(expected))))
    np.testing.assert_allclose(
        np.float32(found), np.float32(expected), rtol=0, atol=tolerance
    )
