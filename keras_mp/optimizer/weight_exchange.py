"""Weights of a built optimizer that are stored in FP32 from now on."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.fp32_master_optimizer import FP32MasterOptimizer
from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.masters import reference_of


def can_exchange_weights(optimizer: Any) -> bool:
    """Tells whether an optimizer is a wrapped one, on one replica."""
    if not isinstance(optimizer, FP32MasterOptimizer):
        return False
    return backend.replicas_in(backend.strategy_of(optimizer)) == 1


def exchange_weights(
    optimizer: FP32MasterOptimizer, new: Mapping[int, keras.Variable]
) -> None:
    """Has FP32 variables take the place of weights that are stored in 16 bits.

    Each takes the value and the slots of its weight's master, and is its own master. A
    function that was traced before updates the weights of before.

    Args:
        optimizer: built, on one replica.
        new: dict from the `id` of a weight to the float32 variable.
    """
    values = optimizer.current_masters()
    weights = list(keras_internals.trainable_variables(optimizer))
    masters = optimizer._master_weights
    of_masters = {}
    for weight, master in zip(weights, masters.all, strict=True):
        if id(weight) not in new or id(weight) not in values:
            continue
        variable = of_masters[id(master)] = new[id(weight)]
        variable.assign(values[id(weight)])
        keras_internals.exchange_variable(optimizer, weight, variable)
        for leaf in leaves(optimizer.inner_optimizer):
            keras_internals.exchange_variable(leaf, reference_of(master), variable)
    variables = list(keras_internals.trainable_variables(optimizer))
    optimizer._master_weights = masters.exchanged(variables, of_masters)
    kept = {id(variable) for variable in optimizer._master_weights.own_variables}
    for variable in masters.own_variables:
        if id(variable) not in kept:
            keras_internals.remove_from_variables(optimizer, variable)
