"""Orthogonal weights of recurrent layers, which TensorFlow cannot draw in bfloat16."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp import layers


class OwnBuild(keras.layers.LSTM):
    """A subclass that does something of its own before it is built."""

    def build(self, sequences_shape, initial_state_shape=None):
        self.built_for = sequences_shape
        super().build(sequences_shape, initial_state_shape)


PICTURES = {"filters": 4, "kernel_size": 1}
# Name: what makes a layer of a package, and the shape of its inputs.
CASES = {
    "simple": (lambda package: package.SimpleRNN(8), (1, 2, 3)),
    "gru": (lambda package: package.GRU(8), (1, 2, 3)),
    "lstm": (lambda package: package.LSTM(8), (1, 2, 3)),
    "conv-lstm1d": (lambda package: package.ConvLSTM1D(**PICTURES), (1, 2, 3, 2)),
    "conv-lstm3d": (lambda package: package.ConvLSTM3D(**PICTURES), (1, 2, 1, 1, 1, 2)),
    "cells": (
        lambda package: keras.layers.RNN(
            [package.LSTMCell(8), package.GRUCell(8), package.SimpleRNNCell(8)]
        ),
        (1, 2, 3),
    ),
    "both-ways": (
        lambda package: keras.layers.Bidirectional(package.GRU(8)),
        (1, 2, 3),
    ),
}


def recurrent_kernels(layer):
    kernels = [w for w in layer.weights if w.name == "recurrent_kernel"]
    assert kernels
    return kernels


def made(make, package, policy):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    return make(package)


@pytest.mark.xslow_except("*-float16-*", "*-bfloat16-ours")
@pytest.mark.slow_except("*-float16-ours", "*-float16-converted")
@pytest.mark.parametrize("way", ["ours", "converted", "converted-model"])
@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
@pytest.mark.parametrize(("make", "shape"), CASES.values(), ids=CASES)
def test_they_are_those_of_float32_rounded(make, shape, policy, way):
    reference = made(make, keras.layers, "float32")
    reference.build(shape)
    layer = made(make, layers if way == "ours" else keras.layers, policy)
    if way == "converted":
        keras_mp.convert(layer)
    if way == "converted-model":
        keras_mp.convert(keras.Sequential([layer]))
    assert layer(tf.ones(shape, policy)).dtype == policy
    for found, exact in zip(
        recurrent_kernels(layer), recurrent_kernels(reference), strict=True
    ):
        expected = tf.cast(exact.value, policy)
        np.testing.assert_array_equal(found.value, expected, strict=True)


def test_keras_cannot_draw_them():
    # If this fails, the host has mended it.
    layer = made(CASES["lstm"][0], keras.layers, "bfloat16")
    with pytest.raises(tf.errors.InvalidArgumentError, match="bfloat16"):
        layer.build((1, 2, 3))


def test_a_layer_with_a_build_of_its_own_is_converted():
    keras.config.set_dtype_policy("bfloat16")
    layer = keras_mp.convert(OwnBuild(8))
    assert isinstance(layer, layers.LSTM)
    layer(tf.ones((1, 2, 3), "bfloat16"))
    assert layer.built_for == (1, 2, 3)


@pytest.mark.parametrize("name", ["LSTM", "ConvLSTM1D"])
def test_to_keras_gives_the_cell_its_class_back(name):
    options = PICTURES if name == "ConvLSTM1D" else {"units": 2}
    layer = getattr(keras.layers, name)(**options)
    of_keras = type(layer.cell)
    assert keras_mp.convert(layer).cell is layer.cell
    assert keras_mp.conversion_report(layer).converted == {name: 1}
    assert type(keras_mp.to_keras(layer).cell) is of_keras


def test_a_saved_model_loads_and_has_the_initializer_of_keras(tmp_path):
    keras.config.set_dtype_policy("bfloat16")
    model = keras.Sequential([keras.Input((2, 3)), layers.LSTM(2)])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.get_weights()[1], model.get_weights()[1])
    config = loaded.layers[0].get_config()["recurrent_initializer"]
    assert config["class_name"] == "Orthogonal"
