"""Layers in modes: models run, in FP32 where all layers are, and later as before."""

import copy
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.modes import MODES, PrecisionPolicy
from keras_mp.precision.scope import (
    CastResults,
    apply_modes,
    modes_of,
    precision_scope,
    remove_modes,
)

L = keras.layers
X = np.random.default_rng(1).normal(size=(4, 3, 8)).astype("float32")


@keras.saving.register_keras_serializable("scope")
class Block(L.Layer):
    """Sublayers, a Sequential that is built when it is called, and sums of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norm = L.LayerNormalization()
        self.mlp = keras.Sequential([L.Dense(8, "gelu"), L.LayerNormalization()])

    def build(self, shape):
        self.norm.build(shape)
        self.mlp.build(shape)
        self.scale = self.add_weight(shape=(8,), initializer="ones", name="scale")
        self.built = True

    def call(self, x):
        return x + self.scale * self.mlp(self.norm(x))

    def compute_output_shape(self, shape):
        return shape

    def get_config(self):
        return {**super().get_config(), "name": self.name}


class Shares(L.Layer):
    def __init__(self, shared):
        super().__init__()
        self.shared = shared

    def call(self, x):
        return x + self.shared(x)


class Subclassed(keras.Model):
    """A functional and a Sequential model, a shared layer, attention, a recurrence."""

    def __init__(self):
        super().__init__(name="subclassed")
        inputs = keras.Input((3, 8))
        self.net = keras.Model(inputs, L.Dense(8)(L.Dense(4, "gelu")(inputs)))
        self.lazy = keras.Sequential([L.LayerNormalization(), L.Dense(8)])
        shared = L.Dense(8)
        self.one, self.two = Shares(shared), Shares(shared)
        self.attention = L.MultiHeadAttention(2, 4)
        self.rnn = L.Bidirectional(L.GRU(4, return_sequences=True))
        self.each = L.TimeDistributed(L.Dense(8))
        self.norm, self.out = L.LayerNormalization(), L.Dense(2, dtype="float32")

    def call(self, x):
        x = x + self.net(x)
        x = x + self.lazy(x)
        x = self.two(self.one(x)) + self.attention(x, x)
        x = x + self.each(self.rnn(x))
        return self.out(self.norm(x))


def functional():
    inputs = keras.Input((3, 8))
    x = L.Dense(8)(inputs)
    y = L.Dense(8, "gelu")(L.LayerNormalization()(x))
    x = L.Add()([x, y]) + keras.ops.tanh(y)
    inner = keras.Input((3, 8))
    x = L.BatchNormalization()(keras.Model(inner, L.Dense(8)(inner))(x)) + x
    x = L.TimeDistributed(L.Dense(8))(L.GRU(4, return_sequences=True)(x))
    x = x + L.MultiHeadAttention(2, 4)(x, x)
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(x)))


def of_blocks():
    inputs = keras.Input((3, 8))
    x = Block(name="b")(Block(name="a")(L.Dense(8)(inputs)))
    return keras.Model(inputs, L.Dense(2, dtype="float32")(x))


def lazy():
    return keras.Sequential([L.Dense(8, "relu"), L.LayerNormalization(), L.Dense(2)])


def nested():
    """Sequential models in one another, three deep, around code."""
    inner = keras.Sequential([Block(name="block"), L.Dense(8)])
    return keras.Sequential([keras.Sequential([inner, L.Rescaling(2.0)]), L.Dense(2)])


MODELS = (functional, of_blocks, lazy, nested, Subclassed)


def built(make, policy, converted=False):
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    model = make()
    model(X)
    return keras_mp.convert(model) if converted else model


def values(model):
    """The outputs and the gradients of the weights, as NumPy arrays."""
    with tf.GradientTape() as tape:
        outputs = keras.ops.cast(model(X), "float32")
        loss = keras.ops.mean(keras.ops.square(outputs))
    gradients = tape.gradient(loss, model.trainable_variables)
    return [tf.convert_to_tensor(each).numpy() for each in (outputs, *gradients)]


def state(model):
    """The policies of its layers, and what is set on them."""
    return [
        (x.dtype_policy, x.compute_dtype, sorted(vars(x)))
        for x in model._flatten_layers()
        if not isinstance(x, L.InputLayer)
    ]


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def drawn(index, seed):
    """A mode for each layer."""
    draw = random.Random(seed)
    return {path: draw.choice(MODES) for path, e in index.items() if e.kind != "input"}


def cases(test):
    for name, values_of in {
        "seed": (0, 1, 2),
        "converted": (False, True),
        "policy": ("mixed_float16", "float16"),
        "make": MODELS,
    }.items():
        test = pytest.mark.parametrize(name, values_of)(test)
    return test


@pytest.mark.xslow_except(
    "0-True-mixed_float16-of_blocks",
    "0-True-mixed_float16-lazy",
    "0-True-mixed_float16-nested",
    "0-True-mixed_float16-Subclassed",
    "1-False-float16-lazy",
)
@pytest.mark.slow_except("0-True-mixed_float16-nested")
@cases
def test_random_modes_run_and_leave_no_trace(make, policy, converted, seed):
    model = built(make, policy, converted)
    index = ModelIndex(model)
    modes = drawn(index, seed)
    was, before = state(model), values(model)
    inputs = [x.dtype for x in index.layers]
    with precision_scope(index, modes):
        eager = values(model)
        assert all(np.all(np.isfinite(each)) for each in eager)
        traced = tf.function(lambda: model(X))()
        # The graph may fuse; each of some ten layers rounds to 2**-11.
        np.testing.assert_allclose(traced, eager[0], rtol=0.05, atol=0.05)
    assert state(model) == was and [x.dtype for x in index.layers] == inputs
    assert_equal(values(model), before)
    apply_modes(index, modes)
    assert_equal(values(model), eager)
    applied = modes_of(index)
    given = {p for p, m in modes.items() if m != "float16" and not index[p].recurrent}
    assert given <= applied.keys()
    with precision_scope(index, {}):
        assert_equal(values(model), before)
    assert modes_of(index) == applied
    assert_equal(values(model), eager)
    remove_modes(index)
    assert state(model) == was and modes_of(index) == {}
    assert [x.dtype for x in index.layers] == inputs
    assert_equal(values(model), before)


@pytest.mark.slow_except("functional", "of_blocks", "nested", "lazy")
@pytest.mark.parametrize("make", MODELS)
def test_fp32_for_all_is_the_model_made_in_fp32(make):
    expected = built(make, "float32")
    model = built(make, "mixed_float16")
    model.set_weights(expected.get_weights())
    index = ModelIndex(model)
    with precision_scope(index, dict.fromkeys(index, "float32")):
        assert_equal(values(model), values(expected))


@pytest.mark.parametrize("make", [functional, lazy, nested])
def test_no_modes_in_a_model_of_fp32_are_mixed_float16(make):
    expected = built(make, "mixed_float16")
    model = built(make, "float32")
    model.set_weights(expected.get_weights())
    with precision_scope(ModelIndex(model), {}):
        assert_equal(values(model)[:1], values(expected)[:1])


def cloned(model, _):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


def deep(model, _):
    return copy.deepcopy(model)


def loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


@pytest.mark.xslow_except("*-loaded-mixed_float16-0", "nested-cloned-float16-0")
@pytest.mark.slow_except("*-loaded-mixed_float16-0")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
@pytest.mark.parametrize("copied", [cloned, deep, loaded])
@pytest.mark.parametrize("make", [functional, of_blocks, lazy, nested])
def test_modes_of_a_copy_are_removed_and_applied_again(
    make, copied, policy, seed, tmp_path
):
    model = built(make, policy)
    index = ModelIndex(model)
    modes, before = drawn(index, seed), values(model)
    apply_modes(index, modes)
    planned = values(model)
    other = copied(model, tmp_path)
    assert all(np.all(np.isfinite(each)) for each in values(other))
    others = ModelIndex(other)
    remove_modes(others)
    remove_modes(index)
    names = [[policy for policy, _, _ in state(each)] for each in (model, other)]
    assert names[0] == names[1]
    assert_equal(values(other), before)
    apply_modes(others, {path: modes[path] for path in others if path in modes})
    assert_equal(values(other), planned)


def test_a_layer_in_a_graph_is_loaded_with_its_mode(tmp_path):
    model = built(lazy, "mixed_float16")
    apply_modes(ModelIndex(model), {"dense": "float16_matmul"})
    other = loaded(model, tmp_path)
    policy = other.layers[0].dtype_policy
    assert policy == PrecisionPolicy("float16_matmul", "mixed_float16", "float32")
    assert modes_of(ModelIndex(other)) == {"dense": "float16_matmul"}
    assert_equal(values(other), values(model))


def test_a_layer_in_code_is_loaded_without_its_mode(tmp_path):
    model = built(of_blocks, "mixed_float16")
    before = values(model)
    modes = {"a": "float32", "a/sequential/dense": "float32"}
    apply_modes(ModelIndex(model), modes)
    other = loaded(model, tmp_path)
    assert modes_of(ModelIndex(other)) == {}
    assert_equal(values(other), before)


def test_code_receives_one_dtype():
    """FP32 where it computes in that, and elsewhere what it received before."""
    model = built(Subclassed, "mixed_float16")
    index = ModelIndex(model)
    apply_modes(index, {"functional/dense_1": "float32"})
    last = model.net.layers[-1]
    assert last(X[..., :4]).dtype == "float32"
    assert model.net(X).dtype == "float16"
    assert model.attention(X, X).dtype == "float16"
    assert "call" not in vars(model.attention)
    remove_modes(index)
    apply_modes(index, {"subclassed": "float32"})
    received = [model.net, model.lazy, model.one, model.attention, model.rnn]
    for layer in received:
        args = (X, X) if layer is model.attention else (X,)
        assert layer(*args).dtype == "float32"
    assert last(X[..., :4]).dtype == "float16"


def test_all_code_that_calls_a_shared_layer_computes_in_fp32_or_none():
    model = built(Subclassed, "mixed_float16")
    index = ModelIndex(model)
    apply_modes(index, {"shares": "float32"})
    assert modes_of(index) == {"shares": "float32", "shares_1": "float32"}


UNITS = {
    "gru": ["gru", "gru/gru_cell"],
    "time_distributed": ["time_distributed", "time_distributed/dense"],
}


@pytest.mark.parametrize("name", UNITS)
def test_what_skips_the_casts_of_a_call_has_one_mode(name):
    model = built(functional, "mixed_float16")
    index = ModelIndex(model)
    for path in UNITS[name]:
        with precision_scope(index, {path: "float32"}):
            wide = [p for p, e in index.items() if e.layer.compute_dtype == "float32"]
            assert wide == UNITS[name]


class OwnCall(L.Layer):
    def call(self, x):
        return x


def test_a_call_that_was_replaced_on_a_layer_is_kept():
    layer = OwnCall(name="own")
    model = built(lambda: OwnerOf(layer), "mixed_float16")
    replaced = vars(layer)["call"] = lambda x: 3 * x
    index = ModelIndex(model)
    apply_modes(index, {"owner_of": "float32"})
    assert isinstance(vars(layer)["call"], CastResults)
    found = model(np.ones((1, 1), "float32"))
    assert found.dtype == "float32" and found.numpy() == 1 + 3
    remove_modes(index)
    assert vars(layer)["call"] is replaced


class OwnerOf(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.own, self.out = layer, L.Rescaling(1.0)

    def call(self, x):
        return x + self.out(self.own(x))


@pytest.mark.parametrize("mode", ["float16_matmul", "float32"])
def test_what_was_quantized_after_its_mode_keeps_its_policy(mode):
    """Its int8 kernel under `mixed_float16` would be wrong, without a word."""
    model = built(of_blocks, "mixed_float16")
    index = ModelIndex(model)
    apply_modes(index, {"a": "float32", "a/sequential/dense": mode})
    dense = index["a/sequential/dense"].layer
    expected = model(X)
    dense.quantize("int8", type_check=False)
    # 8 bits of a kernel: a 254th of its largest, and as much of the inputs.
    np.testing.assert_allclose(model(X), expected, atol=0.1)
    remove_modes(index)
    assert dense.quantization_mode == "int8" and dense.compute_dtype == "float32"
    np.testing.assert_allclose(model(X), expected, atol=0.1)


def test_policies_are_compared_hashed_and_printed():
    policy = PrecisionPolicy("float32", "mixed_float16", "float32")
    same = keras.dtype_policies.deserialize(keras.dtype_policies.serialize(policy))
    assert policy == same and hash(policy) == hash(same) and policy
    assert policy != PrecisionPolicy("float16_matmul", "mixed_float16", "float32")
    assert policy != keras.DTypePolicy("float32")
    assert "mode='float32'" in repr(policy) and "mixed_float16" in repr(policy)
