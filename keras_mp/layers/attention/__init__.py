"""Attention with matrix products and softmax that accumulate in FP32."""
