"""Dense layers, whose products accumulate in FP32."""
