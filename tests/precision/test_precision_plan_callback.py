"""A run whose activations outgrow FP16 after some steps, and goes on with a plan."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp.precision.precision_plan import LayerPlan

GROWS_AT, STEPS, PATIENCE = 50, 100, 5
SCALE = 2.0**10
WORDS = np.random.default_rng(0).integers(0, 11, (16, 5))
NEXT = (WORDS + 1) % 11
MODES = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
    "two steps at once": {"jit_compile": False, "steps_per_execution": 2},
}


class Growing(keras.layers.Layer):
    """What it returns is a million times as large after `GROWS_AT` steps."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(8, name="dense")

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.steps = self.add_weight(dtype="int32", trainable=False, name="steps")

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1)
        factor = keras.ops.where(self.steps > GROWS_AT, 1e6, 1.0)
        y = self.dense(x)
        return y * keras.ops.cast(factor, y.dtype)


class OwnStep(keras.Model):
    """A custom `train_step` as Keras's guide writes it."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def growing_model(model_class=keras.Model, **options):
    keras.utils.set_random_seed(0)
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(11, 8, name="words")(ids)
    x = keras.layers.Dense(8, "relu", name="before")(x)
    x = Growing(name="growing")(x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    model = model_class(ids, keras.layers.Dense(11, name="logits")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    scale = keras_mp.DynamicLossScale(initial_scale=SCALE)
    model.compile(keras_mp.wrap(keras.optimizers.Adam(1e-3), scale), loss, **options)
    return model


def fit(model, steps=STEPS, callbacks=(), **options):
    """Trains on the one batch again and again. Returns the loss of the last step."""
    data = tf.data.Dataset.from_tensors((WORDS, NEXT)).repeat()
    defaults = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
    model.fit(data, callbacks=list(callbacks), **defaults | options)
    return model.evaluate(WORDS, NEXT, verbose=0)


def planned(**options):
    return keras_mp.PrecisionPlanCallback(patience=PATIENCE, **options)


CHANGES = pytest.mark.filterwarnings("ignore:After .* skipped steps")


@pytest.mark.slow
def test_without_it_every_step_is_skipped_from_then_on():
    keras.config.set_dtype_policy("mixed_float16")
    model = growing_model(jit_compile=False)
    fit(model)
    assert int(model.optimizer.skipped_steps) == STEPS - GROWS_AT


@pytest.mark.slow
@pytest.mark.xslow_except("graph")
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_outgrows_fp16_goes_on(mode):
    keras.config.set_dtype_policy("mixed_float16")
    model, callback = growing_model(**MODES[mode]), planned()
    with pytest.warns(UserWarning, match="After .*growing.*float32.*outputs up to"):
        loss = fit(model, callbacks=[callback])
    skipped = int(model.optimizer.skipped_steps)
    # The scale begins anew, so that it is read `PATIENCE` steps apart, and no more.
    assert PATIENCE <= skipped < 2 * PATIENCE + 2
    assert (
        callback.plan.precisions["growing"]
        == callback.plan.precisions["norm"]
        == "float32"
    )
    assert callback.plan.float16_share == 1.0
    assert float(model.optimizer.loss_scale) == SCALE

    keras.config.set_dtype_policy("float32")
    reference = growing_model(**MODES[mode])
    assert loss == pytest.approx(fit(reference, STEPS - skipped), rel=1e-3)


@pytest.mark.xslow_except("OwnStep-float16")
@pytest.mark.slow
@CHANGES
@pytest.mark.parametrize(
    ("model_class", "policy"),
    [(keras.Model, "mixed_float16"), (OwnStep, "mixed_float16"), (OwnStep, "float16")],
)
def test_a_converted_model_and_a_step_of_ones_own(model_class, policy):
    keras.config.set_dtype_policy(policy)
    model = keras_mp.convert(growing_model(model_class, jit_compile=False))
    watch = keras_mp.LossScaleCallback(patience=PATIENCE)
    fit(model, callbacks=[watch, planned(), keras_mp.NumericsCallback(every=20)])
    assert int(model.optimizer.skipped_steps) < 2 * PATIENCE


@pytest.mark.slow
@CHANGES
def test_train_on_batch_in_a_loop_of_ones_own():
    keras.config.set_dtype_policy("mixed_float16")
    model = growing_model(jit_compile=False)
    callbacks = keras.callbacks.CallbackList([planned()], model=model)
    callbacks.on_train_begin()
    model.get_layer("growing").steps.assign(GROWS_AT)
    for step in range(2 * PATIENCE):
        callbacks.on_train_batch_begin(step)
        model.train_on_batch(WORDS, NEXT)
        callbacks.on_train_batch_end(step)
    assert int(model.optimizer.skipped_steps) == PATIENCE


@pytest.mark.slow
@CHANGES
def test_a_plan_that_was_applied_is_extended():
    keras.config.set_dtype_policy("mixed_float16")
    model, callback = growing_model(jit_compile=False), planned()
    before = {"before": "float16_matmul", "logits": "float32"}
    layers = tuple(LayerPlan(path, mode, "by hand", 0) for path, mode in before.items())
    keras_mp.PrecisionPlan(layers, 1.0, 0.0, 4.0).apply(model)
    fit(model, callbacks=[callback])
    assert int(model.optimizer.skipped_steps) < 2 * PATIENCE
    assert callback.plan.precisions.items() > before.items()
    reasons = {layer.path: layer.reason for layer in callback.plan.layers}
    assert reasons["logits"] == "as before"
    keras_mp.to_keras(model)
    assert {x.dtype_policy.name for x in model.layers[1:]} == {"mixed_float16"}


@pytest.mark.slow
def test_a_plan_that_does_not_help_is_said_once_in_a_doubled_streak():
    keras.config.set_dtype_policy("mixed_float16")
    model = growing_model(jit_compile=False)
    model.optimizer.loss_scale = 2.0**40
    with pytest.warns(UserWarning, match="asks for no more") as told:
        fit(model, 9 * PATIENCE, [planned()])
    found = [re.match(r"After (\d+) skipped", str(each.message)) for each in told]
    streaks = [int(each[1]) for each in found if each]
    assert streaks == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]


@pytest.mark.slow
def test_a_run_without_overflows_stays_as_it_is():
    keras.config.set_dtype_policy("mixed_float16")
    model, callback = growing_model(jit_compile=False), planned()
    fit(model, 2 * PATIENCE, [callback])
    assert callback.plan is None and type(model.layers[2]) is keras.layers.Dense


def unwrapped(model):
    model.compile("sgd", "mse")
    fit(model, 1, [planned()])


def data_with_nan(model):
    callback, x = planned(), np.ones((8, 2), "float32")
    dense = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    dense.compile(keras_mp.wrap("sgd"), "mse", jit_compile=False)
    dense.fit(x, x[:, :1] * np.nan, 1, epochs=2, verbose=0, callbacks=[callback])


def a_step_without_compute_loss(model):
    class Hinge(keras.Model):
        def train_step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.cast(self(x), "float32"))
                scaled = self.optimizer.scale_loss(loss * 1e9)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    model = Hinge(model.input, model.outputs)
    model.compile(keras_mp.wrap("sgd"), jit_compile=False)
    data = tf.data.Dataset.from_tensors(WORDS).repeat(3 * PATIENCE)
    model.fit(data, shuffle=False, verbose=0, callbacks=[planned()])


def a_loop_without_a_train_function(model):
    callback = planned()
    callback.set_model(model)
    callback.on_train_begin()
    infinite = [tf.fill(v.shape, np.inf) for v in model.trainable_variables]
    for _ in range(PATIENCE):
        model.optimizer.scale_loss(0.0)
        model.optimizer.apply(infinite, model.trainable_variables)
        callback.on_train_batch_begin(0)
        callback.on_train_batch_end(0)
    callback.on_train_batch_begin(0)


MISUSES = {
    unwrapped: (ValueError, "needs a wrapped optimizer"),
    data_with_nan: (RuntimeError, "(?s)skipped steps in a row.*must be finite"),
    a_step_without_compute_loss: (RuntimeError, "(?s)its own `compute_loss`"),
    a_loop_without_a_train_function: (RuntimeError, "in a loop without either"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_where_it_cannot_work(misuse):
    keras.config.set_dtype_policy("mixed_float16")
    error, message = MISUSES[misuse]
    with pytest.raises(error, match=message):
        misuse(growing_model(jit_compile=False))


def test_replicas_are_refused(strategy):
    with strategy.scope():
        model = growing_model(jit_compile=False)
    with pytest.raises(RuntimeError, match=r"one replica\. Received: a model on 2"):
        fit(model, 1, [planned()])
