"""Layers compute as ever while they are observed, and are as they were after it."""

import abc
import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from unchanged import unchanged

import keras_mp
from keras_mp import layers as mp_layers
from keras_mp.precision.batch import as_batch
from keras_mp.precision.observation import Observation
from keras_mp.precision.run import run_batch

L = keras.layers
STEPS, FEATURES = 5, 4
X = np.random.default_rng(0).normal(size=(3, STEPS, FEATURES)).astype("float32")
# The second sample ends with masked steps, the third begins with them.
X[1, 3:] = X[2, :2] = 0.0
Y = np.ones((3, 1), "float32")


def sequential(*layers):
    head = [L.Flatten(name="flat"), L.Dense(1, name="head")]
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), *layers, *head])
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse")
    return model


def with_states(layer):
    inputs = keras.Input((STEPS, FEATURES))
    outputs = L.Concatenate()(layer(L.Masking()(inputs)))
    model = keras.Model(inputs, L.Dense(1)(outputs))
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse")
    return model


def masked(*layers):
    return sequential(L.Masking(), *layers)


class Scaled(L.LSTM):
    """A recurrent layer that mixes what it would return."""

    def call(self, sequences, initial_state=None, mask=None, training=False):
        outputs = super().call(sequences, initial_state, mask, training)
        return keras.ops.softmax(outputs, axis=1)


def images(layer):
    return sequential(L.Reshape((STEPS, 2, 2, 1)), layer)


RECURRENT = {
    "simple": lambda: sequential(L.SimpleRNN(3)),
    "lstm-masked": lambda: masked(L.LSTM(3)),
    "gru-zero": lambda: masked(L.GRU(3, zero_output_for_mask=True)),
    "backwards": lambda: masked(L.LSTM(3, go_backwards=True)),
    "unrolled": lambda: masked(L.GRU(3, unroll=True)),
    "unrolled-zero": lambda: masked(
        L.GRU(3, unroll=True, zero_output_for_mask=True, go_backwards=True)
    ),
    "all-steps": lambda: masked(
        L.LSTM(3, return_sequences=True), L.GlobalAveragePooling1D()
    ),
    "states": lambda: with_states(L.LSTM(3, return_state=True)),
    "stacked": lambda: masked(
        L.RNN([L.LSTMCell(3), L.GRUCell(2)], zero_output_for_mask=True)
    ),
    "own-call": lambda: masked(Scaled(3)),
    "bidirectional": lambda: masked(L.Bidirectional(L.LSTM(3))),
    "bidirectional-all-steps": lambda: masked(
        L.Bidirectional(L.GRU(3, return_sequences=True), merge_mode="sum"),
        L.GlobalAveragePooling1D(),
    ),
    "bidirectional-states": lambda: with_states(
        L.Bidirectional(L.GRU(3, return_state=True, zero_output_for_mask=True))
    ),
    "distributed": lambda: sequential(
        L.Reshape((STEPS, 2, 2)), L.TimeDistributed(L.GRU(3))
    ),
    "images": lambda: images(L.ConvLSTM2D(2, 2, padding="same")),
    "ours": lambda: masked(mp_layers.LSTM(3)),
    "ours-backwards": lambda: masked(mp_layers.GRU(3, go_backwards=True)),
    "our-images": lambda: images(mp_layers.ConvLSTM2D(2, 2, padding="same")),
}


@pytest.mark.xslow_except("*-mixed_float16", "bidirectional-float32", "ours-float32")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_return_the_same_bits(name, policy):
    keras.config.set_dtype_policy(policy)
    model = RECURRENT[name]()
    with unchanged(model):
        expected = model(X)
        with Observation(model) as observation:
            found = model(X)
        again = model(X)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(again, expected)
    (call,) = [
        call
        for call in observation.calls
        if isinstance(call.layer, L.RNN | L.TimeDistributed)
        and not call.path.endswith("backward_lstm")
        and not call.path.endswith("backward_gru")
    ]
    assert len(call.shown) == len(call.outputs)
    if isinstance(call.layer, L.RNN):
        assert call.shown[0].shape[:2] == (3, STEPS)


def test_masks_of_dropout_are_the_same_in_fp16_and_in_fp32():
    model = sequential(
        L.LSTM(8, dropout=0.5, recurrent_dropout=0.5, return_sequences=True),
        L.SpatialDropout1D(0.5),
        L.GaussianNoise(1.0),
        L.GaussianDropout(0.5),
        L.AlphaDropout(0.5),
    )
    report = keras_mp.inspect(model, X, Y)
    # Eight layers round once each, and six steps of one of them; masks drawn apart
    # would change the outputs by as much as they are.
    assert report.output_error < 16 * 2.0**-11
    assert not report.needs_fp32()


class Broken(L.Layer):
    """Raises in a pass: while it is called, or while its gradient is computed."""

    error = gradient = None

    def call(self, x):
        if self.error is not None:
            raise self.error

        @tf.custom_gradient
        def identity(x):
            return tf.identity(x), self._gradient

        return identity(x)

    def _gradient(self, upstream):
        if self.gradient is not None:
            raise self.gradient
        return upstream


class BrokenLSTM(L.LSTM):
    """Raises in its first time step."""

    error = None

    def __init__(self, units, **options):
        super().__init__(units, activation=self._activation, **options)

    def _activation(self, x):
        if self.error is not None:
            raise self.error
        return x


class OwnLoss(keras.Sequential):
    error = None

    def compute_loss(self, *args, **kwargs):
        if self.error is not None:
            raise self.error
        return super().compute_loss(*args, **kwargs)


def breaking():
    policies = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16")
    model = OwnLoss(
        [
            keras.Input((STEPS, FEATURES)),
            L.Dense(4, dtype=policies, kernel_regularizer="l2"),
            mp_layers.Probe(),
            Broken(name="broken"),
            BrokenLSTM(3, dropout=0.5, name="lstm"),
            L.Dense(1),
        ]
    )
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse")
    return model


# What raises, and what.
FAILURES = {
    "call": ("broken", "error", ValueError),
    "interrupted": ("broken", "error", KeyboardInterrupt),
    "gradient": ("broken", "gradient", ValueError),
    "time-step": ("lstm", "error", KeyboardInterrupt),
    "loss": (None, "error", KeyboardInterrupt),
}


@pytest.mark.slow
@pytest.mark.xslow_except(
    "call-mixed_float16", "gradient-mixed_float16", "time-step-mixed_float16"
)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", FAILURES)
def test_a_pass_that_fails_leaves_the_model_as_it_was(name, policy):
    keras.config.set_dtype_policy(policy)
    model = breaking()
    layer, attribute, error = FAILURES[name]
    where = model.get_layer(layer) if layer else model
    setattr(where, attribute, error("of a test"))
    with unchanged(model), pytest.raises(error, match="of a test"):
        keras_mp.inspect(model, X, Y)
    assert not tf.config.functions_run_eagerly()
    setattr(where, attribute, None)
    model.fit(X, Y, verbose=0)
    assert keras_mp.inspect(model, X, Y).notes == ()


REGISTRY = {}


class Registered(L.Layer):
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        REGISTRY[cls.__name__] = cls


class Double(Registered):
    def call(self, x):
        return 2 * x


class Named(L.Layer):
    def __init_subclass__(cls, tag):
        super().__init_subclass__()
        REGISTRY[tag] = cls


class DoubleNamed(Named, tag="double"):
    def call(self, x):
        return 2 * x


class Strict(abc.ABCMeta):
    def __new__(cls, name, bases, members):
        if "call" not in members:
            raise TypeError(f"{name} needs a `call`")
        return super().__new__(cls, name, bases, members)


class DoubleStrict(L.Layer, metaclass=Strict):
    def call(self, x):
        return 2 * x


class WithSlots(L.Layer):
    __slots__ = ("factor",)

    def call(self, x):
        return 2 * x


@pytest.mark.parametrize("cls", [Double, DoubleNamed, DoubleStrict])
def test_a_class_does_not_learn_that_it_is_observed(cls):
    registered = dict(REGISTRY)
    model = sequential(cls(name="double"))
    with unchanged(model):
        report = keras_mp.inspect(model, X, Y)
    assert registered == REGISTRY
    assert report.notes == ()
    assert [e.path for e in report.of_kind("activation")] == ["double", "flat", "head"]


def test_a_layer_that_cannot_be_observed_runs_and_is_noted():
    model = sequential(WithSlots(name="slots"))
    with unchanged(model):
        report = keras_mp.inspect(model, X, Y)
        assert keras_mp.find_overflow(model, X, Y) is None
    assert [e.path for e in report.of_kind("activation")] == ["flat", "head"]
    (note,) = report.notes
    assert "'slots'" in note and "__slots__" in note


class Looking(L.Layer):
    """Does something in the middle of a pass."""

    act = None

    def call(self, x):
        if self.act is not None:
            self.act()
        return x


def test_a_second_look_at_the_same_time_is_refused():
    looking = Looking(name="looking")
    model = sequential(looking)
    looking.act = lambda: keras_mp.find_overflow(model, X, Y)
    refusal = pytest.raises(RuntimeError, match=r"(?s)once at a time.*Wait")
    with unchanged(model), refusal:
        keras_mp.find_overflow(model, X, Y)


def test_a_look_at_a_model_that_shares_a_layer_is_refused():
    looking = Looking(name="looking")
    model, other = sequential(looking), sequential(L.Dense(4), looking)
    looking.act = lambda: keras_mp.find_overflow(other, X, Y)
    with unchanged(model), unchanged(other), pytest.raises(RuntimeError):
        keras_mp.find_overflow(model, X, Y)


def test_another_thread_is_refused_and_disturbs_nothing():
    looking, refusals = Looking(name="looking"), []
    model = sequential(looking)

    def look():
        try:
            keras_mp.find_overflow(model, X, Y)
        except RuntimeError as error:
            refusals.append(str(error))

    def look_in_another_thread():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    looking.act = look_in_another_thread
    with unchanged(model):
        assert keras_mp.find_overflow(model, X, Y) is None
    assert len(refusals) == 1 and "once at a time" in refusals[0]


def test_two_threads_look_at_two_models():
    models = [sequential(L.Dense(2), L.Dense(3)) for _ in range(2)]
    expected = [keras_mp.inspect(model, X, Y) for model in models]
    found = {}

    def look(index):
        found[index] = keras_mp.inspect(models[index], X, Y)

    threads = [threading.Thread(target=look, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == expected
    assert not tf.config.functions_run_eagerly()


def test_what_was_recorded_is_freed_with_the_result():
    model = sequential(L.Dense(2))
    gc.disable()
    try:
        found = run_batch(model, as_batch(X, Y, None), dtype="float32")
        call = weakref.ref(found.calls[0])
        del found
        assert call() is None
    finally:
        gc.enable()


def test_operations_of_inner_models_are_named_behind_them():
    inputs = keras.Input((STEPS, FEATURES))
    inner = keras.Model(inputs, inputs + 1.0, name="inner")
    outer = keras.Input((STEPS, FEATURES))
    model = keras.Model(outer, L.Dense(1, name="head")(inner(outer) * 2.0))
    model.compile("sgd", "mse")
    paths = [e.path for e in keras_mp.inspect(model, X, Y).of_kind("activation")]
    assert paths == ["inner/add", "multiply", "head"]
