"""ReversibleEmbedding: a 16-bit reverse product with FP32 accumulation."""

import keras
from keras import ops

from keras_mp.layers.core.embedding import refuse_rounded_ids
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.linear_logits import attach
from keras_mp.layers.precision import multiplies, multiply, read_without_autocast
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class ReversibleEmbedding(KeepsPolicy, keras.layers.ReversibleEmbedding):
    """`keras.layers.ReversibleEmbedding` with a reverse product in FP32.

    `round(cap * tanh(inputs @ embeddings.T / cap))`, or the rounded product if there is
    no `logit_soft_cap`. Everything inside `round` is FP32, and so is the gradient of
    FP32 embeddings. The lookup is Keras's, and so is the product if
    `reverse_dtype` differs from the compute dtype.

    Args: as in `keras.layers.ReversibleEmbedding`.

    Example:

    >>> layer = keras_mp.layers.ReversibleEmbedding(
    ...     1, 5000, embeddings_initializer="ones", dtype="float16")
    >>> layer(np.full((1, 5000), 0.1, "float16"), reverse=True).numpy()
    array([[500.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if not reverse:
            refuse_rounded_ids(self, inputs)
            return super().call(inputs)
        tied, cap = self.tie_weights, self.logit_soft_cap
        same_dtype = self.reverse_dtype in (None, self.compute_dtype)
        if not (same_dtype and multiplies(self, inputs)):
            logits = super().call(inputs, reverse=True)
            inputs = ops.cast(inputs, self.reverse_dtype or self.compute_dtype)
            kernel = self.embeddings if tied else self.reverse_embeddings
            kernel = ops.cast(kernel, inputs.dtype)
            return attach(self, logits, inputs, kernel, None, tied, cap)
        kernel = read_without_autocast(
            lambda: self.embeddings if tied else self.reverse_embeddings
        )
        dtype = None if cap is None else "float32"
        logits = multiply(self, inputs, kernel, transpose_b=tied, output_dtype=dtype)
        if cap is not None:
            logits = ops.cast(cap * ops.tanh(logits / cap), self.compute_dtype)
        return attach(self, logits, inputs, kernel, None, tied, cap)
