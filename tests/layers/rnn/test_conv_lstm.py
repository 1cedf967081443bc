"""The ConvLSTMs: sums that FP16 does not have, and what the contract's table leaves."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp import layers

RANKS = pytest.mark.parametrize("rank", [1, 2, 3])
POLICIES = pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
PACKAGES = (keras.layers, layers)


def made(rank, package=layers, policy="mixed_float16", **options):
    options = {"recurrent_initializer": "glorot_uniform"} | options
    return getattr(package, f"ConvLSTM{rank}D")(dtype=policy, **options)


def inputs(rank=2, steps=3):
    rng = np.random.default_rng(0)
    shape = (2, steps, *(4, 3, 2)[:rank], 2)
    return rng.uniform(-1, 1, shape).astype("float16")


def same_weights(made):
    rng = np.random.default_rng(1)
    weights = [rng.uniform(-0.5, 0.5, w.shape) for w in made[0].weights]
    for layer in made:
        layer.set_weights(weights)


# A kernel for each of two channels, which are 1; a recurrent one for each of two
# filters, which are 1 before the first step; and a bias. Each sum is 1.
SUMS = {
    # In FP16 2049 is 2048.
    "bias": ([2048, 1], [0, 0], -2048),
    "states": ([2048, 1], [-1024, -1024], 0),
    # In FP16 the first sum is inf, and the second -inf.
    "overflow": ([6e4, 6e4], [-6e4, -6e4], 1),
}


def last_state(rank, package, policy, kernels, bias):
    layer = made(rank, package, policy, filters=2, kernel_size=1)
    ones = np.ones((1, *[2] * rank, 2))
    layer.build((1, 1, *ones.shape[1:]))
    columns = [np.tile(np.reshape(kernel, (2, 1)), 8) for kernel in kernels]
    layer.set_weights(
        [np.reshape(column, (*[1] * rank, 2, 8)) for column in columns]
        + [np.full(8, bias)]
    )
    ones = tf.constant(ones, layer.compute_dtype)
    return layer(ones[:, None], initial_state=[ones, tf.zeros_like(ones)])


@pytest.mark.slow_except("*-mixed_float16-1")
@RANKS
@POLICIES
@pytest.mark.parametrize(("kernel", "recurrent", "bias"), SUMS.values(), ids=SUMS)
def test_gates_of_sums_without_an_fp16_number(kernel, recurrent, bias, policy, rank):
    arguments = ((kernel, recurrent), bias)
    exact = last_state(rank, keras.layers, "float64", *arguments)
    ours = last_state(rank, layers, policy, *arguments)
    theirs = last_state(rank, keras.layers, policy, *arguments)
    gate = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(exact, gate * np.tanh(gate * np.tanh(1)), rtol=1e-12)
    assert ours.dtype == tf.float16
    # One rounding of a number below 1/2, and few of FP32.
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2.0**-13 + 16 * 2.0**-24)
    assert not np.any(np.abs(np.float64(theirs) - exact) < 0.1)


def test_sums_of_bfloat16_are_not_rounded():
    # In bfloat16 257 is 256; oneDNN rounds each convolution, where it does them.
    arguments = (([256, 1], [-128, -128]), 0)
    exact = last_state(2, keras.layers, "float64", *arguments)
    ours = last_state(2, layers, "mixed_bfloat16", *arguments)
    np.testing.assert_allclose(
        np.float64(ours), exact, rtol=0, atol=2.0**-10 + 2.0**-20
    )


@pytest.mark.slow
@POLICIES
def test_gradients_are_summed_over_time_in_fp32(policy):
    # In FP16 each of the 48 steps would add a rounding of the sum.
    x = np.ones((1, 48, 2, 1), "float16")
    found = []
    for package, dtype in ((keras.layers, "float64"), (layers, policy)):
        layer = made(1, package, dtype, filters=1, kernel_size=1, return_sequences=True)
        layer.build(x.shape)
        layer.set_weights([np.full(w.shape, 0.25) for w in layer.weights])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(x), "float64")) / 48
        found.append(tape.gradient(loss, layer.trainable_variables))
    for expected, ours in zip(*found, strict=True):
        # At each step h and the slope are rounded, which the recurrence (its gain is
        # below 1/2) at most doubles; at the end there is one rounding to FP16.
        atol = 6 * 2.0**-11 * np.max(np.abs(expected))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=atol)


def test_small_gradients_of_the_kernels_are_not_flushed():
    # About 2**-15 * 2**-10 / 4: less than half of the smallest FP16 number, 2**-24.
    x = tf.fill((1, 1, 1, 1), tf.constant(2.0**-15, "float16"))
    found = []
    for package in PACKAGES:
        layer = made(1, package, filters=1, kernel_size=1, kernel_initializer="ones")
        layer.build(x.shape)
        with tf.GradientTape() as tape:
            y = tf.cast(layer(x), "float32") * 2.0**-10
        found.append(tape.gradient(y, layer.cell.kernel.value).numpy())
    theirs, ours = found
    assert ours.dtype == np.float32
    assert np.all(theirs == 0) and np.max(np.abs(ours)) > 2.0**-28


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.5}, {"recurrent_dropout": 0.5}],
    ids=lambda options: "-".join(options),
)
@RANKS
def test_dropout_has_the_masks_of_keras(rank, options):
    layer_options = {"filters": 3, "kernel_size": 2, "padding": "same", "seed": 1}
    pair = [made(rank, package, **layer_options, **options) for package in PACKAGES]
    x = inputs(rank)
    for layer in pair:
        layer.build(x.shape)
    same_weights(pair)
    theirs, ours = (layer(x, training=True) for layer in pair)
    # Another mask moves an output by 0.05 and more. Keras rounds each product and sum
    # of a step, about 12; of values below 2.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=3 * 12 * 2 * 2.0**-11)
    assert np.any(np.abs(ours - pair[1](x)) > 0.05)


def test_states_are_carried_and_reset():
    options = {"filters": 3, "kernel_size": 2, "padding": "same"}
    layer = made(2, stateful=True, return_sequences=True, **options)
    x = inputs()
    whole = layer(x)
    layer.reset_state()
    parts = [layer(x[:, :1]), layer(x[:, 1:])]
    # The same states, rounded at the same places.
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    assert all(state.dtype == "float32" for state in layer.states)


@POLICIES
def test_the_gradient_of_a_step_from_a_state_that_was_carried(policy):
    options = {"filters": 3, "kernel_size": 2, "padding": "same", "stateful": True}
    pair = [
        made(2, keras.layers, "float64", **options),
        made(2, policy=policy, **options),
    ]
    x = inputs()
    for layer in pair:
        layer.build(x.shape)
    same_weights(pair)
    gradients = []
    for layer in pair:
        layer(x)
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.cast(layer(x), "float64") ** 2)
        gradients.append(tape.gradient(y, layer.trainable_variables))
    for expected, actual in zip(*gradients, strict=True):
        # States and outputs are rounded: a few 2^-11 of the largest.
        atol = 2**-7 * np.max(np.abs(expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.slow_except("1")
@RANKS
def test_channels_first(rank):
    """Under XLA, which has them on a CPU too."""
    options = {"filters": 3, "kernel_size": 2, "padding": "same", "dropout": 0.5}
    x = inputs(rank)
    last, first = (
        made(rank, data_format=f"channels_{place}", **options)
        for place in ("last", "first")
    )
    last.build(x.shape)
    first.build(np.moveaxis(x, -1, 2).shape)
    same_weights([last, first])
    run = tf.function(first, jit_compile=True)
    found = run(tf.constant(np.moveaxis(x, -1, 2)))
    # The same sums in another order.
    np.testing.assert_allclose(
        np.moveaxis(found, 1, -1), last(x), rtol=0, atol=2.0**-11
    )


@pytest.mark.slow
@pytest.mark.xslow_except("graph")
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_training_goes_down(jit):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((None, 4, 3, 2)),
            made(2, filters=3, kernel_size=3, padding="same", dropout=0.25),
            keras.layers.Flatten(dtype="mixed_float16"),
            layers.Dense(1, dtype="mixed_float16"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=jit)
    x = np.tile(inputs(), (4, 1, 1, 1, 1))
    losses = model.fit(x, np.ones((8, 1)), epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2


def test_it_is_converted_with_its_cell():
    model = keras.Sequential(
        [keras.Input((3, 4, 3, 2)), made(2, keras.layers, filters=3, kernel_size=2)]
    )
    x, expected = inputs(), made(2, filters=3, kernel_size=2)
    expected.build(x.shape)
    expected.set_weights(model.get_weights())
    keras_mp.convert(model)
    assert str(keras_mp.conversion_report(model)).splitlines() == [
        "converted: ConvLSTM2D",
        "unaffected: -",
        "not converted: -",
    ]
    np.testing.assert_array_equal(model(x), expected(x))
    assert type(keras_mp.to_keras(model).layers[0]) is keras.layers.ConvLSTM2D


def test_a_cell_of_ones_own_goes_on_to_count():
    layer = made(2, filters=3, kernel_size=2)
    x = inputs()
    assert np.any(layer(x))

    class Nothing(type(layer.cell)):
        """A cell that computes something else."""

        def call(self, inputs, states, training=False):
            output, states = super().call(inputs, states, training=training)
            return output * 0, states

    layer.cell.__class__ = Nothing
    assert not np.any(layer(x))


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_pictures_of_any_size(padding):
    layer = made(2, filters=1, kernel_size=2, padding=padding)
    x = inputs()
    expected = layer(x)
    unknown = tf.TensorSpec((None, None, None, None, 2), tf.float16)
    np.testing.assert_array_equal(tf.function(layer, [unknown])(x), expected)


def test_pictures_without_pixels():
    layer = made(2, filters=3, kernel_size=2, padding="same")
    assert layer(tf.zeros((2, 3, 0, 4, 2), "float16")).shape == (2, 0, 4, 3)
