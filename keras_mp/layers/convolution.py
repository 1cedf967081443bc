"""What the convolutions share: FP32 arithmetic between 16-bit inputs and outputs."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.precision import HALVES, finish, stored


class FP32OnCPU:
    """Mixed into a Keras convolution: computes a 16-bit one in FP32 on a CPU.

    TensorFlow's own takes about ten times as long there as the one in FP32. The choice
    is made when the layer is called or traced, for the machine: where TensorFlow sees
    a GPU or TPU, Keras's own convolution runs, which accumulates in FP32 there. It is
    the same with XLA and without.

    Inputs and weights are 16-bit numbers, converted; products, bias and activation are
    FP32, and the result is rounded once. The gradients of FP32 weights are FP32.
    """

    def call(self: Any, inputs: Any) -> Any:
        if not _in_fp32(self, inputs):
            return super().call(inputs)  # type: ignore[misc]
        outputs = self.convolve(ops.cast(inputs, "float32"))
        if self.use_bias:
            shape = [1] * len(outputs.shape)
            shape[-1 if self.data_format == "channels_last" else 1] = -1
            bias = ops.cast(stored(self.bias), "float32")
            outputs = outputs + ops.reshape(bias, shape)
        return finish(outputs, self.activation, self.compute_dtype)

    def convolve(self: Any, inputs: Any) -> Any:
        """Returns the convolution alone, of FP32 inputs, in FP32."""
        padding = self.padding
        if padding == "causal":
            pad = [[0, 0]] * 3
            time = 1 if self.data_format == "channels_last" else 2
            pad[time] = [self.dilation_rate[0] * (self.kernel_size[0] - 1), 0]
            inputs, padding = ops.pad(inputs, pad), "valid"
        return ops.conv(
            inputs,
            self.in_fp32("kernel"),
            strides=list(self.strides),
            padding=padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )

    def in_fp32(self: Any, name: str) -> Any:
        """Returns a weight as the 16-bit number it would be, in FP32."""
        kernel = stored(lambda: getattr(self, name))
        return _as_half(ops.cast(kernel, "float32"), self.compute_dtype)


def _in_fp32(layer: Any, inputs: Any) -> bool:
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    if layer.compute_dtype not in HALVES or dtype != layer.compute_dtype:
        return False
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    accelerators = (tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))
    return not any(accelerators)


def _as_half(kernel: Any, dtype: str) -> Any:
    """Rounds an FP32 kernel to a 16-bit format, and not its gradient."""

    @ops.custom_gradient
    def rounded(kernel: Any) -> tuple[Any, Any]:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            return args[0] if upstream is None else upstream

        return ops.cast(ops.cast(kernel, dtype), "float32"), gradient

    return rounded(kernel)
