"""Gives a Llama a residual stream that FP16 cannot hold, and leaves its function."""

import re
from typing import Any

import keras
import numpy as np

# What writes into the residual stream. All that reads it is an RMS norm, which divides
# by the size of what it is given: a stream twice as large gives the same logits.
WRITERS = re.compile(
    r"token_embedding/embeddings$|(attention|feedforward)_output(_dense)?/kernel$"
)
FP16_MAX = 65_504.0


def largest_in_stream(backbone: Any, x: Any) -> float:
    """Returns the largest magnitude that the residual stream has in a batch.

    Args:
        backbone: `keras_hub.models.LlamaBackbone`.
        x: dict of its inputs.
    """
    outputs = [layer.output for layer in backbone.transformer_layers]
    streams = keras.Model(backbone.input, outputs).predict_on_batch(x)
    return max(float(np.max(np.abs(stream))) for stream in streams)


def enlarge_stream(backbone: Any, x: Any, size: float) -> float:
    """Multiplies the residual stream by a power of two.

    Its largest magnitude in a batch is then from `size / 2` to `size`. Logits stay what
    they were, but for the epsilon of the norms.

    Args:
        backbone: `keras_hub.models.LlamaBackbone`, which is changed.
        x: dict of its inputs, the batch.
        size: float.

    Returns:
        The power of two.

    Raises:
        ValueError: a weight would not fit into FP16, in which it is to be stored.
    """
    factor = 2.0 ** np.floor(np.log2(size / largest_in_stream(backbone, x)))
    writers = [v for v in backbone.trainable_variables if WRITERS.search(v.path)]
    largest = factor * max(float(np.max(np.abs(v.numpy()))) for v in writers)
    if largest > FP16_MAX:
        raise ValueError(
            "The weights that write into the stream must stay within 65504. Received: "
            f"outliers={size:g}, for which one is {largest:g}: the model has hardly "
            "been trained. Train more steps, or choose smaller --outliers."
        )
    for variable in writers:
        variable.assign(factor * variable.numpy())
    return float(factor)
