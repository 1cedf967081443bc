"""A convolutional classifier with batch normalization."""

import keras

import keras_mp


def classifier(width: int, classes: int) -> keras.Model:
    """Three stages of two convolutions; the channels double from stage to stage.

    Args:
        width: the channels of the first stage.
        classes: the number of the outputs, logits.
    """
    images = keras.Input((None, None, 3))
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(images)
    for filters in (width, 2 * width, 4 * width):
        for _ in range(2):
            x = keras_mp.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = keras_mp.layers.BatchNormalization(momentum=0.9)(x)
            x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras_mp.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras_mp.layers.Dense(classes)(x))
