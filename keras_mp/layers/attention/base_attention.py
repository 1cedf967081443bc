"""Shared by the attention layers: from FP32 scores to weights and outputs."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.layers.precision import multiply
from keras_mp.typing import Tensor

# Half the minimum, so that its difference to any score is finite.
_MASKED = float(np.finfo("float32").min) / 2


def masked_softmax(
    scores: Tensor, mask: Tensor, axes: Sequence[int] = (-1,), dtype: str = "float32"
) -> Any:
    """Returns the softmax of the scores, computed in FP32 and rounded once to `dtype`.

    The gradient is computed from the result, the only tensor kept for the backward
    pass.

    Args:
        scores: float32 tensor.
        mask: bool tensor that broadcasts to the scores, or None. Where it is False, the
            weight is 0; in a row without a True, all weights are equal.
        axes: the axes over which the weights sum to 1.
        dtype: the dtype of the result.
    """
    from keras_mp.ops import softmax

    if mask is not None:
        scores = ops.where(mask, scores, _MASKED)
    return softmax(scores, axes, output_dtype=dtype)


def apply_scores(
    layer: keras.Layer,
    scores: Tensor,
    value: Tensor,
    mask: Tensor,
    training: bool,
    drop: Callable[..., Any] = keras.random.dropout,
) -> tuple[Any, Any]:
    """Returns the attention outputs and weights, both in the dtype of `value`.

    Args:
        layer: `keras.layers.Attention`, for its dropout and its dtype policy.
        scores: float32, `[batch, queries, values]`.
        value: tensor of the compute dtype, `[batch, values, size]`.
        mask: bool, `[batch, values]`, `[batch, 1 or queries, values]`, or None.
        training: bool.
        drop: function of weights, a rate and `seed`.
    """
    if mask is not None and len(mask.shape) == 2:
        mask = ops.expand_dims(mask, axis=-2)
    weights = masked_softmax(scores, mask, dtype=layer.compute_dtype)
    if training and layer.dropout > 0:
        weights = drop(weights, layer.dropout, seed=layer.seed_generator)
    return multiply(layer, weights, value), weights
