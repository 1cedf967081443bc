"""`find_overflow` names the layer that a test has made to overflow."""

import keras
import numpy as np
import pytest

import keras_mp

X = np.ones((4, 8), "float32")
Y = np.ones((4, 1), "float32")


def too_large(**options):
    """Ten times the largest number of FP16, from any input near 1."""
    return keras.layers.Rescaling(655_040.0, name="planted", **options)


class Planted(keras.layers.Layer):
    """An identity whose gradient is multiplied by 60,000, three times."""

    def __init__(self, **options):
        super().__init__(name="planted", **options)

    def call(self, x):
        import tensorflow as tf

        @tf.custom_gradient
        def identity(x):
            return tf.identity(x), lambda upstream: upstream * tf.cast(6e4, x.dtype)

        return identity(identity(identity(x)))


def dense(name, units=8):
    return keras.layers.Dense(units, name=name, kernel_initializer="ones")


def sequential(*layers, shape=(8,), dtype=None):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


def small(name):
    """Brings ones back to the size of one after a sum of eight."""
    return keras.layers.Rescaling(0.125, name=name)


def weighed(name):
    return keras.layers.Dense(
        1, name=name, kernel_initializer=keras.initializers.Constant(2.0**-6)
    )


def forward(at):
    layers = [layer for i in range(4) for layer in (dense(f"d{i}"), small(f"s{i}"))]
    layers.insert(2 * at, too_large())
    return sequential(*layers, dense("head", 1))


def backward(at):
    layers = [layer for i in range(4) for layer in (dense(f"d{i}"), small(f"s{i}"))]
    layers.insert(2 * at + 1, Planted())
    return sequential(*layers, dense("head", 1))


def nested(layer):
    inner = keras.Sequential(
        [keras.Input((8,)), dense("a"), small("b"), layer, dense("c"), small("d")],
        name="inner",
    )
    outer = keras.Sequential([keras.Input((8,)), small("e"), inner], name="outer")
    return sequential(dense("f"), outer, dense("head", 1))


def recurrent(layer, position):
    layers = [
        keras.layers.LSTM(8, return_sequences=True, name="lstm"),
        keras.layers.GRU(8, name="gru"),
    ]
    layers.insert(position, layer)
    return sequential(*layers, dense("head", 1), shape=(5, 8))


def attention(layer):
    inputs = keras.Input((5, 8))
    x = keras_mp.layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    x = keras_mp.layers.LayerNormalization(name="norm")(layer(x))
    x = keras_mp.layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(inputs, dense("head", 1)(x))


def attention_itself():
    inputs = keras.Input((5, 8))
    x = keras.layers.MultiHeadAttention(
        2, 4, name="planted", kernel_initializer=keras.initializers.Constant(60.0)
    )(inputs, inputs)
    return keras.Model(inputs, dense("head", 1)(keras.layers.Flatten()(x)))


def huge_loss(y_true, y_pred):
    return keras.ops.sum(keras.ops.cast(y_pred, "float16") * 60_000.0, axis=-1) * 2.0


def sensitive_loss(y_true, y_pred):
    return keras.ops.sum(keras.ops.cast(y_pred, "float32"), axis=-1) * 1e6


SEQUENCES = np.ones((4, 5, 8), "float32")
# Name of the case: the model, its inputs, its loss, the path, and where.
CASES = {
    **{
        f"forward-{i}": (lambda i=i: forward(i), X, "mse", "planted", "forward")
        for i in range(5)
    },
    **{
        f"backward-{i}": (
            *(lambda i=i: backward(i), X, "mse"),
            *(f"d{i}", "backward"),
        )
        for i in range(4)
    },
    "nested-forward": (
        *(lambda: nested(too_large()), X, "mse"),
        *("outer/inner/planted", "forward"),
    ),
    "nested-backward": (
        *(lambda: nested(Planted()), X, "mse"),
        *("outer/inner/b", "backward"),
    ),
    "rnn-forward-first": (
        *(lambda: recurrent(too_large(), 0), SEQUENCES, "mse"),
        *("planted", "forward"),
    ),
    "rnn-forward-last": (
        *(lambda: recurrent(too_large(), 2), SEQUENCES, "mse"),
        *("planted", "forward"),
    ),
    "rnn-backward": (
        *(lambda: recurrent(Planted(), 1), SEQUENCES, "mse"),
        *("lstm", "backward"),
    ),
    "attention-forward": (
        *(lambda: attention(too_large()), SEQUENCES, "mse"),
        *("planted", "forward"),
    ),
    "attention-itself": (attention_itself, SEQUENCES, "mse", "planted", "forward"),
    "loss": (lambda: forward(0), X * 0, huge_loss, "sequential", "loss"),
    "loss-of-all-zeros": (lambda: backward(0), X, huge_loss, "sequential", "loss"),
    "gradient-of-the-loss": (
        *(lambda: sequential(dense("d"), dense("planted", 1)), X, sensitive_loss),
        *("planted", "backward"),
    ),
    # 4 samples of 60,000, times a gradient of 1/4 * 2: the kernel's overflows.
    "gradient-of-a-weight": (
        *(lambda: sequential(weighed("planted")), X * 6e4),
        *(lambda y, p: keras.ops.cast(p[:, 0], "float32") * 2.0,),
        *("planted/kernel", "backward"),
    ),
}


@pytest.mark.slow_except("nested-*", "loss", "rnn-backward")
@pytest.mark.parametrize("name", CASES)
def test_the_planted_layer_is_named(name):
    keras.config.set_dtype_policy("mixed_float16")
    make, x, loss, path, where = CASES[name]
    model = make()
    if name == "loss":
        model.layers[0].scale = 1.0
        for weight in model.weights:
            weight.assign(np.ones_like(weight))
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), loss=loss)
    before = [v.numpy().copy() for v in model.variables]
    found = keras_mp.find_overflow(model, x, Y)
    assert found is not None, "nothing found"
    assert (found.path, found.where) == (path, where)
    assert found.largest is None or np.isfinite(found.largest)
    assert found.advice in str(found)
    for old, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, variable)


def test_nothing_is_found_where_all_is_finite():
    keras.config.set_dtype_policy("mixed_float16")
    model = sequential(dense("d"), dense("head", 1))
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), loss="mse")
    assert keras_mp.find_overflow(model, X, Y) is None
    found = keras_mp.find_overflow(model, X, Y, loss_scale=2.0**12)
    assert found.where == "backward"
