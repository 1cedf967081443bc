"""Recurrent layers whose gates are summed in FP32."""
