"""EinsumDense: a 16-bit product with FP32 accumulation."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.core.contraction import contract, is_matmul, parse
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.linear_logits import attach
from keras_mp.layers.precision import (
    activate,
    activate_and_round,
    fused_activation,
    multiplies,
    read_kernel,
    read_without_autocast,
)
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class EinsumDense(KeepsPolicy, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` with a 16-bit product that accumulates in FP32.

    `round(activation(einsum(equation, inputs, kernel) + bias))`; activations, gradients
    and exceptions are as in `keras_mp.layers.Dense`. An equation that is not a matrix
    product (it takes a diagonal, or sums over only one operand) is computed as in
    Keras.

    Args: as in `keras.layers.EinsumDense`.

    Example:

    >>> layer = keras_mp.layers.EinsumDense(
    ...     "abc,cde->abde", (None, 2, 3), kernel_initializer="ones", dtype="float16")
    >>> outputs = layer(np.full((1, 2, 5000), 0.1, "float16"))
    >>> outputs.shape, float(outputs[0, 0, 0, 0])    # float64: 499.88
    (TensorShape([1, 2, 2, 3]), 500.0)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        a, b, output = parse(self.equation, len(inputs.shape))
        is_head = _is_head(a, b, output, self.bias_axes)
        if not multiplies(self, inputs):
            outputs = super().call(inputs, training=training)
            if not is_head:
                return outputs
            return attach(
                self, outputs, inputs, self.kernel, self.bias, b[0] == output[-1]
            )
        if not is_matmul(a, b, output):
            return super().call(inputs, training=training)
        kernel = read_kernel(self)
        bias = read_without_autocast(self.bias)
        if bias is None or set(self.bias_axes) == set(output) - set(a):
            activation = fused_activation(self.activation)
            outputs = contract(
                self, a, b, output, inputs, kernel, bias, activation=activation
            )
            if not activation:
                outputs = activate(self.activation, outputs)
            if not is_head:
                return outputs
            return attach(self, outputs, inputs, kernel, bias, b[0] == output[-1])
        outputs = contract(self, a, b, output, inputs, kernel, output_dtype="float32")
        return activate_and_round(
            outputs + ops.cast(bias, "float32"), self.activation, self.compute_dtype
        )

    def quantize(
        self, mode: Any = None, type_check: bool = True, **options: Any
    ) -> None:
        # Keras's type check refuses subclasses. A quantized layer computes as Keras's.
        is_subclass = type_check and type(self) is not EinsumDense
        super().quantize(mode, type_check=is_subclass, **options)


def _is_head(a: str, b: str, output: str, bias_axes: str | None) -> bool:
    """Tells whether each row of the inputs is multiplied by one matrix, as in Dense."""
    if len(b) != 2 or not is_matmul(a, b, output):
        return False
    is_dense = a[:-1] == output[:-1] and {a[-1], output[-1]} == set(b)
    return is_dense and bias_axes in (None, output[-1])
