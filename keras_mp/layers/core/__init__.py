"""Dense layers with matrix products that accumulate in FP32."""
