"""SimpleRNN: products in FP32."""

from typing import Any

import keras

from keras_mp.layers.precision import uses_ops
from keras_mp.layers.rnn.base_rnn import has_cell_of_type, loop
from keras_mp.layers.rnn.orthogonal_weights import BuildsCell
from keras_mp.layers.rnn.simple_rnn_cell import (
    SimpleRNNCell,
    SimpleRNNStep,
    project_simple,
)
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class SimpleRNN(BuildsCell, keras.layers.SimpleRNN):
    """`keras.layers.SimpleRNN` with 16-bit matrix products that accumulate in FP32.

    Products, bias and activation are FP32; the state is rounded once, when it is
    written. The inputs of all time steps are multiplied in one product before the
    loop, and the recurrent kernel is rounded once, also before it. The gradients of
    FP32 weights are FP32.

    Args: as in `keras.layers.SimpleRNN`.

    Example:

    >>> layer = keras_mp.layers.SimpleRNN(4, dtype="mixed_float16")
    >>> outputs = layer(np.ones((2, 5, 3)))
    >>> outputs.shape, outputs.dtype.name, layer.cell.kernel.dtype
    (TensorShape([2, 4]), 'float16', 'float32')

    Reference: Mixed Precision Training, section 3.3.
    """

    def inner_loop(
        self,
        sequences: Tensor,
        initial_state: Any,
        mask: Tensor,
        training: bool = False,
    ) -> Any:
        is_standard = has_cell_of_type(self, keras.layers.SimpleRNNCell, SimpleRNNCell)
        if not is_standard or not uses_ops(self.cell, sequences):
            return super().inner_loop(sequences, initial_state, mask, training=training)
        step = SimpleRNNStep(self.cell, initial_state[0], training)
        projected = project_simple(self.cell, sequences, training)
        return loop(self, step, projected, initial_state, mask)
