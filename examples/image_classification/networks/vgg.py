"""VGG-D, also called VGG-16: Simonyan and Zisserman, 2014."""

from functools import partial
from typing import Any

import keras
from image_classification.networks.blocks import classifier, conv_relu, dense_relu

# Channels and convolutions between poolings.
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg_d(images: Any, *, classes: int, width: float, small_images: bool) -> Any:
    """Returns the logits of images of 224 pixels.

    Small images pass through the same layers: the fifth pooling leaves one pixel of 32.
    """
    del small_images
    conv = partial(conv_relu, width=width)
    x = images
    for stage, (channels, count) in enumerate(STAGES, start=1):
        for i in range(1, 1 + count):
            x = conv(x, channels, 3, name=f"conv{stage}_{i}")
        x = keras.layers.MaxPooling2D(2, name=f"pool{stage}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    for name in ("fc6", "fc7"):
        x = dense_relu(x, 4096, width=width, name=name)
    return classifier(x, classes, name="fc8")
