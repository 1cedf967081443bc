"""The known depthwise convolutions of `keras-mp gpu`, and the CPU's kernels.

On a GPU, layers call TensorFlow's convolution. Ours runs there in a SavedModel that was
written on a CPU: in a program without Python, which could check it first.
"""

from typing import Any

import tensorflow as tf

from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.reduction_check import Tensors, difference, numbers

# Channels, whole pairs of them or not, and how the kernel moves over 17 * 9 pixels.
KERNEL_SIZE = (3, 2)
MOVES: tuple[tuple[int, dict[str, Any]], ...] = (
    (66, {"strides": (2, 2), "dilations": (1, 1), "padding": "same"}),
    (5, {"strides": (1, 1), "dilations": (2, 1), "padding": "valid"}),
)


def convolution_problem(device: str) -> str:
    """Returns what is wrong with a convolution or its gradients, or nothing.

    Args:
        device: str, its name in TensorFlow.
    """
    return difference(CASES, device)


def _depthwise_conv(random: Any, dtype: str) -> Tensors:
    ops, results = native.library(), []
    for channels, moves in MOVES:
        x = numbers(random, dtype, (3, 17, 9, channels))
        kernel = numbers(random, "float32", (*KERNEL_SIZE, channels, 1))
        bias = numbers(random, dtype, (channels,))
        y, wide = (
            ops.keras_mp_depthwise_conv(
                x=x, kernel=kernel, bias=[bias], Tout=tf.as_dtype(name), **moves
            )
            for name in (dtype, "float32")
        )
        grad_y = numbers(random, dtype, tuple(y.shape))
        results += [
            y,
            wide,
            ops.keras_mp_depthwise_conv_grad_x(
                x=x, kernel=kernel, grad_y=grad_y, **moves
            ),
            ops.keras_mp_depthwise_conv_grad_kernel(
                x=x, grad_y=grad_y, kernel_size=KERNEL_SIZE, **moves
            ),
        ]
    return results


CASES = {"Depthwise convolution": _depthwise_conv}
