"""What the convolutions share: FP32 arithmetic between 16-bit inputs and outputs."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.precision import (
    HALVES,
    finish,
    lying_along,
    recomputed,
    rounds_first,
    stored,
)


class FP32OnCPU:
    """Mixed into a Keras convolution: computes a 16-bit one in FP32 on a CPU.

    TensorFlow's own takes about ten times as long there as the one in FP32. The choice
    is made when the layer is called or traced, for the machine: where TensorFlow sees
    a GPU or TPU, Keras's own convolution runs, which accumulates in FP32 there. It is
    the same with XLA and without.

    Inputs and weights are 16-bit numbers, converted; products, bias and activation are
    FP32, and the result is rounded once. The gradients of FP32 weights are FP32. The
    inputs are held for the backward pass in their 16 bits, and converted once more.
    """

    # The weights that `convolve` takes, in order.
    kernel_names: tuple[str, ...] = ("kernel",)

    def call(self: Any, inputs: Any) -> Any:
        if not _in_fp32(self, inputs):
            return super().call(inputs)  # type: ignore[misc]
        kernels = [
            stored(lambda name=name: getattr(self, name)) for name in self.kernel_names
        ]
        axis = -1 if self.data_format == "channels_last" else 1
        biases = [lying_along([axis], inputs, self.bias)] if self.use_bias else []
        rounds = rounds_first(self.activation)
        dtype = self.compute_dtype if rounds else "float32"

        def compute(inputs: Any, *weights: Any) -> Any:
            halves = [_as_half(x, self.compute_dtype) for x in weights[: len(kernels)]]
            outputs = self.convolve(ops.cast(inputs, "float32"), *halves)
            for bias in weights[len(kernels) :]:
                outputs = outputs + bias
            return ops.cast(outputs, dtype)

        outputs = recomputed(compute, inputs, *kernels, *biases)
        return finish(outputs, self.activation, self.compute_dtype)

    def convolve(self: Any, inputs: Any, *kernels: Any) -> Any:
        """Returns the convolution alone, of FP32 inputs and kernels, in FP32."""
        padding = self.padding
        if padding == "causal":
            pad = [[0, 0]] * 3
            time = 1 if self.data_format == "channels_last" else 2
            pad[time] = [self.dilation_rate[0] * (self.kernel_size[0] - 1), 0]
            inputs, padding = ops.pad(inputs, pad), "valid"
        (kernel,) = kernels
        channels = inputs.shape[-1 if self.data_format == "channels_last" else 1]
        compute = _grouped if channels != kernel.shape[-2] else ops.conv
        return compute(
            inputs,
            kernel,
            strides=list(self.strides),
            padding=padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


class TransposedFP32OnCPU(FP32OnCPU):
    """Mixed into a transposed convolution of Keras."""

    def convolve(self: Any, inputs: Any, *kernels: Any) -> Any:
        return ops.conv_transpose(
            inputs,
            *kernels,
            strides=list(self.strides),
            padding=self.padding,
            output_padding=self.output_padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


class DepthwiseFP32OnCPU(FP32OnCPU):
    """Mixed into a depthwise convolution of Keras."""

    def convolve(self: Any, inputs: Any, *kernels: Any) -> Any:
        return ops.depthwise_conv(
            inputs,
            *kernels,
            strides=self.strides,
            padding=self.padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


class SeparableFP32OnCPU(FP32OnCPU):
    """Mixed into a separable convolution of Keras."""

    kernel_names = ("depthwise_kernel", "pointwise_kernel")

    def convolve(self: Any, inputs: Any, *kernels: Any) -> Any:
        return ops.separable_conv(
            inputs,
            *kernels,
            strides=self.strides,
            padding=self.padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


def _grouped(inputs: Any, kernel: Any, data_format: str, **options: Any) -> Any:
    """Returns a convolution in groups of channels, by TensorFlow's own kernels.

    Keras compiles it with XLA: on a CPU that takes 30 times as long as a depthwise
    convolution, and what the gradient does not need of it is computed all the same.
    """
    if data_format == "channels_first":
        inputs = ops.moveaxis(inputs, 1, -1)
    options["data_format"] = "channels_last"
    groups = inputs.shape[-1] // kernel.shape[-2]
    if _is_depthwise(kernel, options["strides"], options["dilation_rate"]):
        kernel = ops.reshape(kernel, (*kernel.shape[:-2], groups, -1))
        options["strides"] = tuple(options["strides"])
        outputs = ops.depthwise_conv(inputs, kernel, **options)
    else:
        pairs = zip(
            ops.split(inputs, groups, axis=-1),
            ops.split(kernel, groups, axis=-1),
            strict=True,
        )
        parts = [ops.conv(x, part, **options) for x, part in pairs]
        outputs = ops.concatenate(parts, axis=-1)
    return ops.moveaxis(outputs, -1, 1) if data_format == "channels_first" else outputs


def _is_depthwise(kernel: Any, strides: Any, dilation_rate: Any) -> bool:
    """Tells whether TensorFlow has a depthwise convolution of this kind."""
    is_plain = len(set(strides)) == 1 and 1 in (max(strides), max(dilation_rate))
    return kernel.shape[-2] == 1 and len(kernel.shape) < 5 and is_plain


def _in_fp32(layer: Any, inputs: Any) -> bool:
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    if layer.compute_dtype not in HALVES or dtype != layer.compute_dtype:
        return False
    if keras.backend.backend() != "tensorflow":
        return False
    from keras_mp.ops.routes import has_accelerator

    return not has_accelerator()


def _as_half(kernel: Any, dtype: str) -> Any:
    """Rounds a kernel to a 16-bit format, and not its gradient; both are FP32 here."""

    @ops.custom_gradient
    def rounded(kernel: Any) -> tuple[Any, Any]:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            return args[0] if upstream is None else upstream

        return ops.cast(ops.cast(kernel, dtype), "float32"), gradient

    return rounded(ops.cast(kernel, "float32"))
