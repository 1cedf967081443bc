"""Dense layers, whose matrix products accumulate in FP32."""
