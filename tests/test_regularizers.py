"""Regularizers in FP32 of weights in 16 bits, with values known by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp import FP32Regularizer

# The smallest relative spacing of float32, twice for a product and a sum.
ROUNDINGS = 2 * 2.0**-23


def tensor(values, dtype="float16"):
    return tf.constant(np.array(values, "float32"), dtype)


# Name: (regularizer, weight, value in exact arithmetic). Weights are powers of two.
VALUES = {
    # 2**-30 is 0 in float16.
    "l2-below-float16": (keras.regularizers.L2(1.0), [2.0**-15], 2.0**-30),
    "l2-sum": (keras.regularizers.L2(0.5), [1.0, -2.0, 2.0**-9], 2.5 + 2.0**-19),
    # 256**2 is inf in float16.
    "l2-above-float16": (keras.regularizers.L2(1.0), [256.0, 1024.0], 2**16 + 2**20),
    # 3000 ones are 2048 in a float16 sum that goes one by one.
    "l1-long": (keras.regularizers.L1(1.0), [1.0] * 3000, 3000.0),
    "l1-below-float16": (keras.regularizers.L1(2.0**-10), [2.0**-20], 2.0**-30),
    "l1-and-l2": (keras.regularizers.L1L2(0.5, 0.25), [2.0, -4.0], 3.0 + 5.0),
    "name": ("l2", [1.0], 0.01),
    "callable": (lambda x: keras.ops.sum(x * x * x), [2.0**-10], 2.0**-30),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("regularizer", "weight", "expected"), VALUES.values(), ids=VALUES
)
def test_value(regularizer, weight, expected, dtype):
    found = FP32Regularizer(regularizer)(tensor(weight, dtype))
    assert found.dtype == tf.float32
    assert found.shape == ()
    np.testing.assert_allclose(float(found), expected, rtol=ROUNDINGS)


def test_what_it_mends():
    # If this fails, the host has mended it.
    l2 = keras.regularizers.L2(1.0)
    assert float(l2(tensor([2.0**-15]))) == 0.0
    assert float(FP32Regularizer(l2)(tensor([2.0**-15]))) == 2.0**-30


def test_the_gradient_is_summed_in_float32_and_rounded_once():
    weight = tf.Variable([1.0, 2.0**-15], dtype=tf.float16)
    scale = 2.0**17  # inf in float16, so a scaled float16 regularizer would be too
    with tf.GradientTape() as tape:
        loss = FP32Regularizer(keras.regularizers.L2(2.0**-10))(weight) * scale
    gradient = tape.gradient(loss, weight)
    # 2 * l2 * weight * scale
    assert gradient.dtype == tf.float16
    assert gradient.numpy().tolist() == [2.0**8, 2.0**-7]


# What `build` does with the regularizers of weights.


def dense(policy, regularizer, **arguments):
    return keras.layers.Dense(
        1,
        use_bias=False,
        kernel_initializer="ones",
        kernel_regularizer=regularizer,
        dtype=policy,
        name="dense",
        **arguments,
    )


def model_of(*layers, optimizer=None):
    model = keras.Sequential([keras.Input((1,)), *layers])
    optimizer = optimizer or keras_mp.wrap(keras.optimizers.SGD(0.25), 2.0**20)
    model.compile(optimizer, "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_build_puts_one_around_the_regularizer_of_a_half(policy):
    l2 = keras.regularizers.L2(0.5)
    model = model_of(dense(policy, l2))
    (kernel,) = model.trainable_variables
    assert type(kernel.regularizer) is FP32Regularizer
    assert kernel.regularizer.regularizer is l2
    (loss,) = model.losses
    assert loss.dtype == tf.float32
    assert float(loss) == 0.5


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float64"])
def test_build_leaves_other_weights_alone(policy):
    l2 = keras.regularizers.L2(0.5)
    model = model_of(dense(policy, l2))
    assert model.trainable_variables[0].regularizer is l2


def test_build_leaves_a_weight_without_one_alone():
    model = model_of(dense("float16", None))
    assert model.trainable_variables[0].regularizer is None
    assert model.losses == []


def test_build_does_not_wrap_twice():
    given = FP32Regularizer(keras.regularizers.L2(0.5))
    model = model_of(dense("float16", given))
    (kernel,) = model.trainable_variables
    assert kernel.regularizer is given
    # Nor does the next optimizer, after the model is compiled again.
    model.compile(keras_mp.wrap("sgd"), "mse")
    model.optimizer.build(model.trainable_variables)
    assert kernel.regularizer is given


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_step_of_training_follows_the_regularizer(jit):
    # The data adds nothing: x = y = 0. The gradient of 2**-12 * w**2 is 2**-11 w, and
    # 2**11 * 2**-11 is taken from a weight of 1: 0 is left.
    optimizer = keras_mp.wrap(keras.optimizers.SGD(2.0**11), 2.0**20)
    model = model_of(
        dense("float16", keras.regularizers.L2(2.0**-12)), optimizer=optimizer
    )
    model.jit_compile = jit
    zero = np.zeros((1, 1), "float32")
    history = model.fit(zero, zero, verbose=0).history
    assert history["loss"] == [2.0**-12]
    assert int(model.optimizer.skipped_steps) == 0
    (weight,) = model.get_weights()
    assert weight.dtype == np.float16
    assert weight.tolist() == [[0.0]]


def test_a_model_saves_the_regularizer_that_the_user_gave(tmp_path):
    model = model_of(dense("float16", keras.regularizers.L2(0.5)))
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded.layers[0].kernel_regularizer) is keras.regularizers.L2
    (kernel,) = loaded.trainable_variables
    assert type(kernel.regularizer) is FP32Regularizer
    assert float(loaded.losses[0]) == 0.5


# Serialization.

SAVED = {
    "l2": keras.regularizers.L2(2.0**-5),
    "l1": keras.regularizers.L1(2.0**-5),
    "l1-and-l2": keras.regularizers.L1L2(0.5, 0.25),
    "orthogonal": keras.regularizers.OrthogonalRegularizer(0.5, mode="columns"),
}


def through_its_config(regularizer):
    return FP32Regularizer.from_config(regularizer.get_config())


def through_keras_saving(regularizer):
    saved = keras.saving.serialize_keras_object(regularizer)
    assert saved["registered_name"] == "keras_mp>FP32Regularizer"
    return keras.saving.deserialize_keras_object(saved)


def through_keras_regularizers(regularizer):
    return keras.regularizers.get(keras.regularizers.serialize(regularizer))


@pytest.mark.parametrize(
    "trip", [through_its_config, through_keras_saving, through_keras_regularizers]
)
@pytest.mark.parametrize("regularizer", SAVED.values(), ids=SAVED)
def test_it_survives_saving(regularizer, trip):
    back = trip(FP32Regularizer(regularizer))
    assert type(back) is FP32Regularizer
    assert type(back.regularizer) is type(regularizer)
    assert back.regularizer.get_config() == regularizer.get_config()
    weight = tensor([[1.0, 2.0], [3.0, 5.0]])
    assert float(back(weight)) == float(FP32Regularizer(regularizer)(weight))
    assert float(back(weight)) > 0


def test_it_survives_the_config_of_a_layer():
    layer = dense("float16", FP32Regularizer(keras.regularizers.L2(0.25)))
    back = keras.layers.Dense.from_config(layer.get_config())
    assert type(back.kernel_regularizer) is FP32Regularizer
    assert back.kernel_regularizer.regularizer.get_config() == {"l2": 0.25}


# Penalties that Keras adds to the loss.


class Penalty(keras.layers.Layer):
    """Adds the mean of its input to the loss."""

    def __init__(self, dtype_of_loss=None, **arguments):
        super().__init__(**arguments)
        self.dtype_of_loss = dtype_of_loss

    def call(self, x):
        loss = keras.ops.mean(x)
        self.add_loss(keras.ops.cast(loss, self.dtype_of_loss or loss.dtype))
        return x


def sequential(policy, *layers, is_built=True):
    inputs = [keras.Input((1,), dtype=policy.removeprefix("mixed_"))] * is_built
    model = keras.Sequential([*inputs, *layers])
    model.compile(keras_mp.wrap(keras.optimizers.SGD(0.25), 8), "mse")
    return model


def loss_of(model, *callbacks):
    # One example: from 3.14 on, Keras divides what a layer adds by the batch size.
    ones = np.ones((1, 1), "float32")
    return model.fit(ones, ones, verbose=0, callbacks=callbacks).history["loss"]


def unit(policy, **arguments):
    return keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype=policy, **arguments
    )


L2 = keras.regularizers.L2(0.5)
# The weight, the input and the output are 1, so that each penalty is 1/2.
PENALTIES = {
    "weight": ("float16", {"kernel_regularizer": L2}, True),
    "bfloat16": ("bfloat16", {"kernel_regularizer": L2}, True),
    "unbuilt": ("float16", {"kernel_regularizer": L2}, False),
    "activity": ("float16", {"activity_regularizer": L2}, True),
    "mixed_activity": ("mixed_float16", {"activity_regularizer": L2}, True),
}


@pytest.mark.parametrize(
    ("policy", "arguments", "is_built"), PENALTIES.values(), ids=PENALTIES
)
def test_penalties_in_a_fit(policy, arguments, is_built):
    # If it does not fail, the host has mended it.
    with pytest.raises(TypeError, match="float16"):
        loss_of(sequential(policy, unit(policy, **arguments), is_built=is_built))
    model = sequential(policy, unit(policy, **arguments), is_built=is_built)
    assert keras_mp.regularize_in_fp32(model) is model
    assert loss_of(model) == [0.5]
    # Nothing is put around twice.
    keras_mp.regularize_in_fp32(model)
    (layer,) = model.layers
    for name in arguments:
        assert getattr(layer, name).regularizer is L2


@pytest.mark.parametrize(
    ("policy", "arguments", "is_built"), PENALTIES.values(), ids=PENALTIES
)
def test_convert_sees_to_penalties(policy, arguments, is_built):
    model = sequential(policy, unit(policy, **arguments), is_built=is_built)
    keras_mp.convert(model)
    assert loss_of(model) == [0.5]
    keras_mp.convert(model)
    (layer,) = model.layers
    for name in arguments:
        assert getattr(layer, name).regularizer is L2
    keras_mp.to_keras(model)
    for name in arguments:
        assert getattr(layer, name) is L2


def test_a_converted_model_saves_its_penalty_and_a_plain_one_the_one_of_keras(tmp_path):
    model = sequential("float16", unit("float16", kernel_regularizer=L2))
    for change, expected in (
        (keras_mp.convert, FP32Regularizer),
        (keras_mp.to_keras, keras.regularizers.L2),
    ):
        change(model).save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
        assert type(loaded.layers[0].kernel_regularizer) is expected


def test_convert_sees_to_the_penalty_of_a_cell_that_its_layer_does_not_call():
    layer = keras.layers.LSTM(1, kernel_regularizer=L2, dtype="float16")
    keras_mp.convert(layer)
    assert type(layer.cell.kernel_regularizer) is FP32Regularizer


def test_a_penalty_inside_of_a_layer():
    cell = keras.layers.LSTMCell(1, kernel_regularizer=L2, dtype="float16")
    model = keras.Sequential([keras.layers.RNN(cell, dtype="float16")])
    keras_mp.regularize_in_fp32(model)
    assert type(cell.kernel_regularizer) is FP32Regularizer


def test_layers_that_compute_in_32_bits_are_left_alone():
    layer = unit("float32", kernel_regularizer=L2, activity_regularizer=L2)
    keras_mp.regularize_in_fp32(sequential("float32", layer))
    assert layer.kernel_regularizer is layer.activity_regularizer is L2
    assert layer.kernel.regularizer is L2


@pytest.mark.slow
def test_the_callback_sees_to_the_weights_of_a_model_that_is_built():
    layer = unit("float16", kernel_regularizer=L2)
    model = sequential("float16", layer)
    assert loss_of(model, keras_mp.LossScaleCallback()) == [0.5]
    assert layer.kernel_regularizer is L2


@pytest.mark.parametrize("case", ["unbuilt", "activity", "mixed_activity"])
def test_the_callback_says_what_to_call(case):
    policy, arguments, is_built = PENALTIES[case]
    model = sequential(policy, unit(policy, **arguments), is_built=is_built)
    with pytest.raises(ValueError, match=r"_regularizer=L2\. Call keras_mp\.regular"):
        loss_of(model, keras_mp.LossScaleCallback())


@pytest.mark.slow
def test_a_loss_that_a_layer_adds_is_cast_by_it():
    layers = [Penalty(dtype="float16"), unit("float16")]
    with pytest.raises(TypeError, match="float16"):
        loss_of(sequential("float16", *layers))
    layers = [Penalty("float32", dtype="float16"), unit("float16")]
    assert loss_of(sequential("float16", *layers)) == [1.0]


def test_the_callback_leaves_a_model_alone_that_computes_its_own_loss():
    class Model(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            return sum(keras.ops.cast(loss, "float32") for loss in self.losses)

    layer = unit("float16", activity_regularizer=L2)
    model = Model([keras.Input((1,), dtype="float16"), layer])
    model.compile(keras_mp.wrap("sgd"), "mse")
    assert loss_of(model, keras_mp.LossScaleCallback()) == [0.5]
