"""Convolutions that accumulate in FP32."""
