"""The table of counterparts: every layer of Keras is in it, or is left for a reason."""

import keras

from keras_mp import keras_internals, layers
from keras_mp.precision.counterparts import COUNTERPARTS, NOT_CONVERTED

# Layers without 16-bit products and sums of their own: they compute element by element,
# move, select or draw numbers, or leave the computation to sublayers.
UNAFFECTED = frozenset(
    {
        "ActivityRegularization",
        "AdaptiveMaxPooling1D",
        "AdaptiveMaxPooling2D",
        "AdaptiveMaxPooling3D",
        "AlphaDropout",
        "AutoContrast",
        "Bidirectional",
        "CategoryEncoding",
        "CenterCrop",
        "Concatenate",
        "Cropping1D",
        "Cropping2D",
        "Cropping3D",
        "CutMix",
        "Discretization",
        "Dropout",
        "ELU",
        "Flatten",
        "GaussianDropout",
        "GaussianNoise",
        "GlobalMaxPooling1D",
        "GlobalMaxPooling2D",
        "GlobalMaxPooling3D",
        "HashedCrossing",
        "Hashing",
        "Identity",
        "InputLayer",
        "IntegerLookup",
        "Lambda",
        "Layer",
        "LeakyReLU",
        "Masking",
        "MaxNumBoundingBoxes",
        "MaxPooling1D",
        "MaxPooling2D",
        "MaxPooling3D",
        "Maximum",
        "Minimum",
        "MixUp",
        "Multiply",
        "PReLU",
        "Permute",
        "Pipeline",
        "RNN",
        "RandomBrightness",
        "RandomColorDegeneration",
        "RandomCrop",
        "RandomErasing",
        "RandomFlip",
        "RandomGrayscale",
        "RandomHue",
        "RandomInvert",
        "RandomPosterization",
        "RandomRotation",
        "RandomSaturation",
        "RandomShear",
        "RandomTranslation",
        "RandomZoom",
        "ReLU",
        "RepeatVector",
        "Rescaling",
        "Reshape",
        "Resizing",
        "Solarization",
        "SpatialDropout1D",
        "SpatialDropout2D",
        "SpatialDropout3D",
        "StackedRNNCells",
        "StringLookup",
        "Subtract",
        "TextVectorization",
        "TimeDistributed",
        "UpSampling1D",
        "UpSampling2D",
        "UpSampling3D",
        "Wrapper",
        "ZeroPadding1D",
        "ZeroPadding2D",
        "ZeroPadding3D",
    }
)


def test_every_layer_of_keras_is_decided():
    found = {
        value.__name__
        for value in vars(keras.layers).values()
        if isinstance(value, type) and issubclass(value, keras.Layer)
    }
    decided = [*(cls.__name__ for cls in COUNTERPARTS), *NOT_CONVERTED, *UNAFFECTED]
    assert len(decided) == len(set(decided))
    assert found <= set(decided)
    if keras_internals.KERAS >= (3, 15):  # older ones lack some
        assert set(decided) <= found


def test_the_table_has_every_layer():
    ours = {getattr(layers, name) for name in layers.__all__}
    assert set(COUNTERPARTS.values()) == ours - {layers.Probe}  # Keras has none
    assert all(new.__name__ == old.__name__ for old, new in COUNTERPARTS.items())
    assert all(issubclass(new, old) for old, new in COUNTERPARTS.items())
