"""The cross entropy of a linear layer in float64, and how far FP32 may err."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from attention_oracle import SINGLE, UNITS


@dataclass
class Problem:
    """Arguments of `linear_cross_entropy` in float64, exact in their dtypes."""

    inputs: np.ndarray
    kernel: np.ndarray
    labels: np.ndarray
    bias: np.ndarray | None
    upstream: np.ndarray
    dtype: str
    options: dict


def exact(x, dtype):
    return np.asarray(tf.cast(tf.cast(x, dtype), "float64"))


def problem(rows, size, words, dtype, seed=0, bias=True, soft=False, **options):
    """A problem with normal numbers; the kernel is of the dtype, too."""
    draw = np.random.default_rng(seed)
    kernel = exact(draw.normal(size=(size, words)), dtype)
    kernel = kernel.T if options.get("transpose") else kernel
    labels = draw.integers(0, words, rows)
    if soft:
        labels = exact(draw.dirichlet(np.ones(words), rows), "float32")
    return Problem(
        exact(draw.normal(size=(rows, size)), dtype),
        kernel,
        labels,
        exact(draw.normal(size=words), "float32") if bias else None,
        exact(draw.normal(size=rows), "float32"),
        dtype,
        options,
    )


def expected(given):
    """The loss and the gradients of inputs, kernel and bias; (value, bound) of each.

    A logit errs by `size + 3` roundings of the sum of the sizes of its products, the
    logarithm of their sum by as much, by a rounding for each word and by its own. A
    probability errs by e^(twice that), and by the exponential's 2^-21. The gradient of
    a logit is rounded to the dtype for the products (in FP16, from 2^-38 of the largest
    upstream gradient on), which add a rounding for each of their terms.
    """
    options = {"transpose": False, "soft_cap": None, "label_smoothing": 0.0}
    options |= given.options
    kernel = given.kernel.T if options["transpose"] else given.kernel
    words, size = kernel.shape[1], kernel.shape[0]
    bias = np.zeros(words) if given.bias is None else given.bias
    z = given.inputs @ kernel + bias
    sizes = np.abs(given.inputs) @ np.abs(kernel) + np.abs(bias)
    error = (size + 3) * SINGLE * sizes.max(1, keepdims=True)
    cap = options["soft_cap"]
    bend = np.ones_like(z)
    if cap is not None:
        z = cap * np.tanh(z / cap)
        bend = 1 - (z / cap) ** 2
        error = error + 16 * SINGLE * cap
    targets = given.labels
    if targets.ndim == 1:
        targets = np.eye(words)[targets]
    smoothing = options["label_smoothing"]
    targets = (1 - smoothing) * targets + smoothing / words * targets.sum(1)[:, None]
    largest = z.max(1, keepdims=True)
    sums = np.exp(z - largest).sum(1, keepdims=True)
    logsumexp = largest + np.log(sums)
    p = np.exp(z - logsumexp)
    weight = targets.sum(1, keepdims=True)
    loss = (weight * logsumexp - (targets * z).sum(1, keepdims=True))[:, 0]
    roundings = (words + 64) * SINGLE
    of_sizes = np.abs(logsumexp) + (targets * np.abs(z)).sum(1, keepdims=True)
    loss_bound = 2 * error + roundings * (1 + (targets * np.abs(z)).sum(1)[:, None])
    loss_bound = (loss_bound + 4 * SINGLE * of_sizes)[:, 0]

    unit, smallest = UNITS[given.dtype]
    factor = 0.0 if given.dtype == "float32" else unit
    upstream = given.upstream[:, None]
    slope = upstream * (weight * p - targets) * bend
    relative = 4 * error + roundings + 2.0**-20 + 4 * SINGLE * np.abs(logsumexp)
    slope_bound = np.abs(upstream) * (weight * p * relative + 8 * SINGLE * targets)
    if cap is not None:
        bound_of_bend = 8 * error / cap + 16 * SINGLE
        slope_bound += np.abs(upstream * (weight * p - targets)) * bound_of_bend
    bias_bound = slope_bound.sum(0) + (len(z) + 2) * SINGLE * np.abs(slope).sum(0)
    lost = 2.0**-38 * np.abs(upstream).max(initial=0) if factor else 0.0
    slope_bound = slope_bound + factor * (np.abs(slope) + slope_bound) + lost

    def product(a, a_bound, b, rounds):
        terms = (a.shape[1] + 4) * SINGLE
        bound = a_bound @ np.abs(b) + terms * (np.abs(a) @ np.abs(b)) + 2.0**-120
        value = a @ b
        if rounds:
            bound = bound + unit * (np.abs(value) + bound) + smallest
        return value, bound

    of_inputs = product(slope, slope_bound, kernel.T, True)
    of_kernel = product(slope.T, slope_bound.T, given.inputs, True)
    if not options["transpose"]:
        of_kernel = tuple(x.T for x in of_kernel)
    of_bias = (slope.sum(0), bias_bound)
    return [(loss, loss_bound), of_inputs, of_kernel, of_bias][: 3 + (bias is not None)]


def assert_within(found, wanted, name=""):
    for i, (one, (value, bound)) in enumerate(zip(found, wanted, strict=False)):
        difference = np.abs(np.asarray(tf.cast(one, "float64")) - value)
        assert difference.shape == value.shape, (name, i)
        worst = np.max(difference / np.maximum(bound, 1e-300), initial=0)
        assert worst <= 1, f"{name}, result {i}: {worst:.3f} of the bound"
