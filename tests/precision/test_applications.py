"""`convert` on one model of each family of `keras.applications`."""

import keras
import numpy as np
import pytest
from families import assert_family, products_and_sums_in_16_bits, traced

import keras_mp

pytestmark = pytest.mark.slow

# The smallest member of each family, and the smallest images that it takes.
FAMILIES = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}
FAST = ("MobileNet", "MobileNetV3Small", "VGG16")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.xslow)
        for name in FAMILIES
    ],
)
def test_nothing_is_left(name):
    shape = (FAMILIES[name], FAMILIES[name], 3)

    def make():
        application = getattr(keras.applications, name)
        return application(weights=None, input_shape=shape, classes=3)

    assert_family(make, np.random.default_rng(0).uniform(0, 255, (1, *shape)))


def test_a_graph_tells_what_is_left():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "softmax")])
    x = np.ones((1, 3))
    found = products_and_sums_in_16_bits(traced(model, x))
    assert [name.rpartition("/")[2] for name in found] == ["MatMul", "Softmax"]
    keras_mp.convert(model)
    assert products_and_sums_in_16_bits(traced(model, x)) == []
