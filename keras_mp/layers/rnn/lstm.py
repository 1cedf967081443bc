"""LSTM: products and gates in FP32."""

from typing import Any

import keras

from keras_mp.layers.precision import uses_ops
from keras_mp.layers.rnn.base_rnn import has_cell_of_type, keras_runs_cudnn, loop
from keras_mp.layers.rnn.lstm_cell import LSTMCell, LSTMStep, project_lstm
from keras_mp.layers.rnn.orthogonal_weights import BuildsCell
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class LSTM(BuildsCell, keras.layers.LSTM):
    """`keras.layers.LSTM` with 16-bit matrix products that accumulate in FP32.

    Products, bias and gates are FP32; `h` and `c` are rounded once, when they are
    written. The inputs of all time steps are multiplied in one product before the
    loop, and the recurrent kernel is rounded once, also before it. The gradients of
    FP32 weights are FP32. On a GPU, the layer runs in cuDNN if the Keras layer does.

    Args: as in `keras.layers.LSTM`.

    Example:

    >>> layer = keras_mp.layers.LSTM(4, return_state=True, dtype="mixed_float16")
    >>> outputs, h, c = layer(np.ones((2, 5, 3)))
    >>> h.shape, c.dtype.name, layer.cell.kernel.dtype
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
        is_standard = has_cell_of_type(self, keras.layers.LSTMCell, LSTMCell)
        if (
            not is_standard
            or not uses_ops(self.cell, sequences)
            or keras_runs_cudnn(self)
        ):
            return super().inner_loop(sequences, initial_state, mask, training=training)
        step = LSTMStep(self.cell, initial_state[0], training)
        projected = project_lstm(self.cell, sequences, training)
        return loop(self, step, projected, initial_state, mask)
