"""Attention: scores and softmax in FP32."""

import functools
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.layers.attention.base_attention import apply_scores
from keras_mp.layers.attention.dropout import drop_without_heads, hashes_positions
from keras_mp.layers.attention.one_pass import (
    attend_without_heads,
    can_attend_without_heads,
)
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.precision import (
    multiplies,
    multiply,
    read_without_autocast,
    remat,
    uses_ops,
)
from keras_mp.typing import Tensor


def _dot_scores(layer: keras.Layer, query: Tensor, key: Tensor, *scales: Any) -> Any:
    """Returns `scale * query @ key.T` in FP32."""
    scores = multiply(layer, query, key, transpose_b=True, output_dtype="float32")
    for scale in scales:
        scores = ops.cast(scale, "float32") * scores
    return scores


def _concat_scores(query: Tensor, key: Tensor, weight: Any, *scales: Any) -> Any:
    """Returns `weight * sum(tanh(scale * (query + key)))` in FP32."""
    query = ops.cast(ops.expand_dims(query, -2), "float32")
    key = ops.cast(ops.expand_dims(key, -3), "float32")
    terms = query + key
    for scale in scales:
        terms = ops.cast(scale, "float32") * terms
    return ops.cast(weight, "float32") * ops.sum(ops.tanh(terms), axis=-1)


@keras.saving.register_keras_serializable(package="keras_mp")
class Attention(KeepsPolicy, keras.layers.Attention):
    """`keras.layers.Attention` with FP32 scores and softmax.

    The scores of 16-bit queries and keys accumulate in FP32 and are not rounded before
    scale, mask and softmax. A score above 65,504, which in FP16 is inf and makes the
    softmax NaN, stays finite. The weights are rounded, and their product with the
    values accumulates in FP32.

    On a CPU, `keras_mp.ops.dot_product_attention` computes the dot score in 16 bits,
    without a tensor of the scores and without rounded weights, if `use_scale` is False
    and the scores are not returned. There the dropout drops other weights in 16 bits
    than Keras's from the same seed.

    Args: as in `keras.layers.Attention`.

    Example:

    >>> query = np.full((1, 1, 2), 300.0, "float16")    # 300 * 300 * 2 = 180000
    >>> keras_mp.layers.Attention(dtype="float16")([query, query]).numpy()
    array([[[300., 300.]]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    # What `call` computes by the kernel it leaves to the methods that a subclass has.
    delegated_methods = frozenset({"call"})

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        training: bool = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Tensor:
        if return_attention_scores or not self._attends_in_one_pass(inputs, mask):
            return super().call(
                inputs,
                mask=mask,
                training=training,
                return_attention_scores=return_attention_scores,
                use_causal_mask=use_causal_mask,
            )
        query, value = inputs[:2]
        query_mask, value_mask = mask[:2] if mask else (None, None)
        outputs = attend_without_heads(
            self, query, inputs[-1], value, value_mask, training, use_causal_mask
        )
        if query_mask is None:
            return outputs
        zero = ops.zeros((), outputs.dtype)
        return ops.where(ops.expand_dims(query_mask, -1), outputs, zero)

    def _attends_in_one_pass(self, inputs: Tensor, mask: Tensor) -> bool:
        """Tells whether the kernel computes this, and a subclass nothing else."""
        return (
            not keras_internals.attends_otherwise(type(self), Attention)
            and self.score_mode == "dot"
            and self.scale is None
            and isinstance(inputs, list)
            and len(inputs) in (2, 3)
            and (mask is None or (isinstance(mask, list) and len(mask) in (2, 3)))
            and can_attend_without_heads(self, *inputs)
        )

    def _calculate_scores(self, query: Tensor, key: Tensor) -> Any:
        if not multiplies(self, query, key):
            return super()._calculate_scores(query, key)
        scales = [] if self.scale is None else [read_without_autocast(self.scale)]
        if self.score_mode == "dot":
            if not scales:
                return _dot_scores(self, query, key)
            compute = functools.partial(_dot_scores, self)
            return remat(compute, query, key, *scales)
        weight = read_without_autocast(self.concat_score_weight)
        return remat(_concat_scores, query, key, weight, *scales)

    def _apply_scores(
        self,
        scores: Tensor,
        value: Tensor,
        scores_mask: Tensor | None = None,
        training: bool = False,
    ) -> tuple[Any, Any]:
        if not multiplies(self, value):
            return super()._apply_scores(scores, value, scores_mask, training)
        is_own = uses_ops(self, value) and len(scores.shape) == 3 and hashes_positions()
        drop = drop_without_heads if is_own else keras.random.dropout
        return apply_scores(self, scores, value, scores_mask, training, drop)
