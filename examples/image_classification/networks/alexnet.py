"""AlexNet: Krizhevsky et al., 2012, ImageNet Classification with Deep CNNs."""

from functools import partial
from typing import Any

import keras
from image_classification.networks.blocks import classifier, conv_relu, dense_relu
from image_classification.networks.local_response_normalization import (
    LocalResponseNormalization,
)


def alexnet(images: Any, *, classes: int, width: float, small_images: bool) -> Any:
    """Returns the logits of images of 227 pixels.

    conv2, conv4 and conv5 have two groups, which were the two GPUs of the paper. The
    first convolution of the form for small images has size 5 and stride 1.
    """
    conv = partial(conv_relu, width=width)
    pool = partial(keras.layers.MaxPooling2D, 3, strides=2)
    if small_images:
        x = conv(images, 96, 5, name="conv1")
    else:
        x = conv(images, 96, 11, 4, "valid", name="conv1")
    x = LocalResponseNormalization(name="norm1")(x)
    x = pool(name="pool1")(x)
    x = conv(x, 256, 5, groups=2, name="conv2")
    x = LocalResponseNormalization(name="norm2")(x)
    x = pool(name="pool2")(x)
    x = conv(x, 384, 3, name="conv3")
    x = conv(x, 384, 3, groups=2, name="conv4")
    x = conv(x, 256, 3, groups=2, name="conv5")
    x = pool(name="pool5")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    for name in ("fc6", "fc7"):
        x = dense_relu(x, 4096, width=width, name=name)
    return classifier(x, classes, name="fc8")
