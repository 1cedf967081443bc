"""Attention whose products and softmax accumulate in FP32."""
