"""The precision in which diagnostics run a model, and what they leave of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs
from unchanged import unchanged

import keras_mp
from keras_mp import layers as mp_layers
from keras_mp.precision.batch import as_batch
from keras_mp.precision.compute_dtype import computing_in
from keras_mp.precision.convert import converted_in_modes
from keras_mp.precision.run import run_batch

L = keras.layers
X, Y = np.ones((2, 4), "float32"), np.ones((2, 1), "float32")


def sequential(*layers):
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse")
    return model


# Policies of the layers of a model; what each computes in, in FP32 and in FP16.
COMPUTE = {
    "float32": (["float32"] * 2, ["float32"] * 2, ["float16"] * 2),
    "float16": (["float16"] * 2, ["float32"] * 2, ["float16"] * 2),
    "mixed": (["mixed_float16"] * 2, ["float32"] * 2, ["float16"] * 2),
    "bfloat16": (["bfloat16"] * 2, ["float32"] * 2, ["float16"] * 2),
    "mixed-bfloat16": (["mixed_bfloat16"] * 2, ["float32"] * 2, ["float16"] * 2),
    "one-layer-in-fp32": (
        ["mixed_float16", "float32"],
        ["float32", "float32"],
        ["float16", "float32"],
    ),
    "of-products": (
        [keras_mp.Float16MatmulPolicy()] * 2,
        ["float32"] * 2,
        ["float32"] * 2,
    ),
    "of-products-stored-in-fp16": (
        [keras_mp.Float16MatmulPolicy(variable_dtype="float16"), "bfloat16"],
        ["float32"] * 2,
        ["float32", "float16"],
    ),
}


@pytest.mark.parametrize("name", COMPUTE)
def test_every_layer_computes_in_the_precision_of_the_run(name):
    policies, in_fp32, in_fp16 = COMPUTE[name]
    model = sequential(*(mp_layers.Dense(1, dtype=policy) for policy in policies))
    for dtype, expected in (("float32", in_fp32), ("float16", in_fp16)):
        with unchanged(model):
            with computing_in(model, dtype):
                assert [layer.compute_dtype for layer in model.layers] == expected
                if dtype == "float32":
                    assert "Float16Matmul" not in repr(model.layers[0].dtype_policy)
            found = run_batch(model, as_batch(X, Y, None), dtype=dtype)
        assert [call.outputs[0].dtype.name for call in found.calls[:2]] == expected


def test_products_of_fp16_are_run_as_they_are_in_fp16():
    policy = keras_mp.Float16MatmulPolicy()
    dense = mp_layers.Dense(1, "linear", False, "ones", dtype=policy)
    model = sequential(dense)
    x = np.full((2, 4), 1 + 2.0**-12, "float32")
    outputs = {
        dtype: run_batch(model, as_batch(x, Y, None), dtype=dtype).predictions.numpy()[
            0, 0
        ]
        for dtype in ("float32", "float16", None)
    }
    assert outputs == {"float32": 4 * (1 + 2.0**-12), "float16": 4.0, None: 4.0}
    assert keras_mp.inspect(model, x * 2e4, Y).output_error < 2.0**-11


def mapped(path, policy):
    policies = keras.dtype_policies.DTypePolicyMap("mixed_float16")
    policies[path] = policy
    return policies


@pytest.mark.parametrize("path", ["first", "first/.*", "second"])
def test_maps_of_policies_keep_their_content(path):
    policies = mapped(path, "bfloat16")
    first = L.Dense(3, dtype=policies, name="first")
    model = sequential(first, L.Dropout(0.5, dtype=policies), L.Dense(1, name="second"))
    before = keras.saving.serialize_keras_object(policies)
    with unchanged(model):
        keras_mp.inspect(model, X, Y)
        keras_mp.find_overflow(model, X, Y)
    assert first.dtype_policy is policies
    assert keras.saving.serialize_keras_object(policies) == before


QUANTIZED = {
    "int8": ("float32", "bfloat16"),
    "float8": ("float32", "mixed_float16", "float16", "bfloat16"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "policy"), [(mode, each) for mode in QUANTIZED for each in QUANTIZED[mode]]
)
def test_quantized_layers(mode, policy):
    keras.config.set_dtype_policy(policy)
    dense = L.Dense(4)
    model = sequential(dense, L.Dense(1, name="head"))
    dense.quantize(mode)
    if mode == "int8":
        dense.enable_lora(2)
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse")
    with unchanged(model):
        report = keras_mp.inspect(model, X, Y)
        keras_mp.find_overflow(model, X, Y)
        found = run_batch(model, as_batch(X, Y, None), dtype="float32")
    assert found.calls[0].outputs[0].dtype == "float32"
    trained = [e.path.rpartition("/")[2] for e in report.of_kind("weight_gradient")]
    # What FP8 puts in the place of gradients, scales and largest magnitudes, is none.
    expected = {"int8": ["bias", "lora_kernel_a", "lora_kernel_b"]}
    assert sorted(trained[:-2]) == expected.get(mode, ["bias", "kernel"])


class InAFunction(keras.Model):
    """Its call is a graph of its own."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1, name="dense")

    @tf.function
    def call(self, x):
        return self.dense(x)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.built = True


@pytest.mark.parametrize("was_run", [False, True])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "bfloat16"])
def test_graphs_of_before_are_not_run_and_none_is_left(policy, was_run):
    keras.config.set_dtype_policy(policy)
    model = InAFunction()
    model.build((2, 4))
    model.compile("sgd", "mse")
    if was_run:
        model(X)
    with unchanged(model):
        report = keras_mp.inspect(model, X, Y)
    assert [e.path for e in report.of_kind("activation")] == ["dense"]
    assert len(report.of_kind("weight_gradient")) == 2
    assert not tf.config.functions_run_eagerly()
    # A graph that kept the weights of then would not see those of now.
    model.dense.kernel.assign(np.zeros((4, 1)))
    np.testing.assert_array_equal(model(X), np.zeros((2, 1)))


class Rematerialized(L.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = L.Dense(3, "relu", name="dense")

    def call(self, x):
        return keras.remat(self.dense)(x)


def in_a_scope():
    with keras.RematScope(mode="full"):
        return L.Dense(3, "relu", name="rematerialized")


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float16"])
@pytest.mark.parametrize("make", [Rematerialized, in_a_scope])
def test_layers_that_compute_again_for_their_gradient(make, policy):
    keras.config.set_dtype_policy(policy)
    model = sequential(make(), L.Dense(1))
    plain = sequential(L.Dense(3, "relu"), L.Dense(1))
    plain.set_weights(model.get_weights())
    for dtype in ("float32", "float16", None):
        with unchanged(model):
            found = run_batch(model, as_batch(X, Y, None), dtype=dtype)
        expected = run_batch(plain, as_batch(X, Y, None), dtype=dtype)
        pairs = zip(found.weight_gradients, expected.weight_gradients, strict=True)
        for (_, gradient), (_, reference) in pairs:
            np.testing.assert_array_equal(gradient, reference)


class Penalty(L.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


def with_penalties():
    penalized = L.Dense(
        *(3, "linear", False, "ones"),
        kernel_regularizer=keras.regularizers.L1(1.0),
        activity_regularizer=keras.regularizers.L2(0.25),
    )
    return sequential(penalized, Penalty(), L.Dense(1, "linear", False, "zeros"))


@needs("Keras", 3, 14)  # the mean over a batch
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float16", "bfloat16"])
def test_penalties_of_every_precision_are_added(policy):
    keras.config.set_dtype_policy(policy)
    model = with_penalties()
    model.compile("sgd", "mse")
    with unchanged(model):
        for _ in range(3):
            report = keras_mp.inspect(model, X, Y)
    # The error of 1; 12 weights of 1; a quarter of the squares of 3 outputs of 4, a
    # sample; the sum of these outputs of 2 samples.
    assert report.loss == report.fp16_loss == 1 + 12 + 12 + 24


class OwnLoss(keras.Sequential):
    def compute_loss(self, x, targets, outputs, weights):
        return keras.ops.sum(keras.ops.subtract(outputs, targets))


def test_a_loss_of_another_signature():
    model = OwnLoss([keras.Input((4,)), L.Dense(1, "linear", False, "ones")])
    model.compile("sgd")
    assert keras_mp.inspect(model, X, Y).loss == 2 * (4 - 1)


class Residual(L.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = L.Dense(4, name="inner")

    def call(self, x):
        return x + self.inner(x)


def test_layers_that_a_plan_rounds_return_fp32_in_fp32():
    keras.config.set_dtype_policy("mixed_float16")
    model = sequential(Residual(name="block"), L.Dense(1, name="head"))
    with (
        converted_in_modes(model, {"block/inner": "float32"}),
        unchanged(model),
    ):
        for dtype in ("float32", "float16"):
            found = run_batch(model, as_batch(X, Y, None), dtype=dtype)
            outputs = [tensor for call in found.calls for tensor in call.outputs]
            assert {tensor.dtype.name for tensor in outputs} == {dtype}


class WithTable(keras.layers.Layer):
    """Makes a table in its compute dtype when it is built."""

    def build(self, shape):
        self.table = keras.ops.cast(keras.ops.arange(shape[-1]) / 3, self.compute_dtype)
        self.tables = {"of both": self.table}
        self.built = True

    def call(self, x):
        return x * keras.ops.cast(self.table, x.dtype)


CACHES = {"mixed_float16": 2, "mixed_bfloat16": 2, "float32": 0}


@pytest.mark.parametrize("policy", CACHES)
def test_a_tensor_that_a_layer_has_made_before_is_named(policy):
    keras.config.set_dtype_policy(policy)
    norm = keras.layers.Normalization(mean=0.0, variance=1.0)
    layers = [norm, WithTable(name="own"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("sgd", "mse")
    x = np.ones((2, 3), "float32")
    notes = [n for n in keras_mp.inspect(model, x, x[:, :1]).notes if "'own'" in n]
    assert len(notes) == CACHES[policy]
    if policy == "mixed_float16":
        assert notes[0].startswith(
            "'own' keeps a float16 tensor, its attribute 'table'"
        )
        plan = keras_mp.plan_precision(model, x, x[:, :1])
        assert list(plan.notes) == notes
