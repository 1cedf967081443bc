"""What FP16 does to a model: its numbers, its gradients, its updates."""
