"""What `keras-mp gpu` measures: errors and times of products, and memory."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_mp.command_line.training_steps import (
    Recipe,
    Size,
    make_batch,
    make_model,
)
from keras_mp.ops import fp16_gemm

ROWS = 64  # of a product that float64 computes, too
ROUNDS = 7


def error_over_bound(
    dtype: str, size: int, transpose_a: bool, transpose_b: bool
) -> float:
    """Returns the largest error of an FP32 result of `fp16_gemm`, over its bound.

    The factors are random numbers, and the oracle is float64. The bound is for sums
    that cut off every term to FP32, which tensor cores may do.

    Args:
        dtype: `"float16"` or `"bfloat16"`.
        size: int, M, K and N.
        transpose_a: bool.
        transpose_b: bool.
    """
    import tensorflow as tf

    random = np.random.default_rng(0)
    a, b = (
        tf.cast(random.standard_normal((size, size), "float32"), dtype) for _ in "ab"
    )
    found = fp16_gemm(a, b, transpose_a, transpose_b, output_dtype="float32")
    x, y = (tf.cast(factor, tf.float64).numpy() for factor in (a, b))
    x = (x.T if transpose_a else x)[:ROWS]
    y = y.T if transpose_b else y
    bound = (3 * size + 1) * 2.0**-24 * (np.abs(x) @ np.abs(y))
    return float((np.abs(found[:ROWS].numpy() - x @ y) / bound).max())


def product_ms(dtype: str, size: int, products: int) -> dict[str, float]:
    """Returns the milliseconds of a product of square matrices, by function.

    Args:
        dtype: `"float16"` or `"bfloat16"`.
        size: int, M, K and N.
        products: int, how many are computed between two looks at the clock.
    """
    import tensorflow as tf

    a = tf.random.normal((size, size))
    half = tf.cast(a, dtype)
    functions: dict[str, Callable[[], Any]] = {
        "fp16_gemm": lambda: fp16_gemm(half, half),
        "tf.matmul": lambda: tf.matmul(half, half),
        "tf.matmul in float32": lambda: tf.matmul(a, a),
    }
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(ROUNDS + 1):
        for name, multiply in functions.items():
            tf.test.experimental.sync_devices()
            start = time.perf_counter()
            for _ in range(products):
                multiply()
            tf.test.experimental.sync_devices()
            if round_ > 0:  # the first one warms up
                times[name].append(1e3 * (time.perf_counter() - start) / products)
    return {name: statistics.median(spent) for name, spent in times.items()}


def peak_bytes(
    block: Callable[[Size], Any], size: Size, recipes: Sequence[Recipe], gpu: str
) -> list[int]:
    """Returns the most memory that training steps of a block take on a GPU.

    Args:
        block: one of `training_steps.BLOCKS`.
        size: `Size`.
        recipes: sequence of `Recipe`.
        gpu: str, such as `"GPU:0"`.
    """
    import tensorflow as tf

    found = []
    for recipe in recipes:
        before = tf.config.experimental.get_memory_info(gpu)["current"]
        tf.config.experimental.reset_memory_stats(gpu)
        model = make_model(block, size, recipe)
        batch = make_batch(model, size)
        for _ in range(3):
            model.train_on_batch(*batch)
        peak = tf.config.experimental.get_memory_info(gpu)["peak"]
        found.append(peak - before)
        del model
    return found
