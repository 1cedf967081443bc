"""The optimizer: FP32 master weights, loss scaling, and the step that joins them."""

from keras_mp.optimizer.optimizer import FP32MasterOptimizer, wrap

__all__ = ["FP32MasterOptimizer", "wrap"]
