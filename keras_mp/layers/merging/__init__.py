"""Layers that join several inputs in FP32."""
