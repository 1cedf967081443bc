"""The normalization of AlexNet and GoogLeNet."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops


class LocalResponseNormalization(keras.layers.Layer):
    """Divides by (2 + 1e-4 * the sum of squares over 5 adjacent channels) ** 0.75.

    In FP32: the square of an activation above 256 is beyond FP16.

    Reference: Krizhevsky et al., 2012, section 3.3.
    """

    def call(self, inputs: Any) -> Any:
        outputs = tf.nn.local_response_normalization(
            ops.cast(inputs, "float32"),
            depth_radius=2,
            bias=2.0,
            alpha=1e-4,
            beta=0.75,
        )
        return ops.cast(outputs, self.compute_dtype)
