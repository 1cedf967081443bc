"""Scores to weights, in FP32."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

# Half of it: from the largest score to the mask is still a finite distance.
_MASKED = float(np.finfo("float32").min) / 2


def masked_softmax(
    scores: Any, mask: Any, axes: Sequence[int] = (-1,), dtype: str = "float32"
) -> Any:
    """Returns the softmax of the scores in `dtype`, which alone is held.

    It is computed in FP32 and rounded once; the gradient is computed from the result.

    Args:
        scores: float32 tensor.
        mask: bool tensor that broadcasts to it, False where there is no attention, or
            None. Where a row has no True, its weights are equal.
        axes: over which the weights sum to 1.
        dtype: of the result.
    """
    from keras_mp.ops import softmax

    if mask is not None:
        scores = ops.where(mask, scores, _MASKED)
    return softmax(scores, axes, output_dtype=dtype)
