"""Dense, its product accumulated in FP32."""

from typing import Any

import keras

from keras_mp.layers.precision import (
    activate,
    fused_activation,
    gemm,
    read_without_autocast,
    uses_ops,
)


@keras.saving.register_keras_serializable(package="keras_mp")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, whose 16-bit product accumulates in FP32.

    `round(activation(inputs @ kernel + bias))`: everything inside `round` is FP32 for
    the activations relu, tanh, sigmoid and exact gelu; another one is applied after the
    rounding. The gradients of an FP32 kernel and bias are FP32, not rounded to FP16 on
    the way. With a float32 policy, quantized, or on sparse inputs it computes as the
    Keras layer; with LoRA the adapted kernel is made in the dtype it is stored in.

    Args: those of `keras.layers.Dense`.

    Example:

    >>> layer = keras_mp.layers.Dense(1, kernel_initializer="ones", dtype="float16")
    >>> layer(np.full((1, 5000), 0.1, "float16")).numpy()    # float64: 499.88
    array([[500.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if not uses_ops(self, inputs):
            return super().call(inputs, training=training)
        activation = fused_activation(self.activation)
        outputs = gemm(
            inputs,
            read_without_autocast(lambda: self.kernel),
            bias=read_without_autocast(self.bias),
            activation=activation,
        )
        return outputs if activation else activate(self.activation, outputs)

    def quantize(
        self, mode: Any = None, type_check: bool = True, **options: Any
    ) -> None:
        # Keras quantizes its own class only, and what it then computes is its own.
        is_subclass = type_check and type(self) is not Dense
        super().quantize(mode, type_check=is_subclass, **options)
