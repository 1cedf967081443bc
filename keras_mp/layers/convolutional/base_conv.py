"""Mixins for the convolutions: 16 bits in and out, FP32 arithmetic on CPUs."""

import math
from typing import Any

import keras
from keras import ops

from keras_mp.dtypes import is_half
from keras_mp.layers.convolutional.empty_inputs import convolve_filled, least_sizes
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.precision import (
    activate,
    activate_and_round,
    activates_after_rounding,
    fused_activation,
    multiplies,
    multiply,
    read_without_autocast,
    remat,
)
from keras_mp.typing import Tensor


class BaseFP32Conv:
    """Mixin for a Keras convolution: computes 16-bit convolutions in FP32 on CPUs.

    On a CPU, TensorFlow's FP16 convolution takes about ten times as long as the one in
    FP32. If TensorFlow sees a GPU or TPU, Keras's own convolution runs, which
    accumulates in FP32 there. The choice depends only on the machine, not on XLA, and
    is made when the layer is called or traced.

    Inputs and weights are rounded to 16 bits and converted to FP32. Products, bias and
    activation are FP32, and the result is rounded once. The gradients of FP32 weights
    are FP32. The 16-bit inputs are kept for the backward pass and converted again.

    On a CPU with bfloat16 instructions, TensorFlow's bfloat16 convolution accumulates
    in FP32 and takes half the time, so that it is used there, unless the native library
    convolves or `is_narrow` says that the gradient would be wrong. Then the result of
    the convolution is rounded before the bias is added, and the gradient of a kernel is
    rounded to bfloat16 once.

    A subclass has the method `convolve(inputs, *kernels)`, which returns the
    convolution without bias and activation, in the dtype of both; it is called if no
    kernel of the native library computes all of it.
    """

    # Attributes with the weights that `convolve` takes, in order.
    kernel_names: tuple[str, ...] = ("kernel",)

    def call(self: Any, inputs: Tensor) -> Tensor:
        if not _runs_in_fp32(self, inputs):
            return super().call(inputs)  # type: ignore[misc]
        kernels = [
            read_without_autocast(lambda name=name: getattr(self, name))
            for name in self.kernel_names
        ]
        biases = [read_without_autocast(self.bias)] if self.use_bias else []
        is_direct = _multiplies_bfloat16(self) and not self.is_narrow(inputs)
        round_kernel = ops.cast if is_direct else round_straight_through
        inner_dtype = self.compute_dtype if is_direct else "float32"
        rounds = activates_after_rounding(self.activation)
        dtype = self.compute_dtype if rounds else "float32"

        def compute(inputs: Tensor, *weights: Any) -> Any:
            halves = [
                round_kernel(x, self.compute_dtype) for x in weights[: len(kernels)]
            ]
            inputs = ops.cast(inputs, inner_dtype)
            outputs = self.convolve(inputs, *halves)
            for bias in weights[len(kernels) :]:
                outputs = _add_bias(outputs, bias, self.data_format)
            return ops.cast(outputs, dtype)

        least, growth = self.least_and_growth()
        outputs = convolve_filled(
            lambda inputs: remat(compute, inputs, *kernels, *biases),
            inputs,
            self.data_format,
            least,
            self.strides,
            growth,
        )
        return activate_and_round(outputs, self.activation, self.compute_dtype)

    def is_narrow(self: Any, inputs: Tensor) -> bool:
        """Tells whether the last spatial size may be smaller than its stride.

        There oneDNN's gradient of a bfloat16 kernel has NaN, from memory that it has
        not written, if the padding is "same".
        """
        if self.padding != "same" or 1 in (self.strides[-1], self.kernel_size[-1]):
            return False
        size = inputs.shape[-2 if self.data_format == "channels_last" else -1]
        return size is None or size < self.strides[-1]

    def least_and_growth(self: Any) -> tuple[list[int], list[int]]:
        """Returns what `convolve_filled` takes of the spatial dimensions."""
        least = least_sizes(self.kernel_size, self.dilation_rate, self.padding)
        return least, [1] * len(least)


class FP32Conv(KeepsPolicy, BaseFP32Conv):
    """Mixin for Conv1D to Conv3D.

    A convolution with kernel size 1 and stride 1 is computed as a matrix product, also
    with `Float16MatmulPolicy`, and one with a group for each channel as a depthwise
    convolution.
    """

    def call(self: Any, inputs: Tensor) -> Tensor:
        runs_in_fp32 = _runs_in_fp32(self, inputs)
        if _is_pointwise(self) and (runs_in_fp32 or _multiplies_fp32(self, inputs)):
            kernel = read_without_autocast(lambda: self.kernel)
            return _pointwise_conv(self, inputs, kernel)
        if not runs_in_fp32:
            return super().call(inputs)
        if _is_depthwise_in_groups(self) and _has_depthwise_kernel(self, self.groups):
            kernel = read_without_autocast(lambda: self.kernel)
            kernel = ops.reshape(kernel, (*kernel.shape[:-2], self.groups, 1))
            bias = read_without_autocast(self.bias)
            return _native_depthwise_conv(self, inputs, kernel, bias, self.activation)
        return super().call(inputs)

    def convolve(self: Any, inputs: Tensor, *kernels: Any) -> Any:
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

    def is_narrow(self: Any, inputs: Tensor) -> bool:
        # Of the result, whose size is that of the inputs times the stride by default.
        return self.output_padding is not None and self.strides[-1] > 1

    def least_and_growth(self: Any) -> tuple[list[int], list[int]]:
        return [1] * len(self.strides), list(self.strides)

    def convolve(self: Any, inputs: Tensor, *kernels: Any) -> Any:
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
    """Mixin for a depthwise convolution of Keras.

    With a depth multiplier of 1 and channels last, 16 or more, the native library
    computes it, if the kernel has at most 121 elements.
    """

    def call(self: Any, inputs: Tensor) -> Tensor:
        if not _has_kernel_for_depthwise_part(self, inputs):
            return super().call(inputs)
        kernel = read_without_autocast(lambda: self.kernel)
        bias = read_without_autocast(self.bias)
        return _native_depthwise_conv(self, inputs, kernel, bias, self.activation)

    def convolve(self: Any, inputs: Tensor, *kernels: Any) -> Any:
        return ops.depthwise_conv(
            inputs,
            *kernels,
            strides=self.strides,
            padding=self.padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


class FP32SeparableConv(BaseFP32Conv):
    """Mixin for a separable convolution of Keras.

    If the native library computes such a depthwise convolution, it does so with the
    depthwise part, and rounds its result to 16 bits; `fp16_gemm` computes the rest.
    """

    kernel_names = ("depthwise_kernel", "pointwise_kernel")

    def call(self: Any, inputs: Tensor) -> Tensor:
        if not _has_kernel_for_depthwise_part(self, inputs):
            return super().call(inputs)
        depthwise, pointwise = (
            read_without_autocast(lambda name=name: getattr(self, name))
            for name in self.kernel_names
        )
        parts = _native_depthwise_conv(self, inputs, depthwise, None, None)
        return _pointwise_conv(self, parts, pointwise)

    def convolve(self: Any, inputs: Tensor, *kernels: Any) -> Any:
        return ops.separable_conv(
            inputs,
            *kernels,
            strides=self.strides,
            padding=self.padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


def _pointwise_conv(layer: keras.Layer, inputs: Tensor, kernel: Tensor) -> Any:
    """Returns the convolution with a kernel of size 1, bias and activation."""
    matrix = ops.reshape(kernel, kernel.shape[-2:])
    activation = fused_activation(layer.activation)
    bias = read_without_autocast(layer.bias)
    outputs = multiply(layer, inputs, matrix, bias=bias, activation=activation)
    return outputs if activation else activate(layer.activation, outputs)


def _native_depthwise_conv(
    layer: keras.Layer, inputs: Tensor, kernel: Tensor, bias: Tensor, activation: Any
) -> Any:
    """Returns the depthwise convolution, bias and activation, rounded to 16 bits."""
    from keras_mp.ops.depthwise_conv import depthwise_conv

    missing = 4 - len(inputs.shape)  # 1 for a sequence, a picture of one row
    for _ in range(missing):
        inputs, kernel = ops.expand_dims(inputs, 1), ops.expand_dims(kernel, 0)
    rounds = activates_after_rounding(activation)
    outputs = depthwise_conv(
        inputs,
        kernel,
        bias,
        strides=(1,) * missing + tuple(layer.strides),
        padding=layer.padding,
        dilation_rate=(1,) * missing + tuple(layer.dilation_rate),
        output_dtype=layer.compute_dtype if rounds else "float32",
    )
    for _ in range(missing):
        outputs = ops.squeeze(outputs, 1)
    return activate_and_round(outputs, activation, layer.compute_dtype)


def _grouped_conv(
    inputs: Tensor, kernel: Tensor, data_format: str, **options: Any
) -> Any:
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


def _is_depthwise(kernel: Tensor, strides: Any, dilation_rate: Any) -> bool:
    """Tells whether TensorFlow's depthwise convolution supports these options."""
    is_plain = len(set(strides)) == 1 and 1 in (max(strides), max(dilation_rate))
    return kernel.shape[-2] == 1 and len(kernel.shape) < 5 and is_plain


def _runs_in_fp32(layer: keras.Layer, inputs: Tensor) -> bool:
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    if not is_half(layer.compute_dtype) or dtype != layer.compute_dtype:
        return False
    if keras.backend.backend() != "tensorflow":
        return False
    from keras_mp.ops.kernels.dispatch import has_accelerator

    return not has_accelerator()


def _multiplies_fp32(layer: keras.Layer, inputs: Tensor) -> bool:
    return not is_half(layer.compute_dtype) and multiplies(layer, inputs)


def _has_depthwise_kernel(layer: keras.Layer, channels: int) -> bool:
    """Tells whether the native library convolves the channels of such inputs.

    It does not if TensorFlow's FP32 convolution is faster: channels that fill less
    than a vector, and large kernels.
    """
    from keras_mp.ops.kernels.dispatch import has_cpu_kernels

    if layer.data_format != "channels_last" or not has_cpu_kernels():
        return False
    return channels >= 16 and math.prod(layer.kernel_size) <= 121


def _has_kernel_for_depthwise_part(layer: keras.Layer, inputs: Tensor) -> bool:
    """Tells the same of a depthwise or separable convolution of Keras."""
    return (
        _runs_in_fp32(layer, inputs)
        and layer.depth_multiplier == 1
        and _has_depthwise_kernel(layer, inputs.shape[-1])
    )


def _is_depthwise_in_groups(layer: keras.Layer) -> bool:
    """Tells whether each filter of a `Conv1D` or `Conv2D` has a channel of its own."""
    return (
        layer.groups == layer.filters == layer.kernel.shape[-2] * layer.groups
        and layer.rank < 3
        and layer.padding != "causal"
    )


def _is_pointwise(layer: keras.Layer) -> bool:
    sizes = {*layer.kernel_size, *layer.strides, layer.groups}
    return sizes == {1} and layer.data_format == "channels_last"


def _multiplies_bfloat16(layer: keras.Layer) -> bool:
    from keras_mp.ops.kernels.dispatch import multiplies_bfloat16

    return layer.compute_dtype == "bfloat16" and multiplies_bfloat16()


def _add_bias(outputs: Tensor, bias: Tensor, data_format: str) -> Any:
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
    def added(outputs: Tensor, bias: Tensor) -> tuple[Any, Any]:
        def gradient(upstream: Tensor) -> tuple[Any, Any]:
            grad_bias = sum_in_fp32(upstream, others, output_dtype="float32")
            return upstream, tf.cast(grad_bias, bias.dtype)

        layout = "N...C" if is_last else "NC..."
        return tf.nn.bias_add(outputs, tf.cast(bias, outputs.dtype), layout), gradient

    return added(outputs, bias)


def round_straight_through(kernel: Tensor, dtype: str) -> Any:
    """Rounds a kernel to a 16-bit dtype, but not its gradient (straight-through).

    Kernel, result and gradient are FP32 tensors.
    """

    @ops.custom_gradient
    def rounded(kernel: Tensor) -> tuple[Any, Any]:
        def gradient(*args: Any, upstream: Tensor | None = None) -> Any:
            return args[0] if upstream is None else upstream

        return ops.cast(ops.cast(kernel, dtype), "float32"), gradient

    return rounded(ops.cast(kernel, "float32"))
