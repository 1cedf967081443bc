"""Plain references for the tests, and the small problems they run on."""

from collections.abc import Callable
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
    numpy_dtype = _numpy_dtype(dtype)
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


@dataclass(frozen=True)
class Function:
    """A function of `keras_mp.ops` beside the same in float64.

    Args:
        call: of a tensor and options.
        expected: of an array and the options that `call` gets, but for the dtype:
            the value and the bound of the error, or a list of such pairs.
        gradient: of an array, the upstream gradients and the options: the same for
            the gradient.
    """

    call: Callable
    expected: Callable
    gradient: Callable

    def check(self, run, cases, upstream=None):
        """Compares values and gradients of all cases, run in one graph.

        Args:
            run: makes a function run on a route.
            cases: by name, an array and the options.
            upstream: of a shape, the upstream gradient; default normal numbers times
                a loss scale of 2^10.
        """
        upstream = upstream or _scaled
        cases = {name: _Case(self, *case, upstream) for name, case in cases.items()}

        def every(arrays, upstreams):
            each = zip(arrays, cases.values(), upstreams, strict=True)
            return [self._differentiate(x, case.options, u) for x, case, u in each]

        arrays = [tf.constant(case.x) for case in cases.values()]
        upstreams = [[tf.constant(u) for u in c.upstreams] for c in cases.values()]
        found = run(every, autograph=False)(arrays, upstreams)
        for (name, case), (values, slope) in zip(cases.items(), found, strict=True):
            for one, pair in zip(values, case.expected, strict=True):
                _assert_case(name, one, *pair, case.dtype)
            _assert_case(f"gradient, {name}", slope, *case.slope, case.x.dtype.name)

    def _differentiate(self, x, options, upstreams):
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = tf.nest.flatten(self.call(x, **options))
        return values, tape.gradient(values, x, upstreams)


class _Case:
    """An array and the options of a call, and what float64 makes of them."""

    def __init__(self, function, x, options, upstream):
        self.x, self.options = x, options
        self.dtype = options.get("output_dtype") or x.dtype.name
        options = {k: v for k, v in options.items() if k != "output_dtype"}
        expected = function.expected(x, **options)
        self.expected = expected if isinstance(expected, list) else [expected]
        self.upstreams = [
            upstream(np.shape(y)).astype(_numpy_dtype(self.dtype))
            for y, _ in self.expected
        ]
        wide = [u.astype("float64") for u in self.upstreams]
        self.slope = function.gradient(x, *wide, **options)


def with_unknown_batch(run):
    """The route on which no graph knows the first size of its arguments."""

    def spec(x):
        return tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype)

    def made(function, **options):
        def call(*arguments):
            signature = tf.nest.map_structure(spec, list(arguments))
            return run(function, input_signature=signature, **options)(*arguments)

        return call

    return made


def _numpy_dtype(dtype):
    return HALVES[dtype][0] if dtype in HALVES else np.dtype(dtype)


def _scaled(shape):
    return 2.0**10 * np.random.default_rng(2).normal(size=shape)


def _assert_case(name, *arguments):
    try:
        assert_rounded(*arguments)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error


def unit(x):
    """The relative error of one operation on `x`: in FP32, or else in float64.

    In float64 the reference errs as much again.
    """
    return 2.0**-52 if x.dtype == np.float64 else 2.0**-24


# Below it FP32 has fewer digits, or is flushed to zero.
SMALLEST = 2.0**-126


def wide(x, axis):
    """`x` in float64, the axes as a tuple, and the number of elements along them."""
    axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis))
    axes = tuple(int(a) for a in axes)
    return x.astype("float64"), axes, int(np.prod([x.shape[a] for a in axes]))


def moments(x, axis=None, keepdims=False):
    """Mean and variance in float64, and the bounds of `keras_mp.ops.moments`.

    Each square (x - m)^2 has 3 roundings, the sum of N of them N - 1, the division 1:
    N + 3. Where m is off by e, the mean of the squares is off by e^2.
    """
    eps = unit(x)
    x, axes, count = wide(x, axis)
    with np.errstate(all="ignore"):
        mean = x.sum(axes, keepdims=True) / count
        off = count * eps * np.abs(x).sum(axes, keepdims=True) / count
        variance = np.square(x - mean).sum(axes, keepdims=True) / count
        bound = (count + 3) * eps * (variance + off**2) + off**2 + SMALLEST
    pairs = [(mean, off), (variance, bound)]
    if keepdims:
        return pairs
    return [tuple(np.squeeze(a, axes) for a in pair) for pair in pairs]


def moments_gradient(x, of_mean, of_variance, axis=None, keepdims=False):
    """of_mean / N + 2 (x - m) of_variance / N; 6 roundings, and the error of m."""
    eps = unit(x)
    (mean, off), _ = moments(x, axis, keepdims=True)
    x, _, count = wide(x, axis)
    with np.errstate(all="ignore"):
        of_mean, of_variance = (
            np.reshape(g, mean.shape) / count for g in (of_mean, of_variance)
        )
        one, other = of_mean + 0 * x, 2 * (x - mean) * of_variance
        bound = 6 * eps * (np.abs(one) + np.abs(other)) + 2 * off * np.abs(of_variance)
    return one + other, bound + SMALLEST


def softmax(x, axis=-1, mask=None):
    """The softmax in float64, and the error FP32 may have.

    Of d = max(x) - x, a rounding d * 2^-24 is a relative error of e^-d, and e^ has an
    error of its own, below 4 * 2^-24. As d e^-d < 1 <= sum(e^-d), the N terms bring
    at most 5 N * 2^-24 into the sum, and the summation N; the division brings 1.
    """
    eps = unit(x)
    x, axes, count = wide(x, axis)
    with np.errstate(all="ignore"):
        if mask is not None:
            mask = np.asarray(mask)
            mask = mask if mask.dtype == bool else mask > 0.5
            x = np.where(mask, x, -np.inf)
        d = x.max(axes, keepdims=True, initial=-np.inf) - x
        y = np.exp(-d)
        y /= y.sum(axes, keepdims=True)
        bound = (np.minimum(d, 1000) + 6 * count + 5) * eps * y + SMALLEST
    if mask is not None:
        y, bound = np.where(mask, y, 0.0), np.where(mask, bound, 0.0)
    return y, bound


def softmax_gradient(x, upstream, axis=-1, mask=None):
    """p (u - sum(p u)): with the error of p, and N + 4 roundings at most."""
    p, error = softmax(x, axis, mask)
    eps = unit(x)
    _, axes, count = wide(x, axis)
    size = np.abs(upstream)
    with np.errstate(all="ignore"):
        total = np.sum(p * upstream, axes, keepdims=True)
        size += np.sum(p * size, axes, keepdims=True)
        of_total = np.sum(error * np.abs(upstream), axes, keepdims=True)
        bound = error * size + p * of_total + (count + 4) * eps * p * size
    return p * (upstream - total), bound + (bound > 0) * SMALLEST


def log_softmax(x, axis=-1):
    """-d - log(sum(e^-d)) with d = max(x) - x in float64, and the error FP32 may have.

    A relative error of the sum, 6 N * 2^-24 as in `softmax`, is one of its logarithm;
    this has its own, below 4 * 2^-24 of it; d and the result are rounded.
    """
    eps = unit(x)
    x, axes, count = wide(x, axis)
    with np.errstate(all="ignore"):
        d = x.max(axes, keepdims=True, initial=-np.inf) - x
        log = np.log(np.exp(-d).sum(axes, keepdims=True))
        y = -d - log
        bound = eps * (d + 6 * count + 4 * np.abs(log) + np.abs(y))
    return y, bound


def log_softmax_gradient(x, upstream, axis=-1):
    """U - p sum(u): with the error of p, and N + 2 roundings at most."""
    p, error = softmax(x, axis)
    eps = unit(x)
    _, axes, count = wide(x, axis)
    with np.errstate(all="ignore"):
        total, size = (
            np.sum(u, axes, keepdims=True) for u in (upstream, np.abs(upstream))
        )
        y = upstream - p * total
        bound = error * np.abs(total) + (count + 2) * eps * p * size + eps * np.abs(y)
    return y, bound


def logsumexp(x, axis=None, keepdims=False):
    """The logarithm of sum(e^x) in float64, and the error FP32 may have.

    As in `log_softmax`, where -d is x - max(x).
    """
    eps = unit(x)
    x, axes, count = wide(x, axis)
    with np.errstate(all="ignore"):
        largest = x.max(axes, keepdims=True, initial=-np.inf)
        largest = np.where(np.isinf(largest), 0.0, largest)
        log = np.log(np.exp(x - largest).sum(axes, keepdims=True))
        y = largest + log
        bound = eps * (6 * count + 4 * np.abs(log) + np.abs(y))
    return (y, bound) if keepdims else (np.squeeze(y, axes), np.squeeze(bound, axes))


def logsumexp_gradient(x, upstream, axis=None, keepdims=False):
    """The softmax times u, and one rounding; 0 where all that is summed is e^-inf."""
    p, error = softmax(x, axis, mask=~np.isneginf(x.astype("float64")))
    kept, _ = logsumexp(x, axis, keepdims=True)
    upstream = np.reshape(upstream, kept.shape)
    with np.errstate(all="ignore"):
        y = p * upstream
        bound = error * np.abs(upstream) + unit(x) * np.abs(y)
    return y, bound + (bound > 0) * SMALLEST


def assert_two_tapes_agree(route, call, x):
    """Asserts that each of two tapes around `call(x, axis=-1)` finds the same."""

    def differentiate(x):
        with tf.GradientTape() as one, tf.GradientTape() as other:
            one.watch(x)
            other.watch(x)
            y = call(x, axis=-1)
        return one.gradient(y, x), other.gradient(y, x)

    one, other = route(differentiate, autograph=False)(tf.constant(x))
    assert_same_bits(one.numpy(), other.numpy())
