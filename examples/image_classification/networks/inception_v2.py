"""Inception v1 with batch normalization, also called v2: Ioffe and Szegedy, 2015."""

from functools import partial
from typing import Any

import keras
from image_classification.networks.blocks import classifier, conv_bn_relu

from keras_mp import layers

# Channels of the 1x1 convolution, of the two before and in the 3x3 one, of the two
# before and in the double 3x3 one, and of that after the pooling; the paper's figure 5.
# 3c and 4e halve height and width, and have neither the first nor the last of these.
MODULES = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 96),
    "4d": (96, 128, 192, 160, 192, 96),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}
# The other modules take an average, but for those that halve.
MAX_POOLING = ("5b",)


def inception_v2(images: Any, *, classes: int, width: float, small_images: bool) -> Any:
    """Returns the logits of images of 224 pixels.

    The 5x5 convolutions of GoogLeNet are two of 3x3, and batch normalization takes the
    place of its dropout, local response normalization and auxiliary heads. In the form
    for small images the first convolution has size 3 and stride 1.
    """
    conv = partial(conv_bn_relu, width=width)
    pool = partial(keras.layers.MaxPooling2D, 3, strides=2, padding="same")
    size, strides = (3, 1) if small_images else (7, 2)
    x = conv(images, 64, size, strides, name="conv1")
    x = pool(name="pool1")(x)
    x = conv(x, 64, 1, name="conv2_reduce")
    x = conv(x, 192, 3, name="conv2")
    x = pool(name="pool2")(x)
    for name, channels in MODULES.items():
        x = inception(x, channels, width=width, name=name)
    x = layers.GlobalAveragePooling2D(name="pool5")(x)
    return classifier(x, classes, name="logits")


def inception(x: Any, channels: tuple[int, ...], *, width: float, name: str) -> Any:
    """Concatenates the branches of a module."""
    conv = partial(conv_bn_relu, width=width)
    one, reduce_three, three, reduce_double, double, projection = channels
    strides = 1 if projection else 2
    takes_maximum = strides == 2 or name in MAX_POOLING
    pooling = keras.layers.MaxPooling2D if takes_maximum else layers.AveragePooling2D
    name = f"inception_{name}"

    left = conv(x, reduce_three, 1, name=f"{name}_3x3_reduce")
    left = conv(left, three, 3, strides, name=f"{name}_3x3")
    right = conv(x, reduce_double, 1, name=f"{name}_double_3x3_reduce")
    right = conv(right, double, 3, name=f"{name}_double_3x3_1")
    right = conv(right, double, 3, strides, name=f"{name}_double_3x3_2")
    pooled = pooling(3, strides, "same", name=f"{name}_pool")(x)
    if strides == 2:
        branches = [left, right, pooled]
    else:
        first = conv(x, one, 1, name=f"{name}_1x1")
        pooled = conv(pooled, projection, 1, name=f"{name}_pool_projection")
        branches = [first, left, right, pooled]
    return keras.layers.Concatenate(name=name)(branches)
