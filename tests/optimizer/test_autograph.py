"""AutoGraph, which rewrites what a `tf.function` calls, can read all of it.

What it cannot read it runs as it is, after a warning that asks for a report to the
TensorFlow team: once in a process, so that each loop runs in a new one.
"""

import subprocess
import sys

import pytest

LOOP = """
import logging

import keras
import tensorflow as tf

import keras_mp

logging.getLogger("tensorflow").addHandler(logging.FileHandler({log!r}))

x = tf.ones((4, 3))
policy = {policy!r}
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype=policy)])
keras_mp.convert(model)
optimizer = keras_mp.wrap({inner}, {rule}, {rounding!r})
optimizer.build(model.trainable_variables)
optimizer.keep_gradient_norm()


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        probabilities = keras_mp.ops.softmax(outputs)
        loss = keras_mp.ops.mean(probabilities * keras_mp.ops.log_softmax(outputs))
        product = keras_mp.ops.fp16_gemm(outputs, outputs, transpose_b=True)
        loss += keras_mp.ops.sum(product) + keras_mp.ops.logsumexp(outputs)
        scaled = optimizer.scale_loss(tf.cast(loss, tf.float32))
    gradients = tape.gradient(scaled, model.trainable_variables)
    if optimizer.loss_scale > 2.0:
        optimizer.apply(gradients, model.trainable_variables)
    gradients = optimizer.unscale_gradients(gradients, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    optimizer.finalize_variable_values(model.trainable_variables)
    keras_mp.ops.moments(outputs, axes=0)
    keras_mp.ops.cumsum(outputs)
    keras_mp.ops.segment_sum(outputs, [0, 0, 1, 1], 2)
    keras_mp.ops.exponent_histogram(outputs)
    keras_mp.ops.build_info()
    finite = optimizer.check_finite(gradients)
    return finite, optimizer.gradient_norm, optimizer.skipped_steps + 0


step(x)
"""
LOOPS = {
    "kernel": {
        "policy": "float16",
        "inner": "keras.optimizers.Adam(global_clipnorm=1.0, use_ema=True)",
        "rule": "'dynamic'",
        "rounding": "nearest",
    },
    "inner": {
        "policy": "bfloat16",
        "inner": "keras.optimizers.Lamb()",
        "rule": "keras_mp.StatisticalLossScale()",
        "rounding": "stochastic",
    },
}


@pytest.mark.xslow
@pytest.mark.parametrize("options", LOOPS.values(), ids=LOOPS)
def test_a_loop_that_calls_everything(options, tmp_path):
    # AutoGraph reads the loop, too, and needs a file of it.
    log, loop = tmp_path / "log", tmp_path / "loop.py"
    loop.write_text(LOOP.format(log=str(log), **options))
    subprocess.run([sys.executable, loop], check=True)
    assert log.read_text() == ""
