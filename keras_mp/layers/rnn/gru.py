"""GRU: products and gates in FP32."""

from typing import Any

import keras

from keras_mp.layers.precision import uses_ops
from keras_mp.layers.rnn.base_rnn import has_cell_of_type, keras_runs_cudnn, loop
from keras_mp.layers.rnn.gru_cell import GRUCell, GRUStep, project_gru
from keras_mp.layers.rnn.orthogonal_weights import BuildsCell
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class GRU(BuildsCell, keras.layers.GRU):
    """`keras.layers.GRU` with 16-bit matrix products that accumulate in FP32.

    Products, biases and gates are FP32; the state is rounded once, when it is written.
    The inputs of all time steps are multiplied in one product before the loop, and
    the recurrent kernel is rounded once, also before it. The gradients of FP32 weights
    are FP32. On a GPU, the layer runs in cuDNN if the Keras layer does.

    Args: as in `keras.layers.GRU`.

    Example:

    >>> layer = keras_mp.layers.GRU(4, return_sequences=True, dtype="mixed_float16")
    >>> outputs = layer(np.ones((2, 5, 3)))
    >>> outputs.shape, outputs.dtype.name, layer.cell.kernel.dtype
    (TensorShape([2, 5, 4]), 'float16', 'float32')

    Reference: Mixed Precision Training, section 3.3.
    """

    def inner_loop(
        self,
        sequences: Tensor,
        initial_state: Any,
        mask: Tensor,
        training: bool = False,
    ) -> Any:
        is_standard = has_cell_of_type(self, keras.layers.GRUCell, GRUCell)
        if (
            not is_standard
            or not uses_ops(self.cell, sequences)
            or keras_runs_cudnn(self, self.reset_after)
        ):
            return super().inner_loop(sequences, initial_state, mask, training=training)
        step = GRUStep(self.cell, initial_state[0], training)
        projected = project_gru(self.cell, sequences, training)
        return loop(self, step, projected, initial_state, mask)
