"""The scalar variables of an optimizer: the loss scale and its counters."""

from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals


class ScalarVariable(keras.Variable):
    """A scalar that `float` and `int` also read on several replicas.

    Keras asks the variable of the backend, and on replicas that has neither.
    """

    def __float__(self) -> float:
        return float(ops.convert_to_numpy(self))

    def __int__(self) -> int:
        return int(ops.convert_to_numpy(self))


def add_scalar(optimizer: Any, name: str, value: float) -> ScalarVariable:
    """Returns a new scalar variable of an optimizer, the same on all replicas.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        name: str.
        value: the first value; a float makes it float32, an int makes it int.
    """
    with keras.name_scope(optimizer.name, caller=optimizer):
        variable = ScalarVariable(
            initializer=keras.initializers.Constant(value),
            shape=(),
            dtype="float32" if isinstance(value, float) else "int",
            trainable=False,
            aggregation="only_first_replica",
            name=name,
        )
    keras_internals.add_to_variables(optimizer, variable)
    return variable
