"""`inspect` on models that are easily seen wrongly."""

import json

import keras
import numpy as np
import pytest
from older_versions import needs

import keras_mp
from keras_mp import layers as mp_layers

L = keras.layers
X = np.random.default_rng(0).normal(size=(4, 4)).astype("float32")
Y = np.ones((4, 1), "float32")


def sequential(*layers, shape=(4,)):
    return keras.Sequential([keras.Input(shape), *layers])


def compiled(model, loss="mse", optimizer="sgd"):
    model.compile(optimizer=optimizer, loss=loss)
    return model


def entry_of(report, path, kind):
    (entry,) = [e for e in report.of_kind(kind) if e.path == path]
    return entry


def tiny(y, p):
    return 2.0**-32 * p[:, 0]


def test_dropout_has_one_mask_in_fp16_and_in_fp32():
    keras.config.set_dtype_policy("mixed_float16")
    dropout = sequential(L.Dense(256, "relu"), L.Dropout(0.5), L.Dense(1))
    optimizer = keras_mp.wrap("adam")
    report = keras_mp.inspect(compiled(dropout, tiny, optimizer), X, Y)
    assert report.needs_scaling()
    assert report.gradient_errors[report.suggested_scale()] < 0.01


def block(name, value):
    inputs = keras.Input((4,))
    constant = keras.initializers.Constant(value)
    outputs = L.Dense(4, name="dense", kernel_initializer=constant)(inputs)
    return keras.Model(inputs, outputs, name=name)


def test_weights_of_one_name_are_told_apart_by_their_layers():
    inputs = keras.Input((4,))
    hidden = block("second", 100.0)(block("first", 1.0)(inputs))
    model = compiled(keras.Model(inputs, L.Dense(1)(hidden)))
    report = keras_mp.inspect(model, X, Y)
    kernels = [e for e in report.of_kind("weight") if "/dense/kernel" in e.path]
    assert {e.path for e in kernels} == {"first/dense/kernel", "second/dense/kernel"}
    assert {e.statistics.largest for e in kernels} >= {1.0, 100.0}


def with_a_shared_layer():
    shared = L.Dense(4)
    inputs = keras.Input((5, 4))
    inner = keras.Model(inputs, L.LSTM(3, name="lstm")(shared(inputs)))
    outer = keras.Input((5, 4))
    return keras.Model(outer, L.Dense(1)(inner(shared(outer))))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_layer_shared_with_an_inner_model(policy):
    keras.config.set_dtype_policy(policy)
    model = compiled(with_a_shared_layer())
    x = np.random.default_rng(1).normal(size=(2, 5, 4))
    first, second = (keras_mp.inspect(model, x, Y[:2]) for _ in range(2))
    assert first == second


# Before 3.12 Keras's Concatenate of a functional model fails on masks.
@pytest.mark.parametrize(
    "masked",
    [False, pytest.param(True, marks=needs("Keras", 3, 12))],
    ids=["plain", "masked"],
)
def test_branches_are_joined_with_their_masks(masked):
    ids = keras.Input((3,), dtype="int32")
    words = keras.layers.Embedding(4, 2, mask_zero=masked, name="words")(ids)
    branches = [words, keras.layers.Dense(3)(words)]
    joined = keras.layers.Concatenate(name="joined")(branches)
    model = compiled(keras.Model(ids, keras.layers.LSTM(2)(joined)))
    x, y = np.array([[1, 2, 0], [3, 0, 0]]), np.ones((2, 2), "float32")
    report = keras_mp.inspect(model, x, y)
    assert entry_of(report, "joined", "activation_gradient").statistics.elements == 30
    assert report.loss == pytest.approx(model.evaluate(x, y, verbose=0), rel=2**-20)


def test_a_bfloat16_model_is_compared_with_fp16():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = compiled(sequential(L.Dense(4), L.Dense(1)), tiny)
    assert keras_mp.inspect(model, X, Y).needs_scaling()


class Scored(L.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = L.Dense(4)
        self.probe = mp_layers.Probe(name="scores")

    def call(self, x):
        return keras.ops.relu(self.probe(self.dense(x)))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_probe_inside_a_layer_is_shown(policy):
    keras.config.set_dtype_policy(policy)
    model = compiled(sequential(Scored(name="scored"), L.Dense(1)))
    report = keras_mp.inspect(model, X, Y)
    scores = [e.path for e in report.of_kind("activation") if "scores" in e.path]
    assert len(scores) == 1
    paths = [e.path for e in report.of_kind("activation_gradient")]
    assert paths == ["scored/dense", "scored/scores", "scored", "dense"]


class Doubled(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) * 2.0


def test_a_sequential_model_with_its_own_call_is_run_as_it_is():
    model = Doubled([keras.Input((4,)), L.Dense(1)])
    report = keras_mp.inspect(compiled(model), X, Y)
    assert report.loss == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-6)
    assert [e.path for e in report.of_kind("activation")] == ["dense", model.name]


def functional(*layers):
    inputs = outputs = keras.Input((4,))
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def test_a_functional_model_with_a_loss_that_has_no_config():
    model = compiled(functional(L.Dense(1)), lambda y, p: p[:, 0])
    assert keras_mp.find_overflow(model, X, Y) is None
    assert entry_of(
        keras_mp.inspect(model, X, Y), "dense", "activation_gradient"
    ).statistics.exponents == {-2: 4}


class WithoutConfig(L.Layer):
    def __init__(self, units, function):
        super().__init__()
        self.dense, self.function = L.Dense(units), function

    def call(self, x):
        return self.function(self.dense(x))


def test_no_config_is_needed():
    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(sequential(WithoutConfig(4, keras.ops.relu), L.Dense(1)))
    report = keras_mp.inspect(model, X, Y)
    assert 0.0 < report.output_error < 2.0**-8
    assert "without_config/dense" in [e.path for e in report.of_kind("activation")]


class OwnCell(L.SimpleRNNCell):
    def __init__(self, units, function, **options):
        super().__init__(units, **options)
        self.function = function


def test_a_cell_without_config_is_seen_at_all_steps():
    cell = OwnCell(3, keras.ops.relu)
    model = compiled(sequential(L.RNN(cell, name="rnn"), L.Dense(1), shape=(5, 4)))
    report = keras_mp.inspect(model, np.ones((2, 5, 4)), Y[:2])
    assert entry_of(report, "rnn", "activation").statistics.elements == 2 * 5 * 3
    assert keras_mp.find_overflow(model, np.ones((2, 5, 4)), Y[:2]) is None


def test_lambda_is_made_again():
    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(sequential(L.Lambda(lambda x: x * 2.0), L.Dense(1)))
    assert keras_mp.inspect(model, X, Y).of_kind("activation")


def test_adapted_lookups_keep_their_tables():
    keras.config.set_dtype_policy("mixed_float16")
    words = L.StringLookup(vocabulary=["a", "b"])
    inputs = keras.Input((3,), dtype="string")
    x = L.Flatten()(L.Embedding(4, 2)(words(inputs)))
    model = compiled(keras.Model(inputs, L.Dense(1)(x)))
    report = keras_mp.inspect(model, np.array([["a", "b", "c"]]), Y[:1])
    assert entry_of(report, "flatten", "activation").statistics.elements == 6


class Penalty(L.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(keras.ops.square(x)))
        return x


def test_a_model_with_added_losses_alone():
    model = sequential(L.Dense(2), Penalty())
    model.compile("sgd")
    assert keras_mp.inspect(model, X, None).loss > 0


class Unused(L.Layer):
    def build(self, _):
        self.weight = self.add_weight(name="weight")

    def call(self, x):
        return x


def test_state_of_the_optimizer_goes_into_the_update():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.Dense(1, name="used")(Unused()(inputs)))
    momentum = keras.optimizers.SGD(1.0, momentum=0.9)
    compiled(model, lambda y, p: p[:, 0] * 0.01, momentum)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        model.fit(X, Y, epochs=3, verbose=0)
    largest = entry_of(
        keras_mp.inspect(model, X, Y), "used/bias", "update"
    ).statistics.largest
    before = model.get_layer("used").bias.numpy()[0]
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        model.train_on_batch(X, Y)
    after = model.get_layer("used").bias.numpy()[0]
    assert largest == pytest.approx(abs(after - before), rel=1e-4)


def test_accumulation_does_not_hide_the_update():
    adam = keras.optimizers.Adam(1e-8, gradient_accumulation_steps=4)
    model = compiled(sequential(L.Dense(1)), optimizer=adam)
    model.fit(X, Y, verbose=0)
    assert keras_mp.inspect(model, X, Y).needs_masters()


def test_repeated_calls_leave_no_notes_on_the_layers():
    model = compiled(functional(L.Dense(4), keras.ops.relu, L.Dense(1)))
    nodes = [len(layer._inbound_nodes) for layer in model.layers]
    for _ in range(3):
        keras_mp.find_overflow(model, X, Y)
        keras_mp.inspect(model, X, Y)
    assert [len(layer._inbound_nodes) for layer in model.layers] == nodes


def test_an_infinite_error_is_strict_json():
    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(sequential(L.Dense(1)), lambda y, p: 1e6 * p[:, 0])
    report = keras_mp.inspect(model, X, Y, loss_scale=2.0**15)
    assert np.inf in report.gradient_errors.values()
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert keras_mp.Numerics.from_dict(json.loads(text)) == report


class OwnTrainStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def test_a_train_step_that_is_not_run_is_noted():
    inputs = keras.Input((4,))
    model = compiled(OwnTrainStep(inputs, L.Dense(1)(inputs)))
    assert "`train_step`" in keras_mp.inspect(model, X, Y).notes[0]


def test_weights_that_the_loss_does_not_see():
    model = compiled(sequential(L.Dense(1)), lambda y, p: y[:, 0])
    with pytest.raises(ValueError, match="must depend on the trainable weights"):
        keras_mp.inspect(model, X, Y)


def test_a_loss_that_is_not_finite():
    model = compiled(sequential(L.Dense(1)), lambda y, p: p[:, 0] / 0.0)
    with pytest.raises(ValueError, match=r"must be finite.*find_overflow"):
        keras_mp.inspect(model, X, Y)


class Chain(keras.Model):
    def __init__(self):
        super().__init__()
        self.chain = [L.Dense(4, name=name) for name in "abc"]
        self.head = L.Dense(1, name="head")

    def call(self, x):
        for layer in self.chain:
            x = layer(x)
        return self.head(x)


def test_the_last_weight_of_a_chain_overflows_first():
    keras.config.set_dtype_policy("mixed_float16")
    model = Chain()
    model(X)
    compiled(model, lambda y, p: keras.ops.cast(p[:, 0], "float32") * 1e6)
    found = keras_mp.find_overflow(model, X, Y)
    assert (found.path, found.where) == ("head", "backward")


def test_weights_that_are_nan_already():
    model = compiled(sequential(L.Dense(4, name="fine"), L.Dense(1, name="broken")))
    model.layers[1].kernel.assign(np.full((4, 1), np.nan))
    found = keras_mp.find_overflow(model, X, Y)
    assert found.where == "weight" and found.path.endswith("broken/kernel")


def test_an_infinity_that_is_meant_is_passed_over():
    keras.config.set_dtype_policy("mixed_float16")
    masked = L.Lambda(lambda x: keras.ops.where(x > 1e3, x, -np.inf) + 0 * x)
    inputs = keras.Input((4,))
    scores = keras.ops.concatenate([L.Dense(2)(inputs), masked(inputs)], -1)
    model = keras.Model(inputs, L.Dense(1)(L.Softmax()(scores)))
    assert keras_mp.find_overflow(compiled(model), X, Y, loss_scale=1.0) is None


@pytest.mark.parametrize("size", [np.nan, np.inf], ids=["nan", "inf"])
def test_no_scale_is_suggested_from_gradients_that_are_not_finite(size):
    model = compiled(sequential(L.Dense(1)), lambda y, p: p[:, 0] * size)
    with pytest.raises(ValueError, match="must be finite"):
        keras_mp.suggest_loss_scale(model, [(X, Y)])
