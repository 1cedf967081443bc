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
    pooling,  # noqa: F401
    row_normalization,  # noqa: F401
)
from keras_mp.ops.attention import dot_product_attention
from keras_mp.ops.build_info import build_info
from keras_mp.ops.exponent_histogram import exponent_histogram
from keras_mp.ops.exponentials import log_softmax, logsumexp, softmax
from keras_mp.ops.gemm import fp16_gemm
from keras_mp.ops.linear_cross_entropy import linear_cross_entropy
from keras_mp.ops.reductions import cumsum, mean, segment_sum, sum
from keras_mp.ops.statistics import moments

__all__ = [
    "build_info",
    "cumsum",
    "dot_product_attention",
    "exponent_histogram",
    "fp16_gemm",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "mean",
    "moments",
    "segment_sum",
    "softmax",
    "sum",
]
