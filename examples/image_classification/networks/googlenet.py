"""GoogLeNet, also called Inception v1: Szegedy et al., 2015, Going Deeper."""

from functools import partial
from typing import Any

import keras
from image_classification.networks.blocks import classifier, conv_relu, dense_relu
from image_classification.networks.local_response_normalization import (
    LocalResponseNormalization,
)

from keras_mp import layers

# Channels of the 1x1 convolution, of the two before and in the 3x3 one, of the two
# before and in the 5x5 one, and of that after the pooling: the paper's table 1.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
AUXILIARY = ("4a", "4d")


def googlenet(
    images: Any, *, classes: int, width: float, small_images: bool
) -> list[Any]:
    """Returns the logits of images of 224 pixels, and those of the auxiliary heads.

    In the form for small images the first convolution has size 3 and stride 1, and
    there are no auxiliary heads, which begin with a pooling over 5 pixels of 14.
    """
    conv = partial(conv_relu, width=width)
    pool = partial(keras.layers.MaxPooling2D, 3, strides=2, padding="same")
    size, strides = (3, 1) if small_images else (7, 2)
    x = conv(images, 64, size, strides, name="conv1")
    x = pool(name="pool1")(x)
    x = LocalResponseNormalization(name="norm1")(x)
    x = conv(x, 64, 1, name="conv2_reduce")
    x = conv(x, 192, 3, name="conv2")
    x = LocalResponseNormalization(name="norm2")(x)
    x = pool(name="pool2")(x)
    auxiliary = []
    for name, channels in MODULES.items():
        if name in ("4a", "5a"):
            x = pool(name=f"pool{int(name[0]) - 1}")(x)
        x = inception(x, channels, width=width, name=name)
        if name in AUXILIARY and not small_images:
            auxiliary.append(auxiliary_head(x, classes, width=width, name=name))
    x = layers.GlobalAveragePooling2D(name="pool5")(x)
    x = keras.layers.Dropout(0.4, name="dropout")(x)
    return [classifier(x, classes, name="logits"), *auxiliary]


def inception(x: Any, channels: tuple[int, ...], *, width: float, name: str) -> Any:
    """Concatenates four branches: figure 2b of the paper."""
    conv = partial(conv_relu, width=width)
    name = f"inception_{name}"
    one, reduce_three, three, reduce_five, five, projection = channels
    pooled = keras.layers.MaxPooling2D(3, 1, "same", name=f"{name}_pool")(x)
    branches = [
        conv(x, one, 1, name=f"{name}_1x1"),
        conv(
            conv(x, reduce_three, 1, name=f"{name}_3x3_reduce"),
            three,
            3,
            name=f"{name}_3x3",
        ),
        conv(
            conv(x, reduce_five, 1, name=f"{name}_5x5_reduce"),
            five,
            5,
            name=f"{name}_5x5",
        ),
        conv(pooled, projection, 1, name=f"{name}_pool_projection"),
    ]
    return keras.layers.Concatenate(name=name)(branches)


def auxiliary_head(x: Any, classes: int, *, width: float, name: str) -> Any:
    """Returns the logits of the classifier beside the module of this name."""
    name = f"auxiliary_{name}"
    x = layers.AveragePooling2D(5, strides=3, name=f"{name}_pool")(x)
    x = conv_relu(x, 128, 1, width=width, name=f"{name}_conv")
    x = keras.layers.Flatten(name=f"{name}_flatten")(x)
    x = dense_relu(x, 1024, width=width, name=f"{name}_fc", dropout=0.7)
    return classifier(x, classes, name=f"{name}_logits")
