"""What training holds for each parameter, in bytes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_mp.optimizer.master_weights import MasterWeights


def bytes_per_parameter(
    weights: Sequence[Any], master_weights: MasterWeights, optimizer: Any
) -> dict[str, float]:
    """Returns the bytes of weights, masters, state and gradients, for each parameter.

    Args:
        weights: list of the trainable variables.
        master_weights: their `MasterWeights`.
        optimizer: the inner `keras.optimizers.Optimizer`.
    """
    parameters = sum(math.prod(weight.shape) for weight in weights)
    parts = master_weights.slot_variables
    in_slots = {id(part) for part in parts}
    masters = [v for v in master_weights.own_variables if id(v) not in in_slots]
    state = [v for v in (*optimizer.variables, *parts) if len(v.shape) > 0]
    held = {
        "weights": _bytes(weights),
        "masters": _bytes(masters),
        "state": _bytes(state),
        "gradients": _bytes(weights),
    }
    held["total"] = sum(held.values())
    return {name: size / max(parameters, 1) for name, size in held.items()}


def _bytes(variables: Iterable[Any]) -> int:
    return sum(math.prod(v.shape) * _size(v) for v in variables)


def _size(variable: Any) -> int:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
