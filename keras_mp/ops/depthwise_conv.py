"""Depthwise convolution: 16 bits in and out, FP32 accumulation, on CPUs."""

from typing import Any

import tensorflow as tf

from keras_mp.ops.kernels import native
from keras_mp.ops.reductions import accumulate


def depthwise_conv(
    x: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor | None,
    *,
    strides: tuple[int, int],
    padding: str,
    dilation_rate: tuple[int, int],
    output_dtype: str,
) -> tf.Tensor:
    """Returns the convolution of each channel with its part of the kernel, plus bias.

    The native kernel computes it, so that `has_cpu_kernels()` must be true. The kernel
    is rounded to the dtype of `x`; the sum is FP32 and rounded once. The gradient of an
    FP32 kernel is FP32; an FP32 upstream gradient is rounded to the dtype of `x`. The
    backward pass needs `x` and the kernel.

    Args:
        x: float16 or bfloat16 tensor, `[batch, a, b, channels]`.
        kernel: tensor of a floating dtype, `[a, b, channels, 1]`.
        bias: tensor of a floating dtype, `[channels]`, or None.
        strides: 2 integers.
        padding: `"valid"` or `"same"`.
        dilation_rate: 2 integers.
        output_dtype: the dtype of `x`, or `"float32"`.
    """
    biases = [] if bias is None else [bias]
    kernel, *biases = (
        tensor if tensor.dtype == x.dtype else tf.cast(tensor, tf.float32)
        for tensor in (kernel, *biases)
    )
    return native.library().keras_mp_depthwise_conv(
        x=x,
        kernel=kernel,
        bias=biases,
        strides=strides,
        dilations=dilation_rate,
        padding=padding,
        Tout=tf.as_dtype(output_dtype),
    )


@tf.RegisterGradient("KerasMp>DepthwiseConv")
def _depthwise_conv_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    x, kernel, *biases = op.inputs
    attributes = _attributes(op)
    # What is computed from x and kernel alone waits for the backward pass.
    with tf.control_dependencies([upstream]):
        grad_y = tf.cast(upstream, x.dtype)
        grad_kernel = native.library().keras_mp_depthwise_conv_grad_kernel(
            x=x, grad_y=grad_y, kernel_size=kernel.shape[:2].as_list(), **attributes
        )
        return [
            native.library().keras_mp_depthwise_conv_grad_x(
                x=x, kernel=kernel, grad_y=grad_y, **attributes
            ),
            tf.cast(grad_kernel, kernel.dtype),
            *(_grad_bias(upstream, bias) for bias in biases),
        ]


def _grad_bias(upstream: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    axes = [0, 1, 2]
    return tf.cast(tf.squeeze(accumulate(upstream, axes), axes), bias.dtype)


# The convolution is linear in x and in the kernel, so that the gradients of its
# gradients are the convolution and its gradients again. As tensors of 16 bits have
# gradients of 16 bits, numbers below 6e-8 are 0 in a second derivative in FP16.
@tf.RegisterGradient("KerasMp>DepthwiseConvGradX")
def _grad_x_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    _, kernel, grad_y = op.inputs  # of x, the shape
    attributes = _attributes(op)
    grad_kernel = native.library().keras_mp_depthwise_conv_grad_kernel(
        x=upstream, grad_y=grad_y, kernel_size=kernel.shape[:2].as_list(), **attributes
    )
    return [
        None,
        tf.cast(grad_kernel, kernel.dtype),
        native.library().keras_mp_depthwise_conv(
            x=upstream, kernel=kernel, bias=[], Tout=grad_y.dtype, **attributes
        ),
    ]


@tf.RegisterGradient("KerasMp>DepthwiseConvGradKernel")
def _grad_kernel_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    x, grad_y = op.inputs
    attributes = _attributes(op)
    return [
        native.library().keras_mp_depthwise_conv_grad_x(
            x=x, kernel=upstream, grad_y=grad_y, **attributes
        ),
        native.library().keras_mp_depthwise_conv(
            x=x, kernel=upstream, bias=[], Tout=grad_y.dtype, **attributes
        ),
    ]


def _attributes(op: Any) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in ("strides", "dilations", "padding")}
