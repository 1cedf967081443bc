"""A program as a user of keras_mp writes it, which type checkers are to accept.

`make lint` checks it with mypy. docs/developing.md says how pyright checks it.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_mp


def make_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras_mp.layers.Dense(8, "relu"),
            keras_mp.layers.LayerNormalization(),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def fit(x: np.ndarray, y: np.ndarray) -> float:
    keras.config.set_dtype_policy("float16")
    model = make_model()
    optimizer = keras_mp.wrap(keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="mse")
    callbacks = [
        keras_mp.LossScaleCallback(),
        keras_mp.NumericsCallback(every=10),
        keras_mp.SwapEMAWeights(),
    ]
    model.fit(x, y, batch_size=4, callbacks=callbacks)
    skipped: int = int(optimizer.skipped_steps)
    scale: float = float(optimizer.loss_scale)
    print(skipped, scale, optimizer.iterations, optimizer.inner_optimizer)
    return scale


def loop(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> None:
    rule = keras_mp.DynamicLossScale(growth_interval=100, hysteresis=2)
    optimizer = keras_mp.wrap("adam", loss_scale=rule, rounding="stochastic")
    optimizer.build(model.trainable_variables)
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(x) - y)))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(optimizer.unscale_gradients(gradients), model.trainable_variables)
    for master in optimizer.master_weights:
        print(master.path)


class Halving(keras_mp.LossScale):
    def next_scale(self, state: keras_mp.LossScaleState, finite: Any) -> Any:
        return keras.ops.where(finite, state.scale, state.scale / 2)


def diagnose(model: keras.Model, x: np.ndarray, y: np.ndarray) -> str:
    report: keras_mp.Numerics = keras_mp.inspect(model, x, y, loss_scale=128)
    report.plot("report.png", scale=report.suggested_scale())
    overflow = keras_mp.find_overflow(model, x, y)
    if overflow is not None:
        return str(overflow)
    constant: keras_mp.ConstantLossScale = keras_mp.suggest_loss_scale(model, [(x, y)])
    print(
        constant.initial_scale,
        report.needs_scaling().reason,
        report.entries[0].lost_share,
    )
    return f"{keras_mp.__version__} {keras_mp.ops.build_info()['route']}"


def convert_and_export(model: keras.Model) -> None:
    converted = keras_mp.convert(model)
    print(keras_mp.conversion_report(converted))
    weights = keras_mp.export_weights(converted, "float32")
    print(len(weights))
    keras_mp.to_keras(converted).save("plain.keras")
    keras_mp.regularize_in_fp32(converted)
    checkpoints = keras_mp.Checkpoints("checkpoints")
    print(checkpoints, keras_mp.FP32Regularizer("l2"), keras_mp.StatisticalLossScale())
