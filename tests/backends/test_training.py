"""`fit`, callbacks, export and files, as they are on the TensorFlow backend."""

import keras
import numpy as np
import pytest
from backends.problems import (
    assert_same_bits,
    assert_snapshot,
    column,
    fit,
    mean_output,
    one_weight,
    snapshot,
    value,
    variables_of,
)

import keras_mp
from keras_mp import DynamicLossScale

# With `None`, Keras chooses; JAX compiles the step then, PyTorch does not.
EAGERLY = [None, True]


@pytest.mark.parametrize("eagerly", EAGERLY)
@pytest.mark.parametrize(
    "policy", ["float16", "mixed_float16", "bfloat16", "mixed_bfloat16", "float32"]
)
def test_an_overflow_skips_a_step_of_fit(policy, eagerly):
    model = one_weight(policy, run_eagerly=eagerly)
    fit(model, column(1, 1, 1, np.inf, 2, 0), 2)
    optimizer = model.optimizer
    assert value(model.weights[0]).tolist() == [[0.5]]
    assert value(optimizer.master_weights[0]).tolist() == [[0.5]]
    assert value(optimizer.master_weights[0]).dtype == np.float32
    assert value(optimizer.iterations) == 2
    assert value(optimizer.loss_scale) == 4.0
    assert value(optimizer.skipped_steps) == 1
    assert value(optimizer.consecutive_skips) == 0
    assert optimizer.last_overflow == model.trainable_variables[0].path


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(0.01, global_clipnorm=1.0),
        lambda: keras.optimizers.SGD(0.1, 0.5, use_ema=True, ema_overwrite_frequency=2),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    ],
    ids=["adam", "average", "accumulation"],
)
def test_a_batch_that_overflows_leaves_all_else_alone(optimizer):
    model = one_weight(optimizer=optimizer())
    fit(model, column(1, 2, 3), 1)
    everything = variables_of(model.trainable_variables, model.optimizer)
    # At its end, `fit` itself overwrites the weights with their average.
    if model.optimizer.inner_optimizer.use_ema:
        everything = model.optimizer.inner_optimizer.variables
    before = snapshot(*everything)
    fit(model, column(np.nan, np.inf), 1)
    assert_snapshot(before, *everything)
    assert value(model.optimizer.skipped_steps) == 2


def test_two_hundred_overflows_leave_a_scale_that_recovers():
    rule = DynamicLossScale(8.0, min_scale=2.0**-3, growth_interval=1)
    model = one_weight(loss_scale=rule)
    fit(model, column(*[np.nan] * 200), 1)
    assert value(model.optimizer.loss_scale) == 2.0**-3
    assert value(model.optimizer.skips_at_minimum) == 194
    assert value(model.weights[0]).tolist() == [[1.0]]
    fit(model, column(1, 1), 1)
    assert value(model.optimizer.loss_scale) == 2.0**-1
    assert value(model.weights[0]).tolist() == [[0.5]]


def test_a_wrapped_optimizer_is_not_wrapped_again():
    model = one_weight("mixed_float16", loss_scale=128)
    assert type(model.optimizer) is keras_mp.FP32MasterOptimizer
    fit(model, column(1), 1)
    assert value(model.optimizer.loss_scale) == 128.0


def test_a_regularizer_is_evaluated_in_float32():
    layer = keras.layers.Dense(
        1,
        use_bias=False,
        kernel_initializer=keras.initializers.Constant(2.0**-13),
        kernel_regularizer=keras.regularizers.L2(1.0),
        dtype="float16",
    )
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(keras_mp.wrap(keras.optimizers.SGD(0.25), 1), mean_output)
    model.optimizer.build(model.trainable_variables)
    loss = fit(model, column(0, 0), 2)["loss"]
    # The square of 2**-13 is 0 in float16; the step subtracts a quarter of twice it.
    assert loss == [2.0**-26]
    assert value(layer.kernel).tolist() == [[2.0**-14]]


def test_masters_follow_weights_that_were_set():
    model = one_weight()
    fit(model, column(1, 1), 2)
    model.set_weights([np.array([[3.0]])])
    fit(model, column(1, 1), 2)
    assert value(model.weights[0]).tolist() == [[2.75]]


# Callbacks.


def test_the_callback_logs_and_chooses_the_rule():
    model = one_weight(loss_scale=4)
    fit(model, column(1, 1), 2)
    rule = DynamicLossScale(64.0, backoff_factor=0.25)
    # Compiled before with another rule: the step has to be compiled again.
    history = fit(
        model, column(1, 1, 1, np.nan), 2, keras_mp.LossScaleCallback(rule), epochs=2
    )
    assert history["loss_scale"] == [16.0, 4.0]
    assert history["skipped_steps"] == [1, 2]
    assert history["consecutive_skips"] == [1, 1]
    assert value(model.weights[0]).tolist() == [[0.25]]


def test_the_callback_raises_in_an_epoch_when_the_scale_has_collapsed():
    model = one_weight(loss_scale=DynamicLossScale(2.0, min_scale=1.0))
    callback = keras_mp.LossScaleCallback(patience=4)
    with pytest.raises(keras_mp.LossScaleCollapseError) as caught:
        fit(model, column(*[np.nan] * 100), 1, callback)
    # Of the first 4 steps, 3 began at the minimum; it is looked for every 4.
    assert "The last 7 steps all overflowed" in str(caught.value)
    assert model.trainable_variables[0].path in str(caught.value)
    assert value(model.weights[0]).tolist() == [[1.0]]


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_averaged_weights_are_swapped_in_and_out(policy):
    average = keras.optimizers.SGD(0.25, use_ema=True, ema_momentum=0.5)
    model = one_weight(policy, optimizer=average)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            seen.append(value(self.model.weights[0]).item())

    # 1 -> 0.75 -> 0.5; the average starts as 0.75, then it is (0.75 + 0.5) / 2.
    model.fit(
        column(1, 1),
        column(0, 0),
        batch_size=1,
        verbose=0,
        validation_data=(column(1), column(0)),
        callbacks=[keras_mp.SwapEMAWeights(), Look()],
    )
    assert seen == [0.625]
    weight = model.weights[0]
    assert value(weight).tolist() == [[0.625]]
    # `fit` leaves the average in the weights, and goes on from there.
    fit(model, column(1), 1)
    assert value(weight).tolist() == [[0.5]]
    assert value(model.optimizer.master_weights[0]).tolist() == [[0.5]]


# Export and files.


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float64", 1 - 2.0**-14),
        ("float32", 1 - 2.0**-14),
        ("float16", 1.0),
        ("bfloat16", 1.0),
    ],
)
def test_export(dtype, expected):
    model = one_weight()
    fit(model, column(2.0**-12), 1)
    (exported,) = keras_mp.export_weights(model, dtype)
    assert exported.dtype.name == dtype
    assert exported.tolist() == [[expected]]


RULES = {
    "dynamic": lambda: DynamicLossScale(64.0, growth_interval=3),
    "statistical": lambda: keras_mp.StatisticalLossScale(64.0, window=3),
}


def perceptron(rounding="nearest", rule="dynamic"):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(8, "tanh", dtype="float16"),
        keras.layers.Dense(1, dtype="float16"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    inner = keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3)
    model.compile(keras_mp.wrap(inner, RULES[rule](), rounding, seed=3), "mse")
    return model


def train(model, *callbacks, epochs, initial_epoch=0):
    x = np.random.default_rng(0).uniform(-1, 1, (16, 4)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    x[5] = np.nan
    model.fit(
        x,
        y,
        batch_size=4,
        epochs=epochs,
        initial_epoch=initial_epoch,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return model


def all_of(model):
    return [*model.trainable_variables, *model.optimizer.variables]


@pytest.mark.parametrize(
    ("rounding", "rule"),
    [("nearest", "dynamic"), ("stochastic", "dynamic"), ("nearest", "statistical")],
)
@pytest.mark.parametrize("name", ["whole.keras", "state.weights.h5"])
def test_training_resumes_to_the_bit(name, rounding, rule, tmp_path):
    path = tmp_path / name

    def begin():
        return train(perceptron(rounding, rule), epochs=2)

    straight = train(begin(), epochs=4, initial_epoch=2)
    first = begin()
    if path.suffix == ".keras":
        first.save(path)
        second = keras.models.load_model(path)
    else:
        first.save_weights(path)
        second = perceptron(rounding, rule)
        second.optimizer.build(second.trainable_variables)
        second.load_weights(path)
    assert second.optimizer.get_config() == first.optimizer.get_config()
    assert_snapshot(snapshot(*all_of(first)), *all_of(second))
    train(second, epochs=4, initial_epoch=2)
    for expected, found in zip(all_of(straight), all_of(second), strict=True):
        assert_same_bits(value(found), value(expected), expected.path)
    assert value(second.optimizer.skipped_steps) == 4


class Crash(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def test_backup_and_restore_resumes_to_the_bit(tmp_path):
    straight = train(perceptron(), epochs=3)

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(KeyboardInterrupt):
        train(perceptron(), backup(), Crash(), epochs=3)
    second = train(perceptron(), backup(), epochs=3)
    for expected, found in zip(all_of(straight), all_of(second), strict=True):
        assert_same_bits(value(found), value(expected), expected.path)
