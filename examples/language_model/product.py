"""Matrix products in FP32."""

from typing import Any

import keras
from keras import ops

import keras_mp


def product(a: Any, b: Any, bias: Any = None, transpose_b: bool = False) -> Any:
    """Returns `a @ b + bias` in FP32, of FP16 or FP32 matrices."""
    if keras.backend.standardize_dtype(a.dtype) == "float32":
        result = ops.matmul(a, ops.transpose(b) if transpose_b else b)
        return result if bias is None else result + bias
    return keras_mp.ops.fp16_gemm(
        a, b, transpose_b=transpose_b, bias=bias, output_dtype="float32"
    )
