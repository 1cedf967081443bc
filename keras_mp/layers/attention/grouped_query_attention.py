"""GroupQueryAttention: projections, scores and softmax in FP32."""

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


# The class is called GroupedQueryAttention in Keras, too, and exported under the other
# name; default names of layers and weights derive from the name of the class.
@keras.saving.register_keras_serializable(package="keras_mp")
class GroupedQueryAttention(
    KeepsPolicy,
    FP32Projections,
    DropsByPosition,
    HidesLaterKeys,
    keras.layers.GroupQueryAttention,
):
    """`keras.layers.GroupQueryAttention` with FP32 scores and softmax.

    As in `keras_mp.layers.MultiHeadAttention`, a score above 65,504 stays finite, the
    projections are layers of the class `keras_mp.layers.EinsumDense`, and on a CPU no
    tensor of the scores is made; dropout is as there.

    Args: as in `keras.layers.GroupQueryAttention`.

    Example:

    >>> layer = keras_mp.layers.GroupQueryAttention(
    ...     2, 1, 1, kernel_initializer="ones", dtype="float16")
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
        attention_mask: Any = None,
        training: bool | None = None,
    ) -> tuple[Any, Any]:
        is_causal = isinstance(attention_mask, CausalMask)
        if is_causal:
            attention_mask = attention_mask.other
        is_flash = keras_internals.uses_flash_attention(self)
        computes = not is_flash and multiplies(self, query, key, value)
        returns_scores = keras_internals.returns_attention_scores(self)
        if (
            computes
            and not returns_scores
            and can_attend_in_one_pass(self, query, key, value)
        ):
            scale = keras_internals.grouped_query_scores_scale(self)
            outputs = attend_in_one_pass(
                self, query, key, value, attention_mask, scale, training, is_causal
            )
            return outputs, None
        if is_causal:
            causal = keras_internals.causal_mask(self, query, value)
            attention_mask = merge(attention_mask, causal)
        if not computes:
            return super()._compute_attention(
                query, key, value, attention_mask, training
            )
        scores = contract(
            self,
            *parse(keras_internals.scores_equation(self), 4),
            query,
            key,
            output_dtype="float32",
            alpha=keras_internals.grouped_query_scores_scale(self),
        )
        mask = attention_mask
        if mask is not None:
            if len(mask.shape) < 4:
                mask = ops.expand_dims(mask, -3)
            mask = ops.cast(mask, "bool")
        weights = masked_softmax(scores, mask, dtype=self.compute_dtype)
        if mask is not None and (self.dropout > 0.0 or returns_scores):
            # On this path, unlike that without dropout and returned scores, Keras lets
            # a query whose keys are all masked attend to nothing.
            weights = ops.where(mask, weights, 0.0)
        dropped = weights
        if self.dropout > 0.0:
            dropped = keras_internals.drop_attention_weights(self, weights, training)
        equation = parse(keras_internals.outputs_equation(self), 4)
        return contract(self, *equation, dropped, value), weights
