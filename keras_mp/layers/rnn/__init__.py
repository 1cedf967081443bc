"""Recurrent layers with gates that are summed in FP32."""
