"""What a network needs to be trained to find objects, and to find them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Detector:
    """A network, and what belongs to it.

    Attributes:
        model: from images to outputs.
        target: from boxes [objects, 4] and labels [objects] of an image to what the
            loss compares its outputs with.
        loss: as for `Model.compile`.
        read: from outputs to FP32 offsets and logits [batch, boxes, 4 + 1 + classes],
            and the boxes that the offsets are from, [boxes, 4] or [batch, boxes, 4].
    """

    model: keras.Model
    target: Callable[[tf.Tensor, tf.Tensor], Any]
    loss: Any
    read: Callable[[Any], tuple[tf.Tensor, tf.Tensor]]
