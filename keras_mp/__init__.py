"""Mixed precision training (Micikevicius et al., 2018) for Keras 3."""

import importlib as _importlib
import typing as _typing

import keras as _keras

from keras_mp import layers, losses, metrics
from keras_mp.callbacks import (
    LossScaleCallback,
    LossScaleCollapseError,
    SwapEMAWeights,
)
from keras_mp.checkpoints import Checkpoints
from keras_mp.diagnostics.estimate_memory import MemoryUse, estimate_memory
from keras_mp.diagnostics.find_overflow import Overflow, find_overflow
from keras_mp.diagnostics.inspect import inspect
from keras_mp.diagnostics.numerics import Numerics
from keras_mp.diagnostics.numerics_callback import NumericsCallback
from keras_mp.diagnostics.suggest_loss_scale import suggest_loss_scale
from keras_mp.export import export_weights
from keras_mp.layers.float16_matmul_policy import Float16MatmulPolicy
from keras_mp.loss_scale import (
    ConstantLossScale,
    DynamicLossScale,
    LossScale,
    LossScaleState,
)
from keras_mp.optimizer import FP32MasterOptimizer, wrap
from keras_mp.optimizer.arguments import Int4State, Int8State
from keras_mp.precision.conversion_report import ConversionReport, conversion_report
from keras_mp.precision.convert import convert, to_keras
from keras_mp.precision.plan_precision import plan_precision
from keras_mp.precision.precision_plan import PrecisionPlan
from keras_mp.precision.precision_plan_callback import PrecisionPlanCallback
from keras_mp.registration import register_ops as _register_ops
from keras_mp.regularizers import FP32Regularizer, regularize_in_fp32
from keras_mp.statistical_loss_scale import StatisticalLossScale

if _typing.TYPE_CHECKING:
    from keras_mp import ops

__version__ = "0.1.0"

__all__ = [
    "Checkpoints",
    "ConstantLossScale",
    "ConversionReport",
    "DynamicLossScale",
    "FP32MasterOptimizer",
    "FP32Regularizer",
    "Float16MatmulPolicy",
    "Int4State",
    "Int8State",
    "LossScale",
    "LossScaleCallback",
    "LossScaleCollapseError",
    "LossScaleState",
    "MemoryUse",
    "Numerics",
    "NumericsCallback",
    "Overflow",
    "PrecisionPlan",
    "PrecisionPlanCallback",
    "StatisticalLossScale",
    "SwapEMAWeights",
    "conversion_report",
    "convert",
    "estimate_memory",
    "export_weights",
    "find_overflow",
    "inspect",
    "layers",
    "losses",
    "metrics",
    "ops",
    "plan_precision",
    "regularize_in_fp32",
    "suggest_loss_scale",
    "to_keras",
    "wrap",
]
if _keras.backend.backend() != "tensorflow":
    __all__.remove("ops")  # which needs it, and says so

_register_ops()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Imports `ops`, which needs TensorFlow, when it is first used."""
    if name == "ops":
        return _importlib.import_module("keras_mp.ops")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
