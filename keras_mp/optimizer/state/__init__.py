"""How an FP32 variable of the optimizer is stored in fewer bits."""
