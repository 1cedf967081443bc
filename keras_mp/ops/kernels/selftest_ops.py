"""The known problems that the kernels of ops solve in their self-test.

A product is compared with `tf.matmul` in FP32, all others with the CPU's kernels.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.ops.kernels import native

# The relative error of one rounding of the result.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
# M, K, N: rows that end in the middle of a tile and of a vector; sums over splits of K;
# tall and flat tiles.
PRODUCTS = ((33, 77, 59), (136, 512, 128), (256, 128, 24), (24, 128, 256))
# Rows of a warp, and of a block that holds them and that does not; whole vectors or
# not.
ROWS = ((9, 1000), (3, 1501), (2, 9000))
KINDS = ("layer", "root_mean_square", "unit_length")
# [outer, channels, inner]: channels in columns and in rows.
CHANNELS = ((300, 66, 1), (3, 5, 1100))
EPSILON = 1e-3
# What sums in FP32 may differ by, relative to the largest result: on each device they
# err by at most 2^-15 of the sum of magnitudes, and some of them cancel.
IN_FP32 = 2.0**-12
Tensors = Sequence[tf.Tensor]
# A function of a generator and a dtype to its results.
Case = Callable[[Any, str], Tensors]
# Channels, whole pairs of them or not, and how the kernel moves over 17 * 9 pixels.
KERNEL_SIZE = (3, 2)
MOVES: tuple[tuple[int, dict[str, Any]], ...] = (
    (66, {"strides": (2, 2), "dilations": (1, 1), "padding": "same"}),
    (5, {"strides": (1, 1), "dilations": (2, 1), "padding": "valid"}),
)


def product_problem(device: str, dtype: str) -> str:
    """Returns what is wrong with the products of a device, or an empty string.

    Args:
        device: str, its name in TensorFlow.
        dtype: `"float16"` or `"bfloat16"`.
    """
    either = (False, True)
    for size, *transposes in itertools.product(PRODUCTS, either, either):
        error = error_over_bound(device, dtype, size, *transposes)
        if not error <= 1:  # NaN, too
            return (
                f"A {dtype} product of M, K, N = {size} errs by {error:.3g} times its "
                "bound."
            )
    return ""


def error_over_bound(
    device: str,
    dtype: str,
    size: tuple[int, int, int],
    transpose_a: bool,
    transpose_b: bool,
) -> float:
    """Returns the largest error of a product with bias and ReLU, over its bound.

    All terms are positive, so that an FP16 accumulator loses far more than the bound.
    Tensor cores may cut off what they add, which errs by at most 3 K 2^-24 of the sum,
    and TensorFlow's FP32 product by K 2^-24. That one is exact in its factors, also
    where TensorFlow computes it in TF32, which has the 11 bits of float16.
    """
    m, k, n = size
    random = np.random.default_rng(0)
    with tf.device(device):
        shapes = (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)
        a, b = (tf.cast(random.uniform(0.5, 1, shape), dtype) for shape in shapes)
        # Every other column is negative before the ReLU.
        bias = tf.constant(np.where(np.arange(n) % 2, -2.0 * k, 1.0), tf.float32)
        found = native.library().keras_mp_fp16_gemm(
            a=a,
            b=b,
            alpha=1.0,
            bias=[bias],
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            activation="relu",
            Tout=tf.as_dtype(dtype),
        )
        exact = tf.matmul(
            tf.cast(a, tf.float32),
            tf.cast(b, tf.float32),
            transpose_a=transpose_a,
            transpose_b=transpose_b,
        )
        expected = tf.nn.relu(exact + bias)
        bound = (4 * (k + 1) * 2.0**-24 + ROUNDING[dtype]) * (expected + 1e-30)
        errors = tf.abs(tf.cast(found, tf.float32) - expected) / bound
        return float(tf.reduce_max(tf.where(tf.math.is_nan(errors), np.inf, errors)))


def reduction_problem(device: str) -> str:
    """Returns what is wrong with softmax, normalization and sums, or nothing.

    Args:
        device: str, its name in TensorFlow.
    """
    return difference(REDUCTIONS, device)


def difference(cases: Mapping[str, Case], device: str) -> str:
    """Returns which case has other results on a device than on the CPU, or nothing.

    Args:
        cases: dict of `Case`, by what it computes.
        device: str, its name in TensorFlow.
    """
    for dtype, (name, run) in itertools.product(ROUNDING, cases.items()):
        on_cpu, found = (_results(run, dtype, place) for place in ("CPU:0", device))
        for expected, result in zip(on_cpu, found, strict=True):
            if not agree(result, expected):
                return f"{name} of {dtype} differs from that on the CPU."
    return ""


def agree(result: tf.Tensor, expected: tf.Tensor) -> bool:
    """Tells whether two results differ by no more than two roundings explain."""
    found, wanted = (tf.cast(x, tf.float64).numpy() for x in (result, expected))
    roundings = 2 * ROUNDING.get(expected.dtype.name, 0.0)
    bound = roundings * np.abs(wanted) + IN_FP32 * np.abs(wanted).max()
    return bool((np.abs(found - wanted) <= bound).all())  # NaN is not


def _results(run: Case, dtype: str, device: str) -> Tensors:
    with tf.device(device):
        return run(np.random.default_rng(0), dtype)


def numbers(random: Any, dtype: str, shape: tuple[int, ...]) -> tf.Tensor:
    """Positive numbers: a 16-bit accumulator of them loses more than the bound."""
    return tf.constant(random.uniform(0.5, 1, shape), dtype)


def _softmax(random: Any, dtype: str) -> Tensors:
    ops, results = native.library(), []
    for shape in ROWS:
        x, grad_y = (numbers(random, dtype, shape) for _ in range(2))
        y = ops.keras_mp_softmax(x=x)
        wide = tf.cast(x, tf.float32)
        results += [
            y,
            ops.keras_mp_softmax_gradient(x=x, grad_y=grad_y),
            ops.keras_mp_float_softmax(x=wide, T=dtype),
            ops.keras_mp_float_softmax_gradient(y=x, grad_y=grad_y),
        ]
    return results


def _row_norm(random: Any, dtype: str) -> Tensors:
    ops, results = native.library(), []
    for shape, kind in zip(ROWS, KINDS, strict=True):
        x, grad_y = (numbers(random, dtype, shape) for _ in range(2))
        gamma, beta = (numbers(random, "float32", shape[1:]) for _ in range(2))
        options = {"kind": kind, "epsilon": EPSILON}
        y = ops.keras_mp_row_norm(x=x, gamma=[gamma], beta=[beta], **options)
        grad_x, grad_gamma, grad_beta = ops.keras_mp_row_norm_gradient(
            x=x, grad_y=grad_y, gamma=[gamma], num_beta=1, **options
        )
        results += [y, grad_x, *grad_gamma, *grad_beta]
    return results


def _sum(random: Any, dtype: str) -> Tensors:
    shapes = (*CHANNELS, (2, 9000, 1))
    return [
        native.library().keras_mp_sum(x=numbers(random, dtype, shape))
        for shape in shapes
    ]


def _batch_norm(random: Any, dtype: str) -> Tensors:
    ops, results = native.library(), []
    for shape in CHANNELS:
        x, grad_y = (numbers(random, dtype, shape) for _ in range(2))
        gamma, beta, mean, variance = (
            numbers(random, "float32", shape[1:2]) for _ in range(4)
        )
        statistics = {"mean": mean, "variance": variance, "epsilon": EPSILON}
        results += [
            *ops.keras_mp_batch_norm(x=x, gamma=gamma, beta=beta, epsilon=EPSILON),
            ops.keras_mp_batch_norm_inference(
                x=x, gamma=gamma, beta=beta, **statistics
            ),
        ]
        for inference in (False, True):
            results += ops.keras_mp_batch_norm_gradient(
                x=x, grad_y=grad_y, gamma=gamma, inference=inference, **statistics
            )
    return results


REDUCTIONS = {
    "Softmax": _softmax,
    "Row normalization": _row_norm,
    "The sum": _sum,
    "Batch normalization": _batch_norm,
}


def convolution_problem(device: str) -> str:
    """Returns what is wrong with a convolution or its gradients, or nothing.

    On a GPU, layers call TensorFlow's convolution. Ours runs there in a SavedModel that
    was written on a CPU: in a program without Python, which could test it first.

    Args:
        device: str, its name in TensorFlow.
    """
    return difference(CONVOLUTIONS, device)


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


CONVOLUTIONS = {"Depthwise convolution": _depthwise_conv}
