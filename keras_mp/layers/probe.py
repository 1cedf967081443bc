"""Probe, an identity; diagnostics report its input."""

from collections.abc import Callable
from typing import Any

import keras

from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class Probe(keras.layers.Layer):
    """Returns its input, and shows it to `inspect` and `NumericsCallback`.

    `inspect` sees what every layer returns. What the code of a layer computes in
    between, it sees where that passes through a Probe. `NumericsCallback` sees in `fit`
    what passes through a Probe: of a structure its first tensor, of several calls in a
    step the last; not inside of a loop, as in a cell of a recurrent layer.

    Args:
        **kwargs: `name` and `dtype`, as for any layer.

    Example:

    >>> class Block(keras.layers.Layer):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.dense = keras.layers.Dense(4)
    ...         self.scores = keras_mp.layers.Probe(name="scores")
    ...     def call(self, x):
    ...         return keras.ops.relu(self.scores(self.dense(x)))
    >>> Block()(np.ones((2, 3))).shape
    TensorShape([2, 4])

    Reference: Mixed Precision Training, section 3.2.
    """

    # What `NumericsCallback` passes a tensor through in training, or None.
    observe: Callable[[Any], Any] | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        first, *others = keras.tree.flatten(inputs)
        # A symbolic tensor, of a model that is being built, has no numbers.
        if keras.utils.is_keras_tensor(first):
            return inputs
        if training and self.observe is not None:
            observed = [self.observe(first), *others]
            return keras.tree.pack_sequence_as(inputs, observed)
        # Another tensor than the input: its gradient is that of what comes after it.
        return keras.tree.map_structure(keras.ops.copy, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape
