"""Operations that accumulate in FP32, whatever the dtype of their inputs."""

from keras_mp.ops.build_info import build_info
from keras_mp.ops.gemm import fp16_gemm

__all__ = ["build_info", "fp16_gemm"]
