"""LSTM and GRU: tests beyond those of tests/layers/test_contract.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mp import layers

EACH = pytest.mark.parametrize("name", ["LSTM", "GRU"])
PACKAGES = (keras.layers, layers)


def inputs(batch=2, steps=5, features=3):
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (batch, steps, features)).astype("float16")


def same_weights(made, bound=0.5):
    """Gives built layers the same weights, small enough that errors do not grow."""
    rng = np.random.default_rng(1)
    weights = [rng.uniform(-bound, bound, w.shape) for w in made[0].weights]
    for layer in made:
        layer.set_weights(weights)


@pytest.mark.slow_except("dropout-recurrent_dropout-LSTM")
@EACH
@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.5},
        {"dropout": 0.5, "implementation": 1},
        {"dropout": 0.5, "recurrent_dropout": 0.5},
        {"recurrent_dropout": 0.5, "reset_after": False},
    ],
    ids=lambda options: "-".join(options),
)
def test_dropout_has_the_masks_of_keras(name, options):
    if name == "LSTM":
        options = {key: value for key, value in options.items() if key != "reset_after"}
    # Without cuDNN: Keras's route to it takes the masks of `implementation=1` for one.
    made = [
        getattr(package, name)(
            7, seed=1, dtype="mixed_float16", use_cudnn=False, **options
        )
        for package in PACKAGES
    ]
    for layer in made:
        layer.build((2, 5, 3))
    same_weights(made)
    theirs, ours = (layer(inputs(), training=True) for layer in made)
    # Another mask moves an output by 0.1 and more. Keras rounds each product and sum
    # of a step, about 12; of values below 2.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5 * 12 * 2 * 2.0**-11)
    assert np.any(np.abs(ours - made[1](inputs())) > 0.05)


@EACH
def test_states_are_carried_and_reset(name):
    layer = getattr(layers, name)(
        7, stateful=True, return_sequences=True, dtype="mixed_float16"
    )
    x = inputs()
    whole = layer(x)
    layer.reset_state()
    parts = [layer(x[:, :2]), layer(x[:, 2:])]
    # The same states, rounded at the same places.
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    assert all(state.dtype == "float32" for state in layer.states)


@EACH
def test_the_gradient_of_a_step_from_a_state_that_was_carried(name):
    options = {"stateful": True, "use_cudnn": False}
    ours = getattr(layers, name)(7, dtype="mixed_float16", **options)
    keras_s = getattr(keras.layers, name)(7, dtype="float32", **options)
    x = inputs()
    gradients = []
    for layer in (keras_s, ours):
        layer(x)
        if layer is ours:
            layer.set_weights(keras_s.get_weights())
            layer.reset_state()
            layer(x)
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.cast(layer(x), "float32") ** 2)
        gradients.append(tape.gradient(y, layer.trainable_variables))
    for expected, actual in zip(*gradients, strict=True):
        assert actual.dtype == "float32"
        # States and outputs are rounded: a few 2^-11 of the largest.
        atol = 2**-7 * np.max(np.abs(expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "activation",
    [
        lambda x: keras.ops.softmax(x, axis=1),
        lambda x: x - keras.ops.mean(x, axis=1, keepdims=True),
        keras.layers.PReLU(),
    ],
    ids=["softmax", "mean", "layer"],
)
@pytest.mark.parametrize("reset_after", [False, True])
def test_gates_are_given_to_an_activation_one_by_one(activation, reset_after):
    options = {"recurrent_activation": activation, "reset_after": reset_after}
    keras_s = keras.layers.GRUCell(3, dtype="float32", **options)
    ours = layers.GRUCell(3, dtype="mixed_float16", **options)
    x, h = inputs()[:, 0], np.full((len(inputs()), 3), 0.25, "float16")
    for cell in (keras_s, ours):
        cell(x, [h])
    ours.set_weights(keras_s.get_weights())
    expected, _ = keras_s(np.float32(x), [np.float32(h)])
    actual, _ = ours(x, [h])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2**-8)


@EACH
def test_an_initial_state(name):
    layer = getattr(layers, name)(7, return_state=True, dtype="mixed_float16")
    _, *states = layer(inputs()[:, :2])
    found, *_ = layer(inputs()[:, 2:], initial_state=states)
    np.testing.assert_array_equal(found, layer(inputs())[0])


@EACH
def test_cudnn_that_is_asked_for_is_refused_as_in_keras(name):
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("needs a machine without a GPU")
    layer = getattr(layers, name)(2, use_cudnn=True, dtype="mixed_float16")
    with pytest.raises(ValueError, match="use_cudnn=True"):
        layer(inputs())


@EACH
def test_small_gradients_of_the_kernel_are_not_flushed(name):
    # About 2**-15 * 2**-10 / 4: less than half of the smallest FP16 number, 2**-24.
    x = tf.fill((1, 1, 1), tf.constant(2.0**-15, "float16"))
    found = []
    for package, dtype in ((keras.layers, "mixed_float16"), (layers, "mixed_float16")):
        layer = getattr(package, name)(1, kernel_initializer="ones", dtype=dtype)
        layer.build(x.shape)
        layer.cell.recurrent_kernel.assign(tf.ones_like(layer.cell.recurrent_kernel))
        with tf.GradientTape() as tape:
            y = tf.cast(layer(x), "float32") * 2.0**-10
        found.append(tape.gradient(y, layer.cell.kernel.value).numpy())
    theirs, ours = found
    assert ours.dtype == np.float32
    assert np.all(theirs == 0) and np.max(np.abs(ours)) > 2.0**-28


@pytest.mark.slow_except("GRU")
@EACH
def test_the_recurrent_gradient_is_summed_over_time_in_fp32(name):
    # In FP16 each of the 48 steps would add a rounding of the sum.
    x = np.ones((1, 48, 1), "float16")
    found = []
    for package, dtype in ((keras.layers, "float64"), (layers, "float16")):
        layer = getattr(package, name)(1, return_sequences=True, dtype=dtype)
        layer.build(x.shape)
        layer.set_weights([np.full(w.shape, 0.25) for w in layer.weights])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(x), "float64")) / 48
        found.append(tape.gradient(loss, layer.cell.recurrent_kernel.value).numpy())
    expected, ours = found
    # At each step h and the slope are rounded, which the recurrence (its gain is below
    # 1/2) at most doubles; at the end there is one rounding to FP16.
    atol = 6 * 2.0**-11 * np.max(np.abs(expected))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=atol)


@pytest.mark.slow
@EACH
def test_inside_of_keras_wrappers(name):
    results = []
    for package in PACKAGES:
        keras.utils.set_random_seed(0)
        cell = getattr(package, f"{name}Cell")
        policy = {"dtype": "mixed_float16"}
        model = keras.Sequential(
            [
                keras.Input((5, 3)),
                keras.layers.Bidirectional(
                    getattr(package, name)(3, return_sequences=True, **policy), **policy
                ),
                keras.layers.RNN([cell(4, **policy), cell(2, **policy)], **policy),
            ]
        )
        model.set_weights([np.full(w.shape, 0.125) for w in model.weights])
        results.append(model(inputs(), training=True).numpy())
    assert results[0].dtype == results[1].dtype == np.float16
    # 15 steps on the way, about 12 roundings in each, of values below 1.
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=15 * 12 * 2.0**-11)
