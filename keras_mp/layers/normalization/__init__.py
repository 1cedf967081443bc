"""Normalizations, with statistics and arithmetic in FP32."""
