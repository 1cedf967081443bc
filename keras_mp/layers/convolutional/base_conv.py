"""Mixins for the convolutions: 16 bits in and out, FP32 arithmetic on CPUs."""

from typing import Any

import keras
from keras import ops

from keras_mp.dtypes import is_half
from keras_mp.layers.precision import (
    activate,
    activate_and_round,
    activates_after_rounding,
    fused_activation,
    gemm,
    read_without_autocast,
    remat,
)


class BaseFP32Conv:
    """Mixin for a Keras convolution: computes 16-bit convolutions in FP32 on CPUs.

    On a CPU, TensorFlow's FP16 convolution takes about ten times as long as the one in
    FP32. If TensorFlow sees a GPU or TPU, Keras's own convolution runs, which
    accumulates in FP32 there. The choice depends on the machine alone, not on XLA, and
    is made when the layer is called or traced.

    Inputs and weights are rounded to 16 bits and converted to FP32. Products, bias and
    activation are FP32, and the result is rounded once. The gradients of FP32 weights
    are FP32. The 16-bit inputs are kept for the backward pass and converted again.

    On a CPU with bfloat16 instructions, TensorFlow's bfloat16 convolution accumulates
    in FP32 and takes half the time, so that it is used there. Then the result of the
    convolution is rounded before the bias is added, and the gradient of a kernel is
    rounded to bfloat16 once.

    A subclass has the method `convolve(inputs, *kernels)`, which returns the
    convolution without bias and activation, in the dtype of both.
    """

    # Attributes with the weights that `convolve` takes, in order.
    kernel_names: tuple[str, ...] = ("kernel",)

    def call(self: Any, inputs: Any) -> Any:
        if not _runs_in_fp32(self, inputs):
            return super().call(inputs)  # type: ignore[misc]
        kernels = [
            read_without_autocast(lambda name=name: getattr(self, name))
            for name in self.kernel_names
        ]
        biases = [read_without_autocast(self.bias)] if self.use_bias else []
        is_direct = _multiplies_bfloat16(self)
        round_kernel = ops.cast if is_direct else round_straight_through
        inner_dtype = self.compute_dtype if is_direct else "float32"
        rounds = activates_after_rounding(self.activation)
        dtype = self.compute_dtype if rounds else "float32"

        def compute(inputs: Any, *weights: Any) -> Any:
            halves = [
                round_kernel(x, self.compute_dtype) for x in weights[: len(kernels)]
            ]
            inputs = ops.cast(inputs, inner_dtype)
            outputs = self.convolve(inputs, *halves)
            for bias in weights[len(kernels) :]:
                outputs = _add_bias(outputs, bias, self.data_format)
            return ops.cast(outputs, dtype)

        outputs = remat(compute, inputs, *kernels, *biases)
        return activate_and_round(outputs, self.activation, self.compute_dtype)


class FP32Conv(BaseFP32Conv):
    """Mixin for Conv1D to Conv3D.

    A convolution with kernel size 1 and stride 1 is computed as a matrix product by
    `fp16_gemm`.
    """

    def call(self: Any, inputs: Any) -> Any:
        if not (_runs_in_fp32(self, inputs) and _is_pointwise(self)):
            return super().call(inputs)
        kernel = read_without_autocast(lambda: self.kernel)
        matrix = ops.reshape(kernel, kernel.shape[-2:])
        activation = fused_activation(self.activation)
        outputs = gemm(
            inputs, matrix, bias=read_without_autocast(self.bias), activation=activation
        )
        return outputs if activation else activate(self.activation, outputs)

    def convolve(self: Any, inputs: Any, *kernels: Any) -> Any:
        padding = self.padding
        if padding == "causal":
            pad = [[0, 0]] * 3
            time = 1 if self.data_format == "channels_last" else 2
            pad[time] = [self.dilation_rate[0] * (self.kernel_size[0] - 1), 0]
            inputs, padding = ops.pad(inputs, pad), "valid"
        (kernel,) = kernels
        channels = inputs.shape[-1 if self.data_format == "channels_last" else 1]
        compute = _grouped_conv if channels != kernel.shape[-2] else ops.conv
        return compute(
            inputs,
            kernel,
            strides=list(self.strides),
            padding=padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


class FP32ConvTranspose(BaseFP32Conv):
    """Mixin for a transposed convolution of Keras."""

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


class FP32DepthwiseConv(BaseFP32Conv):
    """Mixin for a depthwise convolution of Keras."""

    def convolve(self: Any, inputs: Any, *kernels: Any) -> Any:
        return ops.depthwise_conv(
            inputs,
            *kernels,
            strides=self.strides,
            padding=self.padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


class FP32SeparableConv(BaseFP32Conv):
    """Mixin for a separable convolution of Keras."""

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


def _grouped_conv(inputs: Any, kernel: Any, data_format: str, **options: Any) -> Any:
    """Returns a grouped convolution, computed by TensorFlow's own kernels.

    Keras compiles grouped convolutions with XLA. On a CPU that takes 30 times as long
    as a depthwise convolution, and the gradient function computes the forward pass
    again, needed or not.
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
    """Tells whether TensorFlow's depthwise convolution supports these options."""
    is_plain = len(set(strides)) == 1 and 1 in (max(strides), max(dilation_rate))
    return kernel.shape[-2] == 1 and len(kernel.shape) < 5 and is_plain


def _runs_in_fp32(layer: Any, inputs: Any) -> bool:
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    if not is_half(layer.compute_dtype) or dtype != layer.compute_dtype:
        return False
    if keras.backend.backend() != "tensorflow":
        return False
    from keras_mp.ops.kernels.dispatch import has_accelerator

    return not has_accelerator()


def _is_pointwise(layer: Any) -> bool:
    sizes = {*layer.kernel_size, *layer.strides, layer.groups}
    return sizes == {1} and layer.data_format == "channels_last"


def _multiplies_bfloat16(layer: Any) -> bool:
    from keras_mp.ops.kernels.dispatch import multiplies_bfloat16

    return layer.compute_dtype == "bfloat16" and multiplies_bfloat16()


def _add_bias(outputs: Any, bias: Any, data_format: str) -> Any:
    """Adds a bias to the channels; its gradient accumulates in FP32.

    With `tf.nn.bias_add`, oneDNN fuses the addition into the convolution, before the
    rounding.
    """
    import tensorflow as tf

    from keras_mp.ops import sum as sum_in_fp32

    is_last = data_format == "channels_last"
    rank = len(outputs.shape)
    others = [*range(rank - 1)] if is_last else [0, *range(2, rank)]

    @tf.custom_gradient
    def added(outputs: Any, bias: Any) -> tuple[Any, Any]:
        def gradient(upstream: Any) -> tuple[Any, Any]:
            grad_bias = sum_in_fp32(upstream, others, output_dtype="float32")
            return upstream, tf.cast(grad_bias, bias.dtype)

        layout = "N...C" if is_last else "NC..."
        return tf.nn.bias_add(outputs, tf.cast(bias, outputs.dtype), layout), gradient

    return added(outputs, bias)


def round_straight_through(kernel: Any, dtype: str) -> Any:
    """Rounds a kernel to a 16-bit dtype, but not its gradient (straight-through).

    Kernel, result and gradient are FP32 tensors.
    """

    @ops.custom_gradient
    def rounded(kernel: Any) -> tuple[Any, Any]:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            return args[0] if upstream is None else upstream

        return ops.cast(ops.cast(kernel, dtype), "float32"), gradient

    return rounded(ops.cast(kernel, "float32"))
