"""The optimizer: FP32 master weights, loss scaling, and the step that joins them."""

from keras_mp.optimizer.fp32_master_optimizer import FP32MasterOptimizer
from keras_mp.optimizer.wrap import wrap

__all__ = ["FP32MasterOptimizer", "wrap"]
