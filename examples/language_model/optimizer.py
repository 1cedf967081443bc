"""Adagrad that clips the gradients of the LSTMs, and adds up those of a word."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops


def added_up(gradient: Any) -> Any:
    """Returns a gradient in which each row occurs once; of a tensor, itself."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


@keras.saving.register_keras_serializable(package="language_model")
class LSTMClippingAdagrad(keras.optimizers.Adagrad):
    """`keras.optimizers.Adagrad`, with one bound for the gradients of all LSTMs.

    Embedding and softmax are left out: their gradients are much longer. They are
    `tf.IndexedSlices`, in which a word has as many rows as it occurs in a batch. These
    are added up first; Keras's Adagrad would square each by itself.

    Inside `keras_mp.wrap` the gradients are unscaled, in FP32.

    Args:
        learning_rate: Float, or a schedule.
        lstm_clipnorm: Float. The largest norm of the gradients of all weights that
            have `lstm` in their path, as one vector.
        **kwargs: Those of `keras.optimizers.Adagrad`.

    Reference: Jozefowicz et al. 2016, section 4.3.
    """

    def __init__(
        self, learning_rate: Any = 0.2, lstm_clipnorm: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self.lstm_clipnorm = lstm_clipnorm

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> Any:
        names = [variable.path for variable in trainable_variables or ()]
        clipped = [g for g, name in zip(grads, names, strict=True) if "lstm" in name]
        # The squares of FP16 gradients, where the optimizer is not wrapped, overflow.
        squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in clipped]
        norm = ops.sqrt(sum(squares))
        factor = self.lstm_clipnorm / ops.maximum(norm, self.lstm_clipnorm)
        grads = [
            g * ops.cast(factor, g.dtype) if "lstm" in name else added_up(g)
            for g, name in zip(grads, names, strict=True)
        ]
        return super().apply(grads, trainable_variables)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "lstm_clipnorm": self.lstm_clipnorm}
