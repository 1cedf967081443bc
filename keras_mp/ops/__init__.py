"""Operations that accumulate in FP32, whatever the dtype of their inputs."""

from keras_mp.ops.gemm import fp16_gemm

__all__ = ["fp16_gemm"]
