"""Plain references for the optimizer tests, and the small problems they run on."""

from dataclasses import dataclass

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

# FP32 operations on the longest path from a gradient to a master or a slot in one
# step, counted generously: Adam has about 20.
OPERATIONS = 32
HALVES = {"float16": (np.float16, 65504.0), "bfloat16": (ml_dtypes.bfloat16, 3.3895e38)}


def rounded(x, dtype):
    """`x` in `dtype`, to nearest even; saturating in the 16-bit formats."""
    if dtype not in HALVES:
        return np.asarray(x).astype(dtype)
    numpy_dtype, largest = HALVES[dtype]
    return np.clip(np.asarray(x, "float64"), -largest, largest).astype(numpy_dtype)


def value(variable):
    """The value of a variable or tensor as a NumPy array of the same dtype."""
    return np.asarray(keras.ops.convert_to_numpy(variable))


def bits(array):
    """The array as unsigned integers, so that -0.0, 0.0 and every NaN differ."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual, expected, what=""):
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    if not np.array_equal(bits(actual), bits(expected)):
        raise AssertionError(f"{what}: {actual!r} is not to the bit {expected!r}")


def assert_close(actual, expected, roundings, what=""):
    """Asserts equality up to a number of FP32 roundings of values of this size.

    A rounding moves a value by at most 2^-24 of its size. XLA contracts a product
    and a sum into one rounding and reorders sums, so each of the operations of a
    step may differ by one rounding of an intermediate value; no intermediate value of
    the optimizers here is larger than the largest of the array or 1.
    """
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    size = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=roundings * 2.0**-24 * size, err_msg=what
    )


def same_or_close(roundings):
    """The assertion for a number of roundings: to the bit for 0."""
    if roundings == 0:
        return assert_same_bits
    return lambda actual, expected, what: assert_close(
        actual, expected, roundings, what
    )


def assert_weights_are_masters(optimizer, weights):
    """Asserts that every weight is its master, rounded, to the bit."""
    for weight, master in zip(weights, optimizer.master_weights, strict=True):
        dtype = keras.backend.standardize_dtype(weight.dtype)
        assert_same_bits(value(weight), rounded(value(master), dtype), weight.path)


class Fp32Reference:
    """The bare optimizer on FP32 variables that are fed FP32 gradients.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        weights: the variables whose values, names and constraints to start from.
    """

    def __init__(self, optimizer, weights):
        self.optimizer = optimizer
        self.weights = [_fp32_copy(weight) for weight in weights]
        optimizer.build(self.weights)

    def apply(self, gradients):
        self.optimizer.apply(gradients, self.weights)

    def assert_equal(self, wrapped, roundings=0):
        """Compares masters, slots, averages, accumulators and `iterations`.

        Args:
            wrapped: `FP32MasterOptimizer`.
            roundings: for `assert_close`; 0 compares to the bit.
        """
        check = same_or_close(roundings)
        for master, weight in zip(wrapped.master_weights, self.weights, strict=True):
            check(value(master), value(weight), f"master of {weight.path}")
        inner = wrapped.inner_optimizer
        for slot, expected in zip(
            inner.variables, self.optimizer.variables, strict=True
        ):
            check(value(slot), value(expected), expected.path)


def _fp32_copy(weight):
    dtype = keras.backend.standardize_dtype(weight.dtype)
    scope, _, name = weight.path.rpartition("/")
    with keras.name_scope(scope or "reference"):
        copy = keras.Variable(
            value(weight).astype("float64" if dtype == "float64" else "float32"),
            dtype="float64" if dtype == "float64" else "float32",
            name=name,
        )
    copy.constraint = weight.constraint
    copy.overwrite_with_gradient = weight.overwrite_with_gradient
    return copy


@dataclass
class PlainDynamicLossScale:
    """The state machine of `DynamicLossScale`, in plain Python."""

    scale: float = 2.0**15
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    hysteresis: int = 1
    min_scale: float = 2.0**-14
    max_scale: float = 2.0**24
    finite_steps: int = 0
    consecutive_skips: int = 0
    skipped_steps: int = 0
    skips_at_minimum: int = 0

    def step(self, finite):
        if finite:
            self.finite_steps += 1
            self.consecutive_skips = 0
            self.skips_at_minimum = 0
            if self.finite_steps % self.growth_interval == 0:
                self.scale = min(self.scale * self.growth_factor, self.max_scale)
            return
        at_minimum = self.scale <= self.min_scale
        self.skips_at_minimum = self.skips_at_minimum + 1 if at_minimum else 0
        self.finite_steps = 0
        self.consecutive_skips += 1
        self.skipped_steps += 1
        if self.consecutive_skips >= self.hysteresis:
            self.scale = max(self.scale * self.backoff_factor, self.min_scale)

    def assert_equal(self, optimizer):
        """Compares the state of a wrapped optimizer, values and dtypes."""
        found = {
            "loss_scale": optimizer.loss_scale,
            "step_counter": optimizer.step_counter,
            "consecutive_skips": optimizer.consecutive_skips,
            "skipped_steps": optimizer.skipped_steps,
            "skips_at_minimum": optimizer.skips_at_minimum,
        }
        assert value(optimizer.loss_scale).dtype == np.float32
        assert {name: value(found[name]).item() for name in found} == {
            "loss_scale": self.scale,
            "step_counter": self.finite_steps,
            "consecutive_skips": self.consecutive_skips,
            "skipped_steps": self.skipped_steps,
            "skips_at_minimum": self.skips_at_minimum,
        }


def make_weights(dtype, shapes=(("kernel", (2, 3)), ("bias", (3,))), seed=0):
    """Variables with values between 0.5 and 2 that FP16 cannot hold exactly."""
    generator = np.random.default_rng(seed)
    weights = []
    for name, shape in shapes:
        with keras.name_scope("model"):
            initial = generator.uniform(0.5, 2.0, shape).astype("float32")
            weights.append(
                keras.Variable(keras.ops.cast(initial, dtype), dtype=dtype, name=name)
            )
    return weights


def make_gradients(weights, seed):
    """FP32 gradients of 1/8 to 1 in size, with 5 significant bits.

    So that in any 16-bit format they are exact, also when multiplied by a power of
    two, and no bit of a difference can come from the way there.
    """
    generator = np.random.default_rng(seed)

    def one(shape):
        size = generator.integers(4, 32, shape) / 32
        return (size * generator.choice([-1.0, 1.0], shape)).astype("float32")

    return [one(tuple(weight.shape)) for weight in weights]


def scaled(gradients, optimizer, dtype):
    """What the backward pass of the scaled loss hands to `apply`."""
    scale = optimizer.loss_scale.numpy()
    return [
        None if g is None else tf.cast(tf.constant(g * scale), dtype) for g in gradients
    ]


def make_step(optimizer, weights, mode):
    """`apply` on `weights`: eager, in a graph or compiled by XLA."""
    optimizer.build(weights)

    def step(gradients):
        optimizer.apply(gradients, weights)

    if mode == "eager":
        return step
    return tf.function(step, jit_compile=mode == "xla")


ACTIVATIONS = {
    None: lambda x: x,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "gelu": lambda x: 0.5 * x * tf.math.erfc(-(0.5**0.5) * x),
}


def gemm(
    a, b, transpose_a=False, transpose_b=False, bias=0.0, activation=None, alpha=1
):
    """activation(alpha * op(a) op(b) + bias) in float64, and the error FP32 may have.

    An FP32 sum of K exact products errs by at most K * 2^-24 * sum |a| |b|, in
    whatever order; alpha and bias add a rounding each. No activation has a slope above
    1.13, that of gelu. Their own error is 2^-20 of the value, and gelu's e^(-x^2 / 2)
    magnifies the rounding of x^2. What is below 2^-126 may be flushed to zero.

    Returns:
        The value and the bound of the error, without the rounding to the output dtype.
    """
    bias = 0.0 if bias is None else np.asarray(bias, "float64")
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    b = np.swapaxes(b, -1, -2) if transpose_b else b
    alpha = np.float64(np.float32(alpha))
    with np.errstate(all="ignore"):
        x = alpha * (a @ b) + bias
        magnitude = np.abs(alpha) * (np.abs(a) @ np.abs(b)) + np.abs(bias)
        bound = (a.shape[-1] + 3) * 2.0**-24 * magnitude + 2.0**-126
        if activation is None:
            return x, bound
        y = ACTIVATIONS[activation](tf.constant(x)).numpy()
        own = 2.0**-20 + (x * x * 2.0**-22 if activation == "gelu" else 0.0)
        return y, 1.13 * bound + own * np.abs(y) + 2.0**-126


def assert_rounded(actual, expected, bound, dtype):
    """Asserts that `actual` is some number within `bound` of `expected`, rounded once.

    Rounding is monotonic: it lies between the two ends of that interval, rounded.
    NaN and inf are where they are in `expected`.
    """
    actual = value(actual)
    numpy_dtype = HALVES[dtype][0] if dtype in HALVES else np.dtype(dtype)
    assert actual.dtype == numpy_dtype
    assert actual.shape == expected.shape
    bound = np.where(np.isfinite(expected), bound, 0.0)
    with np.errstate(all="ignore"):
        low, high = (
            (expected + sign * bound).astype(numpy_dtype).astype("float64")
            for sign in (-1, 1)
        )
    found = actual.astype("float64")
    right = (low <= found) & (found <= high) | np.isnan(found) & np.isnan(expected)
    if not np.all(right):
        at = tuple(np.argwhere(~right)[0])
        raise AssertionError(
            f"{np.sum(~right)} of {right.size} are wrong, the first at {at}: "
            f"{found[at]!r}, expected {low[at]!r} to {high[at]!r}"
        )
