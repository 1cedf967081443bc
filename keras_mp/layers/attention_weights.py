"""Scores to weights, in FP32."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

# Half of it: from the largest score to the mask is still a finite distance.
_MASKED = float(np.finfo("float32").min) / 2


def weights_of(
    scores: Any, mask: Any, axes: Sequence[int] = (-1,), dtype: str = "float32"
) -> Any:
    """Returns the softmax of the scores in `dtype`; it sums in FP32.

    Args:
        scores: float32 tensor.
        mask: bool tensor that broadcasts to it, False where there is no attention, or
            None. Where a row has no True, its weights are equal.
        axes: over which the weights sum to 1.
        dtype: of the result.
    """
    if mask is not None:
        scores = ops.where(mask, scores, _MASKED)
    # Keras warns of a softmax over one number; attention to one key is no mistake.
    if len(axes) == 1 and scores.shape[axes[0]] != 1:
        return ops.cast(ops.softmax(scores, axis=axes[0]), dtype)
    logarithm = ops.logsumexp(scores, axis=tuple(axes), keepdims=True)
    return ops.cast(ops.exp(scores - logarithm), dtype)
