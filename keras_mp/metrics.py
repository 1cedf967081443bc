"""Metrics of a language model that read what its loss has found, and no logits."""

from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.layers import linear_logits

__all__ = ["Perplexity", "SparseCategoricalAccuracy"]


@keras.saving.register_keras_serializable(package="keras_mp")
class SparseCategoricalAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """`keras.metrics.SparseCategoricalAccuracy`, which reads no logits after the loss.

    `keras_mp.losses.SparseCategoricalCrossentropy` finds the word with the largest
    logit of each row. This metric takes it from there; without such a loss, it reads
    the logits, as Keras's metric does. Logits are compared before they are rounded to
    16 bits.

    Args:
        name: str, default `"sparse_categorical_accuracy"`.
        dtype: dtype of the result, default None for `keras.config.floatx()`.

    Example:

    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(50257)])
    >>> model = keras_mp.convert(model)
    >>> loss = keras_mp.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> metrics = [keras_mp.metrics.SparseCategoricalAccuracy(name="accuracy")]
    >>> model.compile("sgd", loss, metrics=metrics)
    >>> _, accuracy = model.train_on_batch(np.zeros((2, 8)), np.array([0, 3]))
    >>> round(float(accuracy), 3)    # all logits are 0: the first word
    0.5
    """

    def __init__(
        self, name: str = "sparse_categorical_accuracy", dtype: Any = None
    ) -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        found = _last_pass(y_pred)
        if found is None:
            matches = keras.metrics.sparse_categorical_accuracy(y_true, y_pred)
        else:
            labels = _labels(y_true, found)
            argmax = ops.cast(found.rows.argmax, labels.dtype)
            matches = ops.cast(ops.equal(labels, argmax), self.dtype)
        weights = _weights(matches, keras_internals.mask_of(y_pred), sample_weight)
        keras.metrics.Mean.update_state(self, matches, weights)


@keras.saving.register_keras_serializable(package="keras_mp")
class Perplexity(keras.metrics.SparseCategoricalCrossentropy):
    """The exponential of the mean cross entropy, over all words seen.

    The cross entropies come from `keras_mp.losses.SparseCategoricalCrossentropy` if
    that has the same labels and `ignore_class`; else they are computed from the logits,
    by Keras. What is masked, or of `ignore_class`, does not count.

    Args:
        name: str, default `"perplexity"`.
        dtype: dtype of the result, default None for `keras.config.floatx()`.
        from_logits: bool, default True, whether the model returns logits; else it
            returns probabilities.
        ignore_class: int, label of rows that do not count, or None (default).
        axis: int, default -1, the axis of the words.

    Example:

    >>> metric = keras_mp.metrics.Perplexity()
    >>> metric.update_state([0, 3], np.zeros((2, 4)))
    >>> round(float(metric.result()), 4)    # four words, all of them equally likely
    4.0
    """

    def __init__(
        self,
        name: str = "perplexity",
        dtype: Any = None,
        from_logits: bool = True,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(name, dtype, from_logits, ignore_class, axis)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        found = _last_pass(y_pred)
        if (
            found is not None
            and found.y_true is y_true
            and found.ignore_class == self.ignore_class
        ):
            rows = found.rows.loss
        else:
            logits = ops.convert_to_tensor(y_pred)
            rows = keras.losses.sparse_categorical_crossentropy(
                ops.convert_to_tensor(y_true),
                logits,
                self.from_logits,
                self.ignore_class,
                self.axis,
            )
        counts = None
        if self.ignore_class is not None:
            labels = ops.reshape(ops.convert_to_tensor(y_true), ops.shape(rows))
            counts = ops.not_equal(labels, ops.cast(self.ignore_class, labels.dtype))
        mask = keras_internals.mask_of(y_pred)
        weights = _weights(rows, mask, counts, sample_weight)
        keras.metrics.Mean.update_state(self, rows, weights)

    def result(self) -> Any:
        return ops.exp(super().result())


def _last_pass(y_pred: Any) -> linear_logits.Pass | None:
    """Returns what the loss has found, if it was computed in this graph."""
    found = linear_logits.behind(y_pred)
    if isinstance(found, str) or found.last_pass is None:
        return None
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    return found.last_pass if found.last_pass.graph is graph else None


def _labels(y_true: Any, found: linear_logits.Pass) -> Any:
    labels = ops.convert_to_tensor(y_true)
    return ops.cast(ops.reshape(labels, ops.shape(found.rows.argmax)), "int64")


def _weights(values: Any, *factors: Any) -> Any:
    """Returns the product of the factors that are not None, a number for each value."""
    weights = None
    rank = len(values.shape)
    for factor in factors:
        if factor is None:
            continue
        factor = ops.cast(ops.convert_to_tensor(factor), values.dtype)
        if len(factor.shape) > rank:
            factor = ops.squeeze(factor, -1)
        for _ in range(rank - len(factor.shape)):
            factor = ops.expand_dims(factor, -1)
        weights = factor if weights is None else weights * factor
    return None if weights is None else weights * ops.ones_like(values)
