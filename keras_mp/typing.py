"""What arguments and results are, on every backend."""

from typing import Any, TypeAlias

# Of Keras's backend: eager, traced or symbolic.
Tensor: TypeAlias = Any
# A `keras.Variable`, or the `tf.Variable` of a model that is not of Keras.
Variable: TypeAlias = Any
# A `Tensor`; `tf.IndexedSlices`, some rows of a matrix; or None.
Gradient: TypeAlias = Any
# A `tf.distribute.Strategy`; None on other backends.
Strategy: TypeAlias = Any
