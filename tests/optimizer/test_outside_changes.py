"""Weights that someone else writes between steps: files, callbacks, users."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp

# One step subtracts this; half of the distance of FP16 numbers just below 1.
UPDATE = 2.0**-12
MODES = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
ROUNDINGS = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


class SumOfOutputs(keras.losses.Loss):
    """Its gradient is 1 for every output."""

    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, y_true, y_pred):
        return keras.ops.cast(y_pred, "float32")


def make_model(dtype="float16", initial=1.0):
    """Two weights; for an input of ones the gradient of each is 1 under the sum."""
    dense = keras.layers.Dense(
        2,
        use_bias=False,
        dtype=dtype,
        kernel_initializer=keras.initializers.Constant(initial),
    )
    return keras.Sequential([keras.Input((1,)), dense])


def kernel(model):
    return oracle.value(model.layers[0].kernel)[0].tolist()


def fit(model, epochs=1, callbacks=()):
    return model.fit(
        np.ones((1, 1)),
        np.zeros((1, 2)),
        epochs=epochs,
        callbacks=list(callbacks),
        verbose=0,
    )


def assign(model, tmp_path):
    model.layers[0].kernel.assign([[2.0, 3.0]])


def assign_to_the_tensorflow_variable(model, tmp_path):
    model.layers[0].kernel.value.assign([[2.0, 3.0]])


def set_weights(model, tmp_path):
    model.set_weights([np.array([[2.0, 3.0]])])


def load_weights(model, tmp_path):
    other = make_model()
    other.set_weights([np.array([[2.0, 3.0]])])
    other.save_weights(tmp_path / "other.weights.h5")
    model.load_weights(tmp_path / "other.weights.h5")


def load_float32_weights(model, tmp_path):
    other = make_model("float32")
    other.set_weights([np.array([[2.0, 3.0]])])
    other.save_weights(tmp_path / "other.weights.h5")
    model.load_weights(tmp_path / "other.weights.h5")


def load_checkpoint(model, tmp_path):
    other = make_model()
    other.set_weights([np.array([[2.0, 3.0]])])
    path = tf.train.Checkpoint(kernel=other.layers[0].kernel.value).write(
        str(tmp_path / "checkpoint")
    )
    checkpoint = tf.train.Checkpoint(kernel=model.layers[0].kernel.value)
    checkpoint.read(path).assert_consumed()


WAYS = [
    assign,
    assign_to_the_tensorflow_variable,
    set_weights,
    load_weights,
    load_float32_weights,
    load_checkpoint,
]


def optimizer_and_step(model, rounding, mode):
    optimizer = keras_mp.wrap(
        optimizers.SGD(UPDATE), loss_scale=1, rounding=rounding, seed=1
    )
    apply = oracle.make_step(optimizer, model.trainable_variables, mode)
    return optimizer, lambda: apply([tf.ones((1, 2), "float16")])


def masters(optimizer):
    return oracle.value(optimizer.master_weights[0])[0].tolist()


@MODES
@ROUNDINGS
def test_a_change_is_picked_up_however_it_is_made(rounding, mode, tmp_path):
    model = make_model()
    optimizer, step = optimizer_and_step(model, rounding, mode)
    for change in WAYS:
        model.layers[0].kernel.assign([[1.0, 1.0]])
        step()
        assert masters(optimizer) == [1 - UPDATE] * 2, change
        change(model, tmp_path)
        step()
        assert masters(optimizer) == [2 - UPDATE, 3 - UPDATE], change
        assert kernel(model) != [1.0, 1.0]


@MODES
@ROUNDINGS
def test_a_change_of_one_element_leaves_the_others(rounding, mode):
    model = make_model()
    optimizer, step = optimizer_and_step(model, rounding, mode)
    step()
    step()
    # One step below 1 is no FP16 number: without its master it would be forgotten.
    step()
    assert masters(optimizer) == [1 - 3 * UPDATE] * 2
    value = oracle.value(model.layers[0].kernel)
    value[0, 1] = 4.0
    model.layers[0].kernel.assign(value)
    step()
    assert masters(optimizer) == [1 - 4 * UPDATE, 4 - UPDATE]


@MODES
@ROUNDINGS
def test_writing_back_the_same_weights_is_no_change(rounding, mode):
    model = make_model()
    optimizer, step = optimizer_and_step(model, rounding, mode)
    for i in range(1, 6):
        step()
        model.set_weights(model.get_weights())
        assert masters(optimizer) == [1 - i * UPDATE] * 2


@ROUNDINGS
def test_a_change_before_a_skipped_step_is_kept(rounding):
    model = make_model()
    optimizer, step = optimizer_and_step(model, rounding, "eager")
    step()
    model.set_weights([np.array([[2.0, 3.0]])])
    optimizer.apply([tf.constant([[np.inf, 1.0]], "float16")])
    assert kernel(model) == [2.0, 3.0]
    step()
    assert masters(optimizer) == [2 - UPDATE, 3 - UPDATE]


def test_a_change_leaves_the_slots():
    weights = oracle.make_weights("float16")
    optimizer = keras_mp.wrap(optimizers.Adam(0.1), loss_scale=1)
    reference = oracle.Fp32Reference(optimizers.Adam(0.1), weights)
    optimizer.build(weights)
    for i in range(4):
        gradients = oracle.make_gradients(weights, seed=i)
        optimizer.apply([tf.constant(g, "float16") for g in gradients])
        reference.apply([tf.constant(g) for g in gradients])
        reference.assert_equal(optimizer)
        if i == 1:
            new = np.full((2, 3), 0.25)
            weights[0].assign(new)
            reference.weights[0].assign(new)


def test_masters_follow_weights_in_a_file_with_masters(tmp_path):
    """A file of a compiled model has both; they are loaded in one piece."""
    trained = make_model()
    trained.compile(keras_mp.wrap(optimizers.SGD(UPDATE), 1), SumOfOutputs())
    fit(trained, epochs=3)
    trained.save_weights(tmp_path / "trained.weights.h5")
    model = make_model(initial=7.0)
    model.compile(keras_mp.wrap(optimizers.SGD(UPDATE), 1), SumOfOutputs())
    model.optimizer.build(model.trainable_variables)
    model.load_weights(tmp_path / "trained.weights.h5")
    fit(model)
    assert masters(model.optimizer) in (
        [1 - 4 * UPDATE] * 2,  # with the masters
        [float(np.float16(1 - 3 * UPDATE)) - UPDATE] * 2,  # without
    )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_export_sees_a_change_before_the_next_step(jit_compile):
    model = make_model()
    model.compile(
        keras_mp.wrap(optimizers.SGD(UPDATE), loss_scale=1),
        SumOfOutputs(),
        jit_compile=jit_compile,
    )
    fit(model)
    (exported,) = keras_mp.export_weights(model)
    assert exported.tolist() == [[1 - UPDATE] * 2]
    model.set_weights([np.array([[2.0, 1.0]])])
    (exported,) = keras_mp.export_weights(model)
    assert exported.tolist() == [[2.0, 1 - UPDATE]]
    assert exported.dtype == np.float32


# Callbacks of Keras.


class SetWeights(keras.callbacks.Callback):
    """Writes to the weights at the end of one epoch."""

    def __init__(self, epoch, value):
        super().__init__()
        self.epoch, self.value = epoch, value

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            self.model.set_weights([np.array([self.value])])


@pytest.fixture(params=["float16", "mixed_float16"])
def compiled(request):
    """Compiles a model of weights 0, trained by subtracting the learning rate."""

    def compile_model(learning_rate=1.0, **options):
        model = make_model(request.param, initial=0.0)
        inner = optimizers.SGD(learning_rate, **options)
        model.compile(
            keras_mp.wrap(inner, loss_scale=8), SumOfOutputs(), jit_compile=False
        )
        return model

    return compile_model


def test_weights_set_in_the_last_epoch_end_stay(compiled):
    model = compiled()
    fit(model, epochs=2, callbacks=[SetWeights(1, [5.0, 6.0])])
    assert kernel(model) == [5.0, 6.0]
    fit(model)
    assert kernel(model) == [4.0, 5.0]


def test_weights_set_in_an_earlier_epoch_end_are_trained_on(compiled):
    model = compiled()
    fit(model, epochs=2, callbacks=[SetWeights(0, [5.0, 6.0])])
    assert kernel(model) == [4.0, 5.0]


def test_early_stopping_restores_the_best_weights(compiled):
    model = compiled()
    callback = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=2, restore_best_weights=True
    )
    history = fit(model, epochs=9, callbacks=[callback])
    # The loss falls by 2 an epoch, which is worse with mode="max".
    assert history.history["loss"] == [0.0, -2.0, -4.0]
    assert kernel(model) == [-1.0, -1.0]
    fit(model)
    assert kernel(model) == [-2.0, -2.0]


def test_learning_rate_scheduler(compiled):
    model = compiled()
    callback = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5**epoch)
    history = fit(model, epochs=3, callbacks=[callback])
    assert history.history["learning_rate"] == [1.0, 0.5, 0.25]
    assert kernel(model) == [-1.75, -1.75]


def test_reduce_lr_on_plateau(compiled):
    model = compiled()
    callback = keras.callbacks.ReduceLROnPlateau(
        "loss", mode="max", factor=0.5, patience=1, min_lr=0.25
    )
    history = fit(model, epochs=5, callbacks=[callback])
    assert history.history["learning_rate"] == [1.0, 1.0, 0.5, 0.25, 0.25]
    assert kernel(model) == [-3.0, -3.0]
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.25


def test_what_tensorboard_reads(compiled):
    model = compiled()
    fit(model, epochs=2)
    assert isinstance(model.optimizer, optimizers.Optimizer)
    assert float(model.optimizer.inner_optimizer.learning_rate) == 1.0
    assert int(model.optimizer.iterations) == 2


@pytest.mark.xslow_except("float16")
def test_model_checkpoint_and_load(compiled, tmp_path):
    model = compiled()
    path = tmp_path / "{epoch}.weights.h5"
    callback = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    fit(model, epochs=3, callbacks=[callback])
    assert kernel(model) == [-3.0, -3.0]
    model.load_weights(tmp_path / "1.weights.h5")
    assert kernel(model) == [-1.0, -1.0]
    fit(model)
    assert kernel(model) == [-2.0, -2.0]


# Moving averages. With a momentum of 0.5 and steps of 1 from weights of 0, they are
# -1 (the first weight itself), -1.5 and -2.25 after 1, 2 and 3 steps.

EMA = {"use_ema": True, "ema_momentum": 0.5}


class Observer(keras.callbacks.Callback):
    """Notes the weights in every evaluation and at the end of every epoch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(("test", kernel(self.model)))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("epoch", kernel(self.model)))


@pytest.mark.xslow_except("mixed_float16")
def test_averages_become_the_weights_after_fit(compiled):
    model = compiled(**EMA)
    fit(model, epochs=3)
    assert kernel(model) == [-2.25, -2.25]
    fit(model)
    # The last step was from -2.25 to -3.25; the average, between the two.
    assert kernel(model) == [-2.75, -2.75]


def evaluate(model, callbacks):
    x, y = np.ones((1, 1)), np.zeros((1, 2))
    model.evaluate(x, y, callbacks=list(callbacks), verbose=0)


def fit_with_validation(model, epochs, callbacks):
    x, y = np.ones((1, 1)), np.zeros((1, 2))
    model.fit(
        x,
        y,
        epochs=epochs,
        callbacks=list(callbacks),
        validation_data=(x, y),
        verbose=0,
    )


def swap_callbacks(model):
    """Keras's own one too where the weights are stored in FP32."""
    callbacks = [keras_mp.SwapEMAWeights]
    if model.layers[0].kernel.dtype == "float32":
        callbacks.append(keras.callbacks.SwapEMAWeights)
    return callbacks


@pytest.mark.xslow_except("mixed_float16")
@pytest.mark.slow
def test_swap_ema_weights_in_validation(compiled):
    for callback in swap_callbacks(compiled()):
        model, observer = compiled(**EMA), Observer()
        fit_with_validation(model, 3, [callback(), observer])
        assert observer.seen == [
            ("test", [-1.0, -1.0]),
            ("epoch", [-1.0, -1.0]),
            ("test", [-1.5, -1.5]),
            ("epoch", [-2.0, -2.0]),
            ("test", [-2.25, -2.25]),
            ("epoch", [-3.0, -3.0]),
        ]
        assert kernel(model) == [-2.25, -2.25]


@pytest.mark.xslow_except("float16")
@pytest.mark.slow_except("float16")
def test_swap_ema_weights_on_epoch(compiled):
    for callback in swap_callbacks(compiled()):
        model, observer = compiled(**EMA), Observer()
        fit(model, 3, [callback(swap_on_epoch=True), observer])
        assert observer.seen == [
            ("epoch", [-1.0, -1.0]),
            ("epoch", [-1.5, -1.5]),
            ("epoch", [-2.25, -2.25]),
        ]
        assert kernel(model) == [-2.25, -2.25]


@pytest.mark.xslow_except("float16")
@pytest.mark.slow
def test_swap_ema_weights_in_evaluate(compiled):
    for callback in swap_callbacks(compiled()):
        model, observer = compiled(**EMA), Observer()
        fit(model, epochs=2)
        model.set_weights([np.array([[9.0, 9.0]])])
        evaluate(model, [callback(), observer])
        assert observer.seen == [("test", [-1.5, -1.5])]
        assert kernel(model) == [9.0, 9.0]
        fit(model)
        # From 9 to 8; the average is that of -1.5 and 8.
        assert kernel(model) == [3.25, 3.25]


@pytest.mark.xslow_except("mixed_float16")
@pytest.mark.slow
def test_swap_ema_weights_in_predict(compiled):
    """Keras's own callback does not swap back at the end of `predict`."""
    model = compiled(**EMA)
    fit(model, epochs=2)
    model.set_weights([np.array([[9.0, 9.0]])])
    swap = keras_mp.SwapEMAWeights()
    for _ in range(2):
        predicted = model.predict(np.ones((1, 1)), callbacks=[swap], verbose=0)
        assert predicted.tolist() == [[-1.5, -1.5]]
        assert kernel(model) == [9.0, 9.0]


def test_an_error_while_masters_change_keeps_their_digits():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(optimizers.SGD(0.5), loss_scale=1)
    optimizer.build([weight])
    third = np.float32(1 / 3)
    with pytest.raises(KeyError), optimizer.fp32_weights():
        optimizer.master_weights[0].assign([third])
        raise KeyError
    assert weight.numpy() == np.float16(third)
    optimizer.apply([keras.ops.zeros(1, "float16")], [weight])
    assert optimizer.master_weights[0].numpy() == third


class OwnSGD(keras.optimizers.SGD):
    """The kernel does not know it."""


@pytest.mark.parametrize(
    ("kind", "masters"),
    [
        (keras.optimizers.SGD, "float32"),
        (keras.optimizers.SGD, "remainders"),
        (OwnSGD, "float32"),
    ],
    ids=["kernel", "remainders", "own"],
)
def test_a_step_begins_at_what_was_written(kind, masters):
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(kind(0.5), loss_scale=1.0, masters=masters)
    gradient = keras.ops.ones(1, "float16")
    optimizer.apply([gradient], [weight])
    weight.assign([4.0])
    optimizer.apply([gradient], [weight])
    assert weight.numpy() == 3.5
