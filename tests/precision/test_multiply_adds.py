"""The multiply-adds of a model, counted by hand."""

import keras
import numpy as np
import pytest

from keras_mp import layers
from keras_mp.precision.convert import converted_in_modes
from keras_mp.precision.multiply_adds import float16_share


@pytest.mark.parametrize("one_pass", [True, False])
def test_those_of_an_attention(one_pass, monkeypatch):
    if not one_pass:
        monkeypatch.setattr("keras_mp.ops.attention.has_cpu_kernels", lambda: False)
    x = keras.Input((5, 4), dtype="float16")
    wide = keras.Input((5, 4), dtype="float32")
    y = layers.MultiHeadAttention(1, 3, dtype="float16")(x, x)
    model = keras.Model([x, wide], [y, keras.layers.Dense(2)(wide)])
    numbers = np.ones((1, 5, 4))
    projections, scores, values = 4 * 5 * 4 * 3, 5 * 5 * 3, 5 * 5 * 3
    in_fp16 = projections + scores + values
    expected = in_fp16 / (in_fp16 + 5 * 4 * 2)
    found = float16_share(model, [numbers.astype("float16"), numbers.astype("float32")])
    assert found == pytest.approx(expected)


class Code(keras.layers.Layer):
    """Multiplies what its sublayer returns by itself: 5 x 5 x 3 multiply-adds."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3, name="dense")  # 5 x 4 x 3

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, x):
        y = self.dense(x)
        return keras.ops.matmul(y, keras.ops.transpose(y, (0, 2, 1)))

    def compute_output_shape(self, shape):
        return (*shape[:2], shape[1])


CODE, DENSE = 5 * 5 * 3, 5 * 4 * 3
# Name of the case: the modes of layers, and the multiply-adds in FP16.
MODES = {
    "all": ({}, CODE + DENSE),
    "FP32 code multiplies in FP32 what was FP16": ({"code": "float32"}, DENSE),
    "an FP32 layer, too": ({"code/dense": "float32"}, CODE),
    "products in FP16": ({"code/dense": "float16_matmul"}, CODE + DENSE),
    "products in FP16 inside of FP32 code": (
        {"code": "float32", "code/dense": "float16_matmul"},
        DENSE,
    ),
}


@pytest.mark.parametrize("name", MODES)
def test_those_of_the_code_of_a_layer(name):
    modes, expected = MODES[name]
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, Code(name="code")(inputs))
    before = [vars(layer).copy() for layer in model._flatten_layers()]
    with converted_in_modes(model, modes):
        found = float16_share(model, np.ones((1, 5, 4), "float32"))
    assert found == pytest.approx(expected / (CODE + DENSE))
    for layer, attributes in zip(model._flatten_layers(), before, strict=True):
        assert vars(layer).keys() == attributes.keys()


def test_losses_of_the_graph_do_not_stay_in_the_model():
    inputs = keras.Input((5,))
    y = keras.layers.Dense(3, activity_regularizer="l2")(inputs)
    model = keras.Model(inputs, keras.layers.BatchNormalization()(y))
    x = np.ones((2, 5), "float32")
    before = model.get_weights()
    float16_share(model, x)
    assert model.losses == []
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
