"""Cross entropies from the input of a linear layer, instead of its logits."""

import warnings
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.layers import linear_logits
from keras_mp.typing import Tensor

__all__ = ["CategoricalCrossentropy", "SparseCategoricalCrossentropy"]


class _Rows(keras.losses.Loss):
    """Masks, weights and reduces as Keras what was computed for each row."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        return y_pred


class _LinearLoss:
    """Mixin for a cross entropy of Keras; `rows` computes from a linear layer."""

    _has_warned = False

    def __call__(
        self: Any, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None
    ) -> Any:
        found = linear_logits.behind(y_pred)
        if not self.from_logits:
            found = "from_logits is False"
        elif self.axis not in (-1, len(y_pred.shape) - 1):
            found = f"axis={self.axis} is not the last one"
        if isinstance(found, str):
            is_tensorflow = keras.backend.backend() == "tensorflow"
            is_trial = is_tensorflow and keras_internals.in_scratch_graph()
            if not (self._has_warned or is_trial):
                self._has_warned = True
                warnings.warn(
                    f"{self.name} reads all the logits, as Keras's loss does, because "
                    f"{found}. The result is the same as Keras's.",
                    stacklevel=2,
                )
            return super().__call__(y_true, y_pred, sample_weight)  # type: ignore[misc]
        with keras.name_scope(self.name):
            rows, mask = self._rows(found, y_true)
        of_model = keras_internals.mask_of(y_pred)
        if mask is None or of_model is None:
            mask = of_model if mask is None else mask
        else:
            mask = ops.logical_and(mask, ops.cast(of_model, "bool"))
        # A tensor of its own: the metrics read the rows without this mask.
        rows = ops.cast(rows, self.dtype) + ops.zeros([], self.dtype)
        keras_internals.attach_mask(rows, mask)
        reduced = _Rows(self.name, self.reduction, self.dtype)
        return reduced(rows, rows, sample_weight)


@keras.saving.register_keras_serializable(package="keras_mp")
class SparseCategoricalCrossentropy(
    _LinearLoss, keras.losses.SparseCategoricalCrossentropy
):
    """`keras.losses.SparseCategoricalCrossentropy`, which does without the logits.

    With `from_logits=True` the loss finds the layer behind `y_pred`, a `Dense`,
    `EinsumDense` or `ReversibleEmbedding` of `keras_mp.layers`, such as
    `keras_mp.convert` makes, and computes `linear_cross_entropy` from its inputs and
    weights, in FP32. Masks, sample weights and reductions work as in Keras. In a graph,
    as in `fit`, with XLA and without, the logits are then never in memory, unless
    something else reads them: a metric of Keras does, `keras_mp.metrics` do not. In
    eager mode the layer has computed them before the loss is called.

    Without such a layer, or with an activation between it and the loss, the loss is
    Keras's, and warns once. A label outside the vocabulary makes the loss NaN.

    Args:
        from_logits: bool, default False. Without True the loss is Keras's.
        ignore_class: int, the label of rows that do not count, or None (default).
        reduction: str or None, as in Keras. Defaults to `"sum_over_batch_size"`.
        axis: int, default -1, the axis of the words. With another one the loss is
            Keras's.
        name: str.
        dtype: dtype of the result, default None for `keras.config.floatx()`.

    Example:

    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(50257)])
    >>> model = keras_mp.convert(model)
    >>> loss = keras_mp.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile("sgd", loss)
    >>> value = model.train_on_batch(np.zeros((2, 8)), np.array([3, 50256]))
    >>> round(float(value), 3)
    10.825

    Reference: Cut Your Losses in Large-Vocabulary Language Models (Wijmans et al.,
    2024).
    """

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        axis: int = -1,
        name: str = "sparse_categorical_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(from_logits, ignore_class, reduction, axis, name, dtype)
        self.axis = axis

    def get_config(self) -> dict[str, Any]:
        # That of Keras leaves the axis out.
        return {**super().get_config(), "axis": self.axis}

    def _rows(self, found: linear_logits.LinearLogits, y_true: Tensor) -> Any:
        import tensorflow as tf

        from keras_mp.ops import linear_cross_entropy

        labels = ops.convert_to_tensor(y_true)
        if len(labels.shape) == len(found.inputs.shape) and labels.shape[-1] == 1:
            labels = ops.squeeze(labels, -1)
        labels = ops.cast(labels, "int64")
        rows = linear_cross_entropy(
            found.inputs,
            found.kernel,
            labels,
            found.bias,
            found.transpose,
            found.soft_cap,
            ignore_class=self.ignore_class,
            return_statistics=True,
        )
        found.last_pass = linear_logits.Pass(
            y_true, self.ignore_class, tf.compat.v1.get_default_graph(), rows
        )
        if self.ignore_class is None:
            return rows.loss, None
        return rows.loss, ops.not_equal(labels, self.ignore_class)


@keras.saving.register_keras_serializable(package="keras_mp")
class CategoricalCrossentropy(_LinearLoss, keras.losses.CategoricalCrossentropy):
    """`keras.losses.CategoricalCrossentropy`, which does without the logits.

    As `SparseCategoricalCrossentropy`. The labels, a probability for each word, are as
    large as the logits would be: integers are better with one word a row. The
    labels get no gradient.

    Args:
        from_logits: bool, default False. Without True the loss is Keras's.
        label_smoothing: float from 0 (default) to 1, the share of each label that is
            spread over all words.
        axis: int, default -1, the axis of the words. With another one the loss is
            Keras's.
        reduction: str or None, as in Keras. Defaults to `"sum_over_batch_size"`.
        name: str.
        dtype: dtype of the result, default None for `keras.config.floatx()`.

    Example:

    >>> layer = keras_mp.layers.Dense(4)
    >>> loss = keras_mp.losses.CategoricalCrossentropy(from_logits=True)
    >>> round(float(loss([[0.0, 0.5, 0.5, 0.0]], layer(np.zeros((1, 2))))), 4)
    1.3863

    Reference: Cut Your Losses in Large-Vocabulary Language Models (Wijmans et al.,
    2024).
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "categorical_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(from_logits, label_smoothing, axis, reduction, name, dtype)

    def _rows(self, found: linear_logits.LinearLogits, y_true: Tensor) -> Any:
        from keras_mp.ops import linear_cross_entropy

        labels = ops.cast(y_true, self.dtype)
        if self.label_smoothing:
            # On the labels: as in Keras, rows of zeros are smoothed, too.
            share = self.label_smoothing / labels.shape[-1]
            labels = labels * (1.0 - self.label_smoothing) + share
        rows = linear_cross_entropy(
            found.inputs,
            found.kernel,
            labels,
            found.bias,
            found.transpose,
            found.soft_cap,
        )
        return rows, None
