"""Weights whose FP32 masters FP16 does not hold: a plan stores them in FP32."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_mp
from keras_mp.optimizer.properties import exchange_weights
from keras_mp.precision.precision_plan import LayerPlan

L = keras.layers
X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32") / 1024
Y = X[:, :1] * 1024


@keras.saving.register_keras_serializable("beyond")
class Owner(L.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = L.Dense(4, dtype=self.dtype_policy, name="inner")

    def build(self, shape):
        self.inner.build(shape)
        self.built = True

    def call(self, x):
        return self.inner(x) + x


@keras.saving.register_keras_serializable("beyond")
class Listed(L.Layer):
    """Keeps its weight in a list, a dict or a tuple."""

    def __init__(self, container=list, **options):
        super().__init__(**options)
        self.container = container

    def build(self, shape):
        kernel = self.add_weight(shape=(4, 4), name="kernel")
        kept = {list: [kernel], dict: {"a": kernel}, tuple: (kernel,)}
        self.kernels = kept[self.container]

    def call(self, x):
        values = self.kernels
        (kernel,) = values.values() if self.container is dict else values
        return keras.ops.matmul(x, kernel)


@keras.saving.register_keras_serializable("beyond")
class Tied(L.Layer):
    """Multiplies with the kernel of another layer, which is its own attribute, too."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = L.Dense(4, use_bias=False, name="first")

    def build(self, shape):
        self.first.build(shape)
        self.kernel = self.first.kernel

    def call(self, x):
        return self.first(x) + keras.ops.matmul(x, keras.ops.transpose(self.kernel))


CASES = {  # the layer, and the path of the one whose kernel is large
    "dense": (lambda: L.Dense(4, name="large"), "large"),
    "einsum": (lambda: L.EinsumDense("ab,bc->ac", 4, name="large"), "large"),
    "code": (lambda: Owner(name="large"), "large/inner"),
    "nested": (
        lambda: keras.Sequential([L.Dense(4, name="inner")], name="large"),
        "large/inner",
    ),
    "list": (lambda: Listed(name="large"), "large"),
    "dict": (lambda: Listed(dict, name="large"), "large"),
    "tied": (lambda: Tied(name="large"), "large/first"),
    "recurrent": (
        lambda: keras.Sequential(
            [L.Reshape((2, 2)), L.SimpleRNN(4, activation=None, name="rnn")],
            name="large",
        ),
        "large/rnn",
    ),
    "wrapped": (
        lambda: keras.Sequential(
            [
                L.Reshape((2, 2)),
                L.TimeDistributed(L.Dense(2), name="each"),
                L.Flatten(),
            ],
            name="large",
        ),
        "large/each",
    ),
}


def network(name, policy):
    keras.config.set_dtype_policy(policy)
    layers = [CASES[name][0](), L.Rescaling(1 / 64), L.Dense(1, name="out")]
    model = keras.Sequential([keras.Input((4,), name="x"), *layers], name="network")
    rng = np.random.default_rng(0)  # of numbers that FP16 has, too
    model.set_weights([rng.integers(-8, 9, w.shape) / 16 for w in model.weights])
    return model


def compiled(model):
    optimizer = keras.optimizers.SGD(2.0**-8)
    model.compile(keras_mp.wrap(optimizer, loss_scale=1.0), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def enlarge(model):
    """Multiplies the kernel of the inner layer, up to beyond 65,504."""
    weights = model.trainable_variables
    with model.optimizer.fp32_weights(weights) as masters:
        pairs = zip(weights, masters, strict=True)
        (master,) = (m for w, m in pairs if w.name == "kernel" and "out" not in w.path)
        values = master.numpy() * 2.0**18
        assert np.abs(values).max() > 65504
        master.assign(values)
    return values


def large_kernel(model):
    kernels = [w for w in model.trainable_variables if w.name == "kernel"]
    return next(w for w in kernels if "out" not in w.path)


def fit(model):
    history = model.fit(X, Y, 16, epochs=5, shuffle=False, verbose=0)
    return np.asarray(history.history["loss"])


@pytest.mark.slow
@pytest.mark.xslow_except("recurrent", "tied", "dense")
@pytest.mark.parametrize("name", CASES)
def test_they_are_stored_in_fp32(name, tmp_path):
    exact = compiled(network(name, "float32"))
    start = enlarge(exact)

    model = compiled(network(name, "float16"))
    np.testing.assert_array_equal(enlarge(model), start)
    assert np.abs(large_kernel(model).numpy()).max() == 65504
    plan = keras_mp.plan_precision(model, X, Y)
    path = CASES[name][1]
    assert path in [each.path for each in plan.layers if each.fp32_weights]
    assert plan.notes == ()
    assert plan.gradient_error < 0.02
    assert "weights stored in FP32" in str(plan)
    assert large_kernel(model).dtype == "float16"  # nothing is changed yet

    plan.save(tmp_path / "plan.json")
    keras_mp.PrecisionPlan.load(tmp_path / "plan.json").apply(model)
    assert large_kernel(model).dtype == "float32"
    np.testing.assert_array_equal(large_kernel(model), start)
    np.testing.assert_allclose(fit(model), fit(exact), rtol=0.01)
    assert int(model.optimizer.skipped_steps) == 0

    values = large_kernel(model).numpy()
    keras_mp.to_keras(model)
    np.testing.assert_array_equal(large_kernel(model), values)


def test_the_file_of_a_planned_model_holds_them(tmp_path):
    model = compiled(network("dense", "float16"))
    start = enlarge(model)
    keras_mp.plan_precision(model, X, Y).apply(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(large_kernel(loaded), start)
    np.testing.assert_array_equal(loaded(X), model(X))

    plain = keras_mp.to_keras(loaded)
    assert plain.get_layer("large").dtype_policy.name == "mixed_float16"


def test_an_optimizer_that_cannot_store_them_is_named():
    """And the plan that the model has stays as it is."""
    model = compiled(network("dense", "float16"))
    enlarge(model)
    plan = keras_mp.plan_precision(model, X, Y)
    other = network("dense", "float16")
    other.compile("sgd", "mse")
    other.optimizer.build(other.trainable_variables)
    layers = [each for each in plan.layers if not each.fp32_weights]
    keras_mp.PrecisionPlan(tuple(layers), 1.0, 0.0, 4.0).apply(other)
    before = [layer.dtype_policy for layer in other.layers]
    with pytest.raises(ValueError, match=r"FP32 weights.*a built SGD.*`compile`"):
        plan.apply(other)
    assert [layer.dtype_policy for layer in other.layers] == before


def test_a_weight_that_cannot_be_exchanged_is_named(monkeypatch):
    case = (lambda: Listed(tuple, name="large"), "large")
    monkeypatch.setitem(CASES, "tuple", case)
    model = compiled(network("tuple", "float16"))
    enlarge(model)
    plan = keras_mp.plan_precision(model, X, Y)
    with pytest.raises(ValueError, match="'network/large/kernel' in 'large'"):
        plan.apply(model)


@pytest.mark.parametrize("mode", ["scaled_float16_matmul", "float32"])
def test_the_callback_stores_them_though_no_precision_changes(mode):
    model = compiled(network("dense", "float16"))
    before = keras_mp.plan_precision(model, X, Y)
    layers = [LayerPlan("large", mode, "by hand", 0)]
    dataclasses.replace(before, layers=tuple(layers)).apply(model)
    values = enlarge(model)
    callback = keras_mp.PrecisionPlanCallback(patience=1)
    callback.set_model(model)
    with pytest.warns(UserWarning, match=r"applied; .*What has changed: large"):
        callback._extend((X, Y), streak=1)
    assert large_kernel(model).dtype == "float32"
    np.testing.assert_array_equal(large_kernel(model), values)


def test_a_quantized_layer_keeps_its_policy():
    model = compiled(network("dense", "float16"))
    model.get_layer("large").quantize("int4")
    model = compiled(model)
    weights = [model.get_layer("large").bias]
    with model.optimizer.fp32_weights(weights) as [bias]:
        bias.assign(2.0**17 * np.ones(bias.shape))
    policy = model.get_layer("large").dtype_policy
    plan = keras_mp.plan_precision(model, X, Y)
    assert not any(each.fp32_weights for each in plan.layers)
    plan.apply(model)
    assert model.get_layer("large").dtype_policy == policy


@pytest.mark.parametrize("excluded", [False, True], ids=["decayed", "excluded"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"masters": "remainders"},
        {"masters": "remainders", "state": keras_mp.Int8State(1, 1)},
        {"masters": "int8_remainders", "state": keras_mp.Int4State(1, 1)},
    ],
    ids=["masters", "remainders", "remainders-int8", "int8-remainders-int4"],
)
def test_weight_decay_is_for_the_same_ones(options, excluded):
    """Zero gradients: the step only decays."""
    weight = keras.Variable(np.ones((2, 2)), dtype="float16")
    inner = keras.optimizers.SGD(1.0, momentum=0.5, weight_decay=0.5)
    optimizer = keras_mp.wrap(inner, loss_scale=1.0, **options)
    if excluded:
        optimizer.exclude_from_weight_decay(var_list=[weight])
    optimizer.build([weight])
    fp32 = keras.Variable(np.zeros((2, 2)), dtype="float32")
    exchange_weights(optimizer, {id(weight): fp32})
    optimizer.apply([keras.ops.zeros((2, 2))], [fp32])
    np.testing.assert_array_equal(fp32, np.full((2, 2), 1.0 if excluded else 0.5))
