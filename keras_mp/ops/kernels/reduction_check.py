"""The known rows and channels of the check at first use, and the CPU's kernels."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.product_check import ROUNDING

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


def reduction_problem(device: str) -> str:
    """Returns what is wrong with softmax, normalization and sums, or nothing.

    Args:
        device: str, its name in TensorFlow.
    """
    return difference(CASES, device)


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


CASES = {
    "Softmax": _softmax,
    "Row normalization": _row_norm,
    "The sum": _sum,
    "Batch normalization": _batch_norm,
}
