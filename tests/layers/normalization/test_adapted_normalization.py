"""Normalization of features whose sizes 16 bits do not hold."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp import layers
from keras_mp.precision.batch import as_batch
from keras_mp.precision.run import run_batch

POLICIES = ("mixed_float16", "float16", "mixed_bfloat16", "bfloat16")
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half of the spacing above 1
RNG = np.random.default_rng(0)
# Beyond 65,504; a variance beyond it; a variance below the smallest number of FP16; and
# features that differ by less than FP16 can tell apart.
FEATURES = {
    "large": RNG.lognormal(12, 1, (64, 3)),
    "large variance": RNG.normal(0, 3e3, (64, 3)),
    "small": RNG.normal(3e-5, 1e-5, (64, 3)),
    "close": RNG.normal(2000, 0.1, (64, 3)),
}
FEATURES = {name: x.astype("float32") for name, x in FEATURES.items()}


def normalized(x, axis):
    """In float64, of the statistics that `adapt` stores."""
    mean, variance = (f(x, axis=axis, keepdims=True) for f in (np.mean, np.var))
    x, mean, variance = (each.astype("float64") for each in (x, mean, variance))
    return (x - mean) / np.sqrt(variance)


def assert_rounded_once(found, expected):
    """FP32 rounds the difference, the root, and the quotient."""
    assert found.dtype.name in UNIT
    tolerance = UNIT[found.dtype.name] + 4 * 2.0**-24
    found = keras.ops.convert_to_numpy(keras.ops.cast(found, "float64"))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=2.0**-25)


def eager(layer, x):
    return layer(x)


def traced(layer, x):
    return tf.function(layer)(tf.constant(x))


def compiled_by_xla(layer, x):
    return tf.function(layer, jit_compile=True)(tf.constant(x))


def mapped(layer, x):
    """In a pipeline of `tf.data`."""
    data = tf.data.Dataset.from_tensor_slices(x).batch(7).map(layer)
    return tf.concat([*data], 0)


WAYS = (eager, traced, compiled_by_xla, mapped)


@pytest.mark.slow_except("*-mapped-*")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("call", WAYS)
@pytest.mark.parametrize("name", FEATURES)
def test_features_are_rounded_once_after_they_were_normalized(name, call, policy):
    x = FEATURES[name]
    layer = layers.Normalization(dtype=policy)
    layer.adapt(x)
    assert layer.adapt_mean.dtype == layer.adapt_variance.dtype == "float32"
    assert_rounded_once(call(layer, x), normalized(x, 0))


AXES = {
    "last": (-1, [2e5, 4.0], [1e10, 4.0]),
    "none": (None, 2e5, 1e10),
    "two": ((1, 2), [[2e5, 4.0]], [[1e10, 4.0]]),
    "the last of two": ((1, 2), [2e5, 4.0], [1e10, 4.0]),
}


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("name", AXES)
def test_given_statistics_broadcast_as_those_of_keras(name, invert):
    axis, mean, variance = AXES[name]
    x = np.array([[[3e5, 5.0]], [[1e5, 3.0]]], "float32") / (1e5 if invert else 1)
    arguments = {"axis": axis, "mean": mean, "variance": variance, "invert": invert}
    expected = keras.layers.Normalization(**arguments, dtype="float32")(x)
    same = layers.Normalization(**arguments, dtype="float32")(x)
    np.testing.assert_array_equal(same, expected)
    found = layers.Normalization(**arguments, dtype="mixed_bfloat16")(x)
    np.testing.assert_array_equal(found, keras.ops.cast(expected, "bfloat16"))


def batches(x):
    return tf.data.Dataset.from_tensor_slices(x).batch(16)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("data", [np.asarray, tf.constant, batches])
def test_adapt_computes_in_fp32(data, policy):
    x = FEATURES["large"]
    layer = layers.Normalization(dtype=policy)
    before = layer.dtype_policy
    layer.adapt(data(x))
    assert layer.dtype_policy is before
    # A sum of 64 numbers, and as many roundings.
    np.testing.assert_allclose(layer.adapt_mean, x.mean(0), rtol=64 * 2.0**-24)
    np.testing.assert_allclose(layer.adapt_variance, x.var(0), rtol=64 * 2.0**-23)


def test_integers_are_normalized_too():
    layer = layers.Normalization(mean=70_000, variance=4.0, dtype="mixed_float16")
    assert layer(np.array([[70_002, 69_996]])).numpy().tolist() == [[1.0, -2.0]]


def model_of(policy, lazily=False, features="large"):
    """A model whose Normalization of Keras is adapted to features."""
    keras.config.set_dtype_policy(policy)
    x = FEATURES[features]
    norm = keras.layers.Normalization(name="norm")
    norm.adapt(x)
    beside = keras.layers.Normalization(
        mean=x.mean(0), variance=x.var(0), name="beside"
    )
    if lazily:
        model = keras.Sequential([norm, keras.layers.Dense(1, name="out")])
        model.build((None, 3))
    else:
        inputs = keras.Input((3,))
        total = keras.layers.Add()([norm(inputs), beside(inputs)])
        model = keras.Model(inputs, keras.layers.Dense(1, name="out")(total))
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse", jit_compile=False)
    return model, x, np.ones((64, 1), "float32")


@pytest.mark.parametrize("lazily", [False, True])
def test_convert_and_to_keras_keep_the_statistics(lazily, tmp_path):
    model, x, y = model_of("mixed_float16", lazily)
    assert not np.all(np.isfinite(model.predict(x, verbose=0)))
    keras_mp.convert(model)
    norm = model.get_layer("norm")
    assert type(norm) is layers.Normalization
    assert_rounded_once(norm(x), normalized(x, 0))
    outputs = model.predict(x, verbose=0)
    assert np.all(np.isfinite(outputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), outputs)
    model.fit(x, y, verbose=0)
    assert int(model.optimizer.skipped_steps) == 0
    keras_mp.to_keras(model)
    assert type(norm) is keras.layers.Normalization
    assert norm(np.float32([[0.0, 1.0, 2.0]])).dtype == "float16"


def test_diagnostics_of_a_model_of_keras_are_those_of_fp32():
    model, x, y = model_of("mixed_float16")
    before = {layer: layer.mean for layer in model.layers[1:3]}
    found = run_batch(model, as_batch(x, y, None), dtype="float32")
    assert all(layer.mean is mean for layer, mean in before.items())
    expected = normalized(x, 0)
    for call in found.calls[:2]:
        np.testing.assert_allclose(
            call.outputs[0], expected, rtol=8 * 2.0**-24, atol=2.0**-23
        )
    assert keras_mp.find_overflow(model, x, y).path == "norm"


def test_a_plan_is_not_wider_for_large_features():
    model, x, y = model_of("mixed_float16")
    plan = keras_mp.plan_precision(model, x, y)
    assert plan.precisions == {} and not plan.notes
    assert np.all(np.isfinite(plan.apply(model).predict(x, verbose=0)))


def test_statistics_that_keras_has_rounded_are_named():
    model, x, _ = model_of("float16", features="small")
    with pytest.warns(UserWarning, match=r"'norm'.*float16.*`adapt` again"):
        keras_mp.convert(model)
    norm = model.get_layer("norm")
    norm.adapt(x)
    assert_rounded_once(norm(x), normalized(x, 0))


def test_statistics_are_replaced_under_an_optimizer_that_is_built():
    keras.config.set_dtype_policy("float16")
    norm = keras.layers.Normalization(name="norm")
    model = keras.Sequential([keras.Input((3,)), norm, keras.layers.Dense(1)])
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse", jit_compile=False)
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))
    keras_mp.convert(model)
    assert norm.adapt_mean.dtype == "float32"
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))
