"""AdditiveAttention: scores and softmax in FP32."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.attention.base_attention import apply_scores
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.precision import (
    multiplies,
    read_without_autocast,
    remat,
    uses_ops,
)
from keras_mp.typing import Tensor


def _additive_scores(query: Tensor, key: Tensor, *scales: Any) -> Any:
    """Returns `sum(scale * tanh(query + key))` for each query and key, in FP32."""
    query = ops.cast(ops.expand_dims(query, -2), "float32")
    key = ops.cast(ops.expand_dims(key, -3), "float32")
    terms = ops.tanh(query + key)
    for scale in scales:
        terms = ops.cast(scale, "float32") * terms
    return ops.sum(terms, axis=-1)


@keras.saving.register_keras_serializable(package="keras_mp")
class AdditiveAttention(KeepsPolicy, keras.layers.AdditiveAttention):
    """`keras.layers.AdditiveAttention` with FP32 scores and softmax.

    The scores `sum(scale * tanh(query + key))` of 16-bit queries and keys are computed
    in FP32 and not rounded before mask and softmax. The weights are rounded, and their
    product with the values accumulates in FP32.

    Args: as in `keras.layers.AdditiveAttention`.

    Example:

    >>> layer = keras_mp.layers.AdditiveAttention(use_scale=False, dtype="float16")
    >>> query, value = np.zeros((1, 1, 2)), np.array([[[1.0, 2.0], [1.0, 4.0]]])
    >>> layer([query, value, np.zeros((1, 2, 2))]).numpy()
    array([[[1., 3.]]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def _calculate_scores(self, query: Tensor, key: Tensor) -> Any:
        if not uses_ops(self, query, key):
            return super()._calculate_scores(query, key)
        scales = [] if self.scale is None else [read_without_autocast(self.scale)]
        return remat(_additive_scores, query, key, *scales)

    def _apply_scores(
        self,
        scores: Tensor,
        value: Tensor,
        scores_mask: Tensor | None = None,
        training: bool = False,
    ) -> tuple[Any, Any]:
        if not multiplies(self, value):
            return super()._apply_scores(scores, value, scores_mask, training)
        return apply_scores(self, scores, value, scores_mask, training)
