"""EinsumDense: a 16-bit product with FP32 accumulation."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.core.contraction import contract, is_matmul, parse
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.precision import (
    activate,
    activate_and_round,
    fused_activation,
    multiplies,
    read_kernel,
    read_without_autocast,
)


@keras.saving.register_keras_serializable(package="keras_mp")
class EinsumDense(KeepsPolicy, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense`, whose 16-bit product accumulates in FP32.

    `round(activation(einsum(equation, inputs, kernel) + bias))`; activations, gradients
    and exceptions are as in `keras_mp.layers.Dense`. An equation that is not a matrix
    product (it takes a diagonal, or sums over one operand alone) is computed as in
    Keras.

    Args: those of `keras.layers.EinsumDense`.

    Example:

    >>> layer = keras_mp.layers.EinsumDense(
    ...     "abc,cde->abde", (None, 2, 3), kernel_initializer="ones", dtype="float16")
    >>> outputs = layer(np.full((1, 2, 5000), 0.1, "float16"))
    >>> outputs.shape, float(outputs[0, 0, 0, 0])    # float64: 499.88
    (TensorShape([1, 2, 2, 3]), 500.0)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not multiplies(self, inputs):
            return super().call(inputs, training=training)
        a, b, output = parse(self.equation, len(inputs.shape))
        if not is_matmul(a, b, output):
            return super().call(inputs, training=training)
        kernel = read_kernel(self)
        bias = read_without_autocast(self.bias)
        if bias is None or set(self.bias_axes) == set(output) - set(a):
            activation = fused_activation(self.activation)
            outputs = contract(
                self, a, b, output, inputs, kernel, bias, activation=activation
            )
            return outputs if activation else activate(self.activation, outputs)
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
