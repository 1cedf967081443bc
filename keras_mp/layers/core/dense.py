"""Dense: a 16-bit product with FP32 accumulation."""

from typing import Any

import keras

from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.linear_logits import attach
from keras_mp.layers.precision import (
    activate,
    fused_activation,
    multiplies,
    multiply,
    read_kernel,
    read_without_autocast,
)
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class Dense(KeepsPolicy, keras.layers.Dense):
    """`keras.layers.Dense` with a 16-bit product that accumulates in FP32.

    `round(activation(inputs @ kernel + bias))`: everything inside `round` is FP32 for
    the activations relu, tanh, sigmoid and exact gelu; any other activation is applied
    after the rounding. The gradients of an FP32 kernel and bias are FP32 and never
    rounded to FP16. With a float32 policy, when quantized, and for sparse inputs the
    layer computes as in Keras. With LoRA the adapted kernel is computed in the dtype in
    which the kernel is stored.

    Args: as in `keras.layers.Dense`.

    Example:

    >>> layer = keras_mp.layers.Dense(1, kernel_initializer="ones", dtype="float16")
    >>> layer(np.full((1, 5000), 0.1, "float16")).numpy()    # float64: 499.88
    array([[500.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if not multiplies(self, inputs):
            outputs = super().call(inputs, training=training)
            return attach(self, outputs, inputs, self.kernel, self.bias)
        activation = fused_activation(self.activation)
        kernel, bias = read_kernel(self), read_without_autocast(self.bias)
        outputs = multiply(self, inputs, kernel, bias=bias, activation=activation)
        if not activation:
            outputs = activate(self.activation, outputs)
        return attach(self, outputs, inputs, kernel, bias)

    def quantize(
        self, mode: Any = None, type_check: bool = True, **options: Any
    ) -> None:
        # Keras's type check refuses subclasses. A quantized layer computes as Keras's.
        is_subclass = type_check and type(self) is not Dense
        super().quantize(mode, type_check=is_subclass, **options)
