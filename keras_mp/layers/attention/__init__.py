"""Attention whose matrix products and softmax accumulate in FP32."""
