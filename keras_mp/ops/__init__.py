"""Operations that accumulate in FP32, whatever the dtype of their inputs."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "`keras_mp.ops` needs Keras on the TensorFlow backend. "
        f"Received: backend={keras.backend.backend()!r}. Use the functions of "
        "`keras.ops`, or set KERAS_BACKEND=tensorflow before Keras is imported."
    )

# The unused modules register the gradients of native ops.
from keras_mp.ops import (
    batch_normalization,  # noqa: F401
    depthwise_conv,  # noqa: F401
    exponentials,
    pooling,  # noqa: F401
    reductions,
    row_normalization,  # noqa: F401
    statistics,
)
from keras_mp.ops.build_info import build_info
from keras_mp.ops.exponent_histogram import exponent_histogram
from keras_mp.ops.gemm import fp16_gemm
from keras_mp.ops.symbolic import symbolic

cumsum = symbolic(reductions.cumsum, "x")
log_softmax = symbolic(exponentials.log_softmax, "x")
logsumexp = symbolic(exponentials.logsumexp, "x")
mean = symbolic(reductions.mean, "x")
moments = symbolic(statistics.moments, "x")
segment_sum = symbolic(reductions.segment_sum, "data", "segment_ids")
softmax = symbolic(exponentials.softmax, "x", "mask")
sum = symbolic(reductions.sum, "x")

__all__ = [
    "build_info",
    "cumsum",
    "exponent_histogram",
    "fp16_gemm",
    "log_softmax",
    "logsumexp",
    "mean",
    "moments",
    "segment_sum",
    "softmax",
    "sum",
]
