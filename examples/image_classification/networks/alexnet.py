"""AlexNet: Krizhevsky et al., 2012, ImageNet Classification with Deep CNNs."""

from functools import partial
from typing import Any

import keras
from image_classification.networks.blocks import classifier, conv_relu, dense_relu
from image_classification.networks.local_response_normalization import (
    LocalResponseNormalization,
)
from keras import ops


def alexnet(images: Any, *, classes: int, width: float, small_images: bool) -> Any:
    """Returns the logits of images of 227 pixels.

    In the form for small images the first convolution has size 5 and stride 1.
    """
    conv = partial(conv_relu, width=width)
    halves = partial(conv_halves, width=width)
    pool = partial(keras.layers.MaxPooling2D, 3, strides=2)
    if small_images:
        x = conv(images, 96, 5, name="conv1")
    else:
        x = conv(images, 96, 11, 4, "valid", name="conv1")
    x = LocalResponseNormalization(name="norm1")(x)
    x = pool(name="pool1")(x)
    x = halves(x, 256, 5, name="conv2")
    x = LocalResponseNormalization(name="norm2")(x)
    x = pool(name="pool2")(x)
    x = conv(x, 384, 3, name="conv3")
    x = halves(x, 384, 3, name="conv4")
    x = halves(x, 256, 3, name="conv5")
    x = pool(name="pool5")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    for name in ("fc6", "fc7"):
        x = dense_relu(x, 4096, width=width, name=name)
    return classifier(x, classes, name="fc8")


def conv_halves(
    x: Any, channels: int, kernel_size: int, *, width: float, name: str
) -> Any:
    """Applies a convolution and ReLU to each half of the channels.

    The halves were on two GPUs. They are two layers, because Keras compiles one layer
    with two groups with XLA, which takes many times as long on a CPU.
    """
    parts = [
        conv_relu(half, channels // 2, kernel_size, width=width, name=f"{name}_{i}")
        for i, half in enumerate(ops.split(x, 2, axis=-1), start=1)
    ]
    return keras.layers.Concatenate(name=name)(parts)
