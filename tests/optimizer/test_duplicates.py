"""A variable that is listed twice in one step is updated twice, as by Keras alone."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.5),
    "nesterov": lambda: optimizers.SGD(0.5, momentum=0.5, nesterov=True),
    "adam": lambda: optimizers.Adam(0.5),
    "adamw_norm": lambda: optimizers.AdamW(0.5, global_clipnorm=1.0),
    "clipnorm": lambda: optimizers.SGD(0.5, clipnorm=1.0),
    "accumulation": lambda: optimizers.SGD(0.5, gradient_accumulation_steps=2),
    "ema": lambda: optimizers.SGD(0.5, use_ema=True, ema_overwrite_frequency=2),
    "lion": lambda: optimizers.Lion(0.5),
}
STEPS = [(1.0, 2.0, 4.0), (-8.0, 0.5, 2.0), (0.25, 1.0, -1.0)]


def trained(wrap, dtype, mode, by_build):
    """The FP32 values of two variables after steps in which the first is listed twice.

    The gradients, the scale and the first values are powers of two, exact in FP16.
    """
    first, second = (keras.Variable([1.0, 2.0], dtype=dtype) for _ in range(2))
    optimizer = wrap()
    if by_build:
        optimizer.build([first, second])
    scale = 8.0 if isinstance(optimizer, keras_mp.FP32MasterOptimizer) else 1.0
    step = oracle.make_step(optimizer, [first, second, first], mode)
    for numbers in STEPS:
        if scale != 1.0:
            optimizer.scale_loss(0.0)
        step([tf.constant([scale * x, -x * scale], dtype) for x in numbers])
    if dtype == "float16":
        for weight, master in zip(
            optimizer._trainable_variables, optimizer.master_weights, strict=True
        ):
            np.testing.assert_array_equal(weight, master.numpy().astype("float16"))
        return [
            optimizer.master_weights[optimizer._get_variable_index(v)].numpy()
            for v in (first, second)
        ]
    return [first.numpy(), second.numpy()]


RUNS = [(name, "eager", True) for name in OPTIMIZERS]
RUNS += [("adam", "graph", True), ("adam", "xla", True), ("adam", "eager", False)]


@pytest.mark.slow_except("sgd-*")
@pytest.mark.parametrize(("name", "mode", "by_build"), RUNS)
def test_as_by_keras_alone(name, mode, by_build):
    bare = trained(OPTIMIZERS[name], "float32", mode, by_build)
    for dtype in ("float32", "float16"):
        found = trained(
            lambda: keras_mp.wrap(OPTIMIZERS[name](), 8), dtype, mode, by_build
        )
        np.testing.assert_array_equal(found, bare)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_rows_in_each_gradient(dtype):
    table = keras.Variable(np.ones((4, 1)), dtype=dtype)
    optimizer = keras_mp.wrap(optimizers.SGD(0.5), 8)
    optimizer.build([table])
    optimizer.scale_loss(0.0)
    gradients = [
        tf.IndexedSlices(tf.constant([[8.0]], dtype), tf.constant([row]), (4, 1))
        for row in (1, 3)
    ]
    optimizer.apply(gradients, [table, table])
    assert table.numpy().tolist() == [[1.0], [0.5], [1.0], [0.5]]


@pytest.mark.parametrize("clipnorm", [None, 1.0], ids=["each", "joint"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_replicas(strategy, dtype, clipnorm):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype=dtype)
        optimizer = keras_mp.wrap(optimizers.SGD(0.5, clipnorm=clipnorm), 8)
        optimizer.build([weight])

    def step():
        optimizer.scale_loss(0.0)
        # On each of n replicas 1/n and 1/2n, so that the sums are 1 and 1/2.
        share = tf.constant([8.0 / strategy.num_replicas_in_sync], dtype)
        optimizer.apply([share, share / 2], [weight, weight])

    strategy.run(step)
    assert weight.numpy().tolist() == [0.25]
