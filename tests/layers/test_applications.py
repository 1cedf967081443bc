"""`convert` on one model of each family of `keras.applications`."""

import keras
import numpy as np
import pytest
from families import assert_family

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
FAST = ("MobileNet", "ResNet50V2", "VGG16")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_nothing_is_left(name):
    shape = (FAMILIES[name], FAMILIES[name], 3)

    def make():
        application = getattr(keras.applications, name)
        return application(weights=None, input_shape=shape, classes=3)

    assert_family(make, np.random.default_rng(0).uniform(0, 255, (1, *shape)))


def test_every_family_is_here():
    # A module holds a family, and a function with a capital a model.
    modules = [
        module
        for module in vars(keras.applications).values()
        if hasattr(module, "preprocess_input")
    ]
    names = [{name for name in vars(module) if name[0].isupper()} for module in modules]
    assert modules
    for models in names:
        # resnet50 and resnet share their models
        assert models & set(FAMILIES)
