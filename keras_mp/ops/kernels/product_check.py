"""The known products of the check at first use, and `tf.matmul` in FP32."""

import itertools

import numpy as np
import tensorflow as tf

from keras_mp.ops.kernels import native

# M, K, N: rows that end in the middle of a tile and of a vector; sums over splits of K;
# tall and flat tiles.
SIZES = ((33, 77, 59), (136, 512, 128), (256, 128, 24), (24, 128, 256))
# The relative error of one rounding of the result.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def product_problem(device: str, dtype: str) -> str:
    """Returns what is wrong with the products of a device, or an empty string.

    Args:
        device: str, its name in TensorFlow.
        dtype: `"float16"` or `"bfloat16"`.
    """
    for size, transposes in itertools.product(SIZES, itertools.product([0, 1], [0, 1])):
        error = error_over_bound(device, dtype, size, *map(bool, transposes))
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
        found = native.fp16_gemm(
            a,
            b,
            tf.constant(1.0),
            (bias,),
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            activation="relu",
            output_dtype=dtype,
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
