"""Average pooling that sums in FP32."""
