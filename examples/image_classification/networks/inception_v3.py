"""Inception v3: Szegedy et al., 2016, Rethinking the Inception Architecture."""

from functools import partial
from typing import Any

import keras
from image_classification.networks.blocks import classifier, conv_bn_relu

from keras_mp import layers

ROW, COLUMN = (1, 7), (7, 1)


def inception_v3(
    images: Any, *, classes: int, width: float, small_images: bool
) -> list[Any]:
    """Returns the logits of images of 299 pixels, and those of the auxiliary head.

    The modules have the names of the authors' published network, Mixed_5b to Mixed_7c.
    In the form for small images the first convolution has stride 1, the first pooling
    is left out, and so is the auxiliary head, which needs maps of 17 pixels.
    """
    conv = partial(conv_bn_relu, width=width)
    pool = partial(keras.layers.MaxPooling2D, 3, strides=2)
    x = conv(images, 32, 3, 1 if small_images else 2, "valid", name="conv1")
    x = conv(x, 32, 3, padding="valid", name="conv2")
    x = conv(x, 64, 3, name="conv3")
    if not small_images:
        x = pool(name="pool1")(x)
    x = conv(x, 80, 1, padding="valid", name="conv4")
    x = conv(x, 192, 3, padding="valid", name="conv5")
    x = pool(name="pool2")(x)
    for name, projection in {"5b": 32, "5c": 64, "5d": 64}.items():
        x = module_5(x, projection, width=width, name=f"mixed_{name}")
    x = module_6a(x, width=width, name="mixed_6a")
    for name, channels in {"6b": 128, "6c": 160, "6d": 160, "6e": 192}.items():
        x = module_6(x, channels, width=width, name=f"mixed_{name}")
    auxiliary = [] if small_images else [auxiliary_head(x, classes, width=width)]
    x = module_7a(x, width=width, name="mixed_7a")
    for name in ("7b", "7c"):
        x = module_7(x, width=width, name=f"mixed_{name}")
    x = layers.GlobalAveragePooling2D(name="pool3")(x)
    x = keras.layers.Dropout(0.2, name="dropout")(x)
    return [classifier(x, classes, name="logits"), *auxiliary]


def chain(x: Any, *convolutions: tuple[Any, ...], width: float, name: str) -> Any:
    """Applies convolutions given by channels, size and perhaps strides and padding."""
    for i, (channels, kernel_size, *rest) in enumerate(convolutions, start=1):
        x = conv_bn_relu(
            x, channels, kernel_size, *rest, width=width, name=f"{name}_{i}"
        )
    return x


def pool_projection(x: Any, channels: int, *, width: float, name: str) -> Any:
    """Applies average pooling and a 1x1 convolution."""
    x = layers.AveragePooling2D(3, 1, "same", name=f"{name}_pool")(x)
    return conv_bn_relu(x, channels, 1, width=width, name=f"{name}_pool_projection")


def concatenate(branches: list[Any], name: str) -> Any:
    """Concatenates the channels."""
    return keras.layers.Concatenate(name=name)(branches)


def module_5(x: Any, projection: int, *, width: float, name: str) -> Any:
    """The paper's figure 5."""
    branch = partial(chain, x, width=width)
    branches = [
        branch((64, 1), name=f"{name}_1x1"),
        branch((48, 1), (64, 5), name=f"{name}_5x5"),
        branch((64, 1), (96, 3), (96, 3), name=f"{name}_double_3x3"),
        pool_projection(x, projection, width=width, name=name),
    ]
    return concatenate(branches, name)


def module_6a(x: Any, *, width: float, name: str) -> Any:
    """Halves height and width: the paper's figure 10."""
    branch = partial(chain, x, width=width)
    last = (96, 3, 2, "valid")
    branches = [
        branch((384, 3, 2, "valid"), name=f"{name}_3x3"),
        branch((64, 1), (96, 3), last, name=f"{name}_double_3x3"),
        keras.layers.MaxPooling2D(3, 2, name=f"{name}_pool")(x),
    ]
    return concatenate(branches, name)


def module_6(x: Any, channels: int, *, width: float, name: str) -> Any:
    """Convolutions over rows and columns of 7 pixels: the paper's figure 6."""
    branch = partial(chain, x, width=width)
    row, column = (channels, ROW), (channels, COLUMN)
    start, last_row, last_column = (channels, 1), (192, ROW), (192, COLUMN)
    branches = [
        branch((192, 1), name=f"{name}_1x1"),
        branch(start, row, last_column, name=f"{name}_7x7"),
        branch(start, column, row, column, last_row, name=f"{name}_double_7x7"),
        pool_projection(x, 192, width=width, name=name),
    ]
    return concatenate(branches, name)


def module_7a(x: Any, *, width: float, name: str) -> Any:
    """Halves height and width."""
    branch = partial(chain, x, width=width)
    last = (192, 3, 2, "valid")
    branches = [
        branch((192, 1), (320, 3, 2, "valid"), name=f"{name}_3x3"),
        branch((192, 1), (192, ROW), (192, COLUMN), last, name=f"{name}_7x7"),
        keras.layers.MaxPooling2D(3, 2, name=f"{name}_pool")(x),
    ]
    return concatenate(branches, name)


def module_7(x: Any, *, width: float, name: str) -> Any:
    """Rows beside columns: the paper's figure 7."""
    left = chain(x, (384, 1), width=width, name=f"{name}_3x3")
    right = chain(x, (448, 1), (384, 3), width=width, name=f"{name}_double_3x3")
    branches = [chain(x, (320, 1), width=width, name=f"{name}_1x1")]
    for side, y in {"3x3": left, "double_3x3": right}.items():
        for direction, size in {"row": (1, 3), "column": (3, 1)}.items():
            part = f"{name}_{side}_{direction}"
            branches.append(chain(y, (384, size), width=width, name=part))
    branches.append(pool_projection(x, 192, width=width, name=name))
    return concatenate(branches, name)


def auxiliary_head(x: Any, classes: int, *, width: float) -> Any:
    """Returns the logits of the classifier beside Mixed_6e."""
    x = layers.AveragePooling2D(5, strides=3, name="auxiliary_pool")(x)
    x = chain(x, (128, 1), (768, 5, 1, "valid"), width=width, name="auxiliary")
    x = keras.layers.Flatten(name="auxiliary_flatten")(x)
    return classifier(x, classes, name="auxiliary_logits")
