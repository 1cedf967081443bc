"""Activations that compute in FP32."""
