"""MultiHeadAttention: projections, scores and softmax in FP32."""

from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.layers.attention.base_attention import masked_softmax
from keras_mp.layers.attention.causal_mask import CausalMask, HidesLaterKeys, merge
from keras_mp.layers.attention.dropout import DropsByPosition
from keras_mp.layers.attention.one_pass import (
    attend_in_one_pass,
    can_attend_in_one_pass,
)
from keras_mp.layers.attention.projections import FP32Projections
from keras_mp.layers.core.contraction import contract, parse
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.precision import multiplies
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class MultiHeadAttention(
    KeepsPolicy,
    FP32Projections,
    DropsByPosition,
    HidesLaterKeys,
    keras.layers.MultiHeadAttention,
):
    """`keras.layers.MultiHeadAttention` with FP32 scores and softmax.

    The scores of 16-bit queries and keys accumulate in FP32 and are not rounded before
    scale, mask and softmax. A score above 65,504, which in FP16 is inf and makes the
    softmax NaN, stays finite. The projections are layers of the class
    `keras_mp.layers.EinsumDense`.

    On a CPU, `keras_mp.ops.dot_product_attention` computes the attention without a
    tensor of the scores: in 16 bits, if the scores are not returned. There, for
    inputs `[batch, length, size]`, the dropout drops other weights than Keras's from
    the same seed, and the same ones in every precision.

    Args: as in `keras.layers.MultiHeadAttention`.

    Example:

    >>> layer = keras_mp.layers.MultiHeadAttention(
    ...     1, 2, kernel_initializer="ones", dtype="float16")
    >>> x = np.full((1, 1, 2), 200.0, "float16")    # q.k = 2 * 400**2 = 320000
    >>> layer(x, x).numpy()
    array([[[800., 800.]]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> tuple[Any, Any]:
        if isinstance(attention_mask, CausalMask):
            attention_mask, use_causal_mask = attention_mask.other, True
        is_flash = keras_internals.uses_flash_attention(self)
        computes = not is_flash and multiplies(self, query, key, value)
        if (
            computes
            and not return_attention_scores
            and can_attend_in_one_pass(self, query, key, value)
        ):
            scale = keras_internals.scores_scale(self)
            outputs = attend_in_one_pass(
                self,
                query,
                key,
                value,
                attention_mask,
                scale,
                training,
                use_causal_mask,
            )
            return outputs, None
        if use_causal_mask:
            causal = keras_internals.causal_mask(self, query, value)
            attention_mask = merge(attention_mask, causal)
        if not computes:
            # Keras 3.8 has no such argument.
            options = (
                {"return_attention_scores": True} if return_attention_scores else {}
            )
            return super()._compute_attention(
                query, key, value, attention_mask, training, **options
            )
        rank = len(query.shape)
        scores = contract(
            self,
            *parse(keras_internals.scores_equation(self), rank),
            key,
            query,
            output_dtype="float32",
            alpha=keras_internals.scores_scale(self),
        )
        axes = range(-len(self.attention_axes), 0)
        mask = self._mask_for(scores, attention_mask)
        weights = masked_softmax(scores, mask, axes, self.compute_dtype)
        if mask is not None and (
            self.dropout > 0.0 or return_attention_scores or rank != 4
        ):
            # On this path, unlike that without dropout and returned scores, Keras lets
            # a query whose keys are all masked attend to nothing.
            weights = ops.where(mask, weights, 0.0)
        dropped = weights
        if self.dropout > 0.0:
            dropped = keras_internals.drop_attention_weights(self, weights, training)
        equation = parse(keras_internals.outputs_equation(self), len(weights.shape))
        return contract(self, *equation, dropped, value), weights

    def _mask_for(self, scores: Tensor, mask: Tensor) -> Any:
        """Returns the mask as bool with a dimension for the heads, or None."""
        if mask is None:
            return None
        heads = -2 * len(self.attention_axes) - 1
        for _ in range(len(scores.shape) - len(mask.shape)):
            mask = ops.expand_dims(mask, heads)
        return ops.cast(mask, "bool")
