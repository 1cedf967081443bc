"""`inspect` and `find_overflow` on models that are more than layers in a row."""

import functools
import pickle

import keras
import numpy as np
import pytest
from older_versions import needs
from unchanged import unchanged

import keras_mp

L = keras.layers
POLICIES = ("float32", "mixed_float16", "float16", "bfloat16")
random = np.random.default_rng(0)
X = random.normal(size=(4, 6, 8)).astype("float32")
MASK = np.tril(np.ones((4, 6, 6), bool))
STATE = random.normal(size=(4, 3)).astype("float32")
Y = np.ones((4, 1), "float32")


def head(x):
    return L.Dense(1, name="head")(L.Flatten(name="flat")(x))


def functional(function, *shapes):
    inputs = [keras.Input(shape) for shape in shapes or ((6, 8),)]
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], function(*inputs))


def sequential(*layers):
    return functional(
        lambda x: head(functools.reduce(lambda x, layer: layer(x), layers, x))
    )


def attention_with_a_mask():
    inputs, mask = keras.Input((6, 8)), keras.Input((6, 6), dtype="bool")
    attention = L.MultiHeadAttention(2, 4)
    x = attention(inputs, inputs, attention_mask=mask, use_causal_mask=True)
    return keras.Model([inputs, mask], head(x))


def lstm_with_a_state():
    def run(x, h, c):
        lstm = L.LSTM(3, return_sequences=True, recurrent_initializer="glorot_uniform")
        return head(lstm(x, initial_state=[h, c], training=True))

    return functional(run, (6, 8), (3,), (3,))


class Clipped(L.Layer):
    """It has no `compute_output_spec`, and calls a layer that it does not hold."""

    def call(self, x):
        return L.Identity()(keras.ops.clip(x, -65504, 65504)) * 1.0

    def compute_output_shape(self, input_shape):
        return input_shape


def behind_a_tensor():
    def run(x):
        doubled = L.Dense(8)(x) * keras.ops.convert_to_tensor(2.0)
        assert doubled.sparse  # as Keras takes it
        return head(Clipped()(doubled))

    return functional(run)


class BrokenConfig(L.Layer):
    def __init__(self, units=3, **options):
        super().__init__(**options)
        self.dense = L.Dense(units)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def shared():
    dense = L.Dense(8, name="shared")
    return functional(lambda x: head(dense(dense(x)) + x))


def nested():
    inner = functional(lambda x: L.Dense(8)(x) + x)
    outer = keras.Sequential([keras.Input((6, 8)), inner, L.Dense(8)])
    return functional(lambda x: head(outer(inner(outer(x)))))


class Holding(L.Layer):
    def __init__(self):
        super().__init__()
        self.layers_of_it = {"first": [L.Dense(4)], "second": (L.Dense(3),)}

    def call(self, x):
        return self.layers_of_it["second"][0](self.layers_of_it["first"][0](x))


def of_dicts():
    def run(x):
        flat = L.Flatten()(x)
        return {"a": L.Dense(1)(flat), "b": L.Dense(1)(flat)}

    return functional(run)


class Choosing(keras.Model):
    """Its outputs are integers, and its loss is what it adds."""

    def __init__(self):
        super().__init__()
        self.flat, self.dense = L.Flatten(), L.Dense(3)

    def call(self, x):
        scores = self.dense(self.flat(x))
        self.add_loss(keras.ops.mean(keras.ops.square(scores)))
        return keras.ops.argmax(scores, -1)


def of_integers():
    model = Choosing()
    model(X)
    return model


class FurtherLayers(keras.Model):
    """Its loss calls a layer that its outputs do not come from."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.critic = L.Dense(1, name="critic")
        self.critic.build((None, 1))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        scores = keras.ops.cast(self.critic(y_pred), "float32")
        return keras.ops.mean(keras.ops.square(scores - y))


def with_a_critic():
    inputs = keras.Input((6, 8))
    return FurtherLayers(inputs, head(inputs))


def converted(make):
    return keras_mp.convert(make())


def low_rank():
    dense = L.Dense(4)
    model = sequential(dense)
    dense.enable_lora(2)
    return model


def bidirectional(**options):
    lstm = L.LSTM(3, recurrent_initializer="glorot_uniform", **options)
    return L.Bidirectional(lstm)


def normalized():
    return sequential(L.BatchNormalization(), L.Dense(4))


# What makes the model, and what is not as in `compile(loss="mse", metrics=["mae"])`.
CASES = {
    "attention-with-a-mask": (attention_with_a_mask, {"x": [X, MASK]}),
    "lstm-with-a-state": (lstm_with_a_state, {"x": [X, STATE, STATE]}),
    "behind-a-tensor": (behind_a_tensor, {}),
    "broken-config": (lambda: sequential(BrokenConfig()), {}),
    "shared": (shared, {}),
    "nested": (nested, {}),
    "lists-and-dicts": (lambda: sequential(Holding()), {}),
    "dicts": (of_dicts, {"y": {"a": Y, "b": Y}, "metrics": {"a": "mae"}}),
    "integers": (of_integers, {"y": None, "loss": None, "metrics": None}),
    "further-layers": (with_a_critic, {"loss": None, "metrics": None}),
    "lambda": (lambda: sequential(L.Lambda(lambda x: 2 * x)), {}),
    "distributed": (lambda: sequential(L.TimeDistributed(L.Dense(3))), {}),
    "bidirectional": (lambda: sequential(bidirectional()), {}),
    "all-steps": (lambda: sequential(bidirectional(return_sequences=True)), {}),
    "spectral-norm": (lambda: sequential(L.SpectralNormalization(L.Dense(4))), {}),
    "batch-norm": (normalized, {}),
    "batch-norm-converted": (lambda: converted(normalized), {}),
    "low-rank": (low_rank, {}),
    "regularized": (
        lambda: sequential(
            L.Dense(4, kernel_regularizer="l1", activity_regularizer="l2")
        ),
        {},
    ),
    "eager": (nested, {"run_eagerly": True}),
    "xla": (nested, {"jit_compile": True}),
}


def compiled(name):
    make, other = CASES[name]
    options = {"loss": "mse", "metrics": ["mae"], "x": X, "y": Y} | other
    x, y = options.pop("x"), options.pop("y")
    model = make()
    model.compile(keras_mp.wrap("adam", loss_scale=1.0), **options)
    return model, x, y


@pytest.mark.slow_except(
    "nested-mixed_float16",
    "lists-and-dicts-mixed_float16",
    "attention-with-a-mask-mixed_float16",
)
@pytest.mark.xslow_except("*-mixed_float16")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_a_model_is_seen_and_left_as_it_was(name, policy):
    keras.config.set_dtype_policy(policy)
    model, x, y = compiled(name)
    with unchanged(model):
        assert keras_mp.find_overflow(model, x, y) is None
        report = keras_mp.inspect(model, x, y)
        assert keras_mp.inspect(model, x, y) == report
    assert report.notes == ()
    assert len(report.of_kind("weight_gradient")) == len(model.trainable_variables)
    # At most eight roundings of FP16 follow on one another, and sums may cancel by a
    # factor of eight.
    assert max(report.loss_error, report.output_error) < 64 * 2.0**-11
    assert max(report.gradient_errors.values()) < 64 * 2.0**-11


@pytest.mark.slow
def test_a_model_is_pickled_and_described_as_before():
    model = keras.Sequential([keras.Input((6, 8)), bidirectional(), L.Dense(1)])
    model.compile("sgd", "mse")
    described, expected = model.to_json(), model.predict(X, verbose=0)
    keras_mp.inspect(model, X, Y)
    assert model.to_json() == described
    copy = pickle.loads(pickle.dumps(model))
    assert [type(layer) for layer in copy.layers] == [L.Bidirectional, L.Dense]
    np.testing.assert_array_equal(copy.predict(X, verbose=0), expected)


# Before 3.12 Keras makes no metrics by the names of a dict in `evaluate` alone.
@pytest.mark.slow
@needs("Keras", 3, 12)
def test_metrics_that_are_made_in_a_look_are_as_those_of_training():
    (model, x, y), (other, _, _) = compiled("dicts"), compiled("dicts")
    other.set_weights(model.get_weights())
    keras_mp.inspect(model, x, y)
    found, expected = (
        each.evaluate(x, y, verbose=0, return_dict=True) for each in (model, other)
    )
    assert found == expected and set(found) == {"loss", "a_loss", "b_loss", "a_mae"}


@pytest.mark.slow
def test_replicas(strategy):
    keras.config.set_dtype_policy("mixed_float16")
    with strategy.scope():
        model = sequential(L.BatchNormalization(), L.Dense(4))
        model.compile(keras_mp.wrap("sgd"), "mse")
    plain = sequential(L.BatchNormalization(), L.Dense(4))
    plain.compile(keras_mp.wrap("sgd"), "mse")
    plain.set_weights(model.get_weights())
    with unchanged(model):
        assert keras_mp.find_overflow(model, X, Y, loss_scale=1.0) is None
        report = keras_mp.inspect(model, X, Y)
        with (
            strategy.scope(),
            pytest.raises(RuntimeError, match="outside of the scope"),
        ):
            keras_mp.inspect(model, X, Y)
    assert report.loss == keras_mp.inspect(plain, X, Y).loss
    model.fit(X, Y, verbose=0)


class SaturatingInFP16(L.Layer):
    """Keeps its sum within FP16, as the residual stream of Gemma 3 in keras-hub."""

    def call(self, x):
        if self.compute_dtype == "float16":
            x = keras.ops.clip(x, -65504, 65504)
        return x


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float16"])
def test_a_clip_that_hides_an_overflow_is_the_first_line(policy):
    keras.config.set_dtype_policy(policy)
    ones = {"use_bias": False, "kernel_initializer": "ones"}
    model = keras.Sequential(
        [
            keras.Input((1,)),
            L.Rescaling(40_000.0),
            L.Dense(1, **ones),
            L.Lambda(lambda x: x + x),
            SaturatingInFP16(name="clipped"),
            L.Rescaling(1e-5),
            L.Dense(1, **ones, dtype="float32"),
        ]
    )
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), loss=lambda y, p: p[:, 0])
    report = keras_mp.inspect(model, np.ones((2, 1)), Y[:2])
    # 80,000 in FP32, and 65,504 where the infinity of FP16 was clipped.
    assert report.loss == pytest.approx(0.8, rel=2.0**-20)
    assert report.fp16_loss == pytest.approx(0.65504, rel=3 * 2.0**-11)
    verdict = report.needs_fp32()
    assert verdict and verdict.value == pytest.approx(1 - 0.65504 / 0.8, rel=0.02)
    first, second, *_ = str(report).split("\n")
    assert (
        first.startswith("loss 0.8; in FP16 the loss is 0.655") and "off by 18" in first
    )
    assert second.startswith("This model exceeds the range of FP16")


class DropPath(L.Layer):
    """Draws in the precision that it computes in."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed = keras.random.SeedGenerator(0)

    def call(self, x):
        return keras.random.dropout(x, 0.5, seed=self.seed)


def test_random_numbers_of_a_layer_of_its_own_are_noted():
    model = sequential(
        DropPath(name="path"), L.Dropout(0.5), bidirectional(dropout=0.5)
    )
    model.compile("sgd", "mse")
    report = keras_mp.inspect(model, X, Y)
    assert report.needs_fp32()
    (note,) = report.notes
    assert note.startswith("'path' drew random numbers")


class AddsFP32(L.Layer):
    def call(self, x):
        return x + keras.ops.ones((8,), "float32")


def test_a_model_that_cannot_run_in_fp16_is_told():
    model = sequential(AddsFP32())
    model.compile("sgd", "mse")
    with unchanged(model), pytest.raises(ValueError, match=r"(?s)run in FP16.*cast"):
        keras_mp.inspect(model, X, Y)
