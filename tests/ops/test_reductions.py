"""sum, mean, cumsum, segment_sum, moments: values and gradients, on every route.

Every comparison is `oracle.assert_rounded`: the float64 result plus or minus the error
of FP32 that the docstring of the function states, rounded once.
"""

import math

import keras
import ml_dtypes
import numpy as np
import oracle
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mp import ops
from keras_mp.ops.kernels.rows import as_rows

SIZES = (0, 1, 7, 16, 17, 217, 989)
DTYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
INFINITY, NAN = float("inf"), float("nan")


def draw(*shape, dtype="float16"):
    """Around 4: 989 of them add up to a sum that rounds away 2 in FP16."""
    return np.random.default_rng(1).normal(4, 2, shape).astype(DTYPES[dtype])


def eager(function, **_):
    return function


def expected_sum(x, axis=None, keepdims=False):
    eps = oracle.unit(x)
    x, axes, count = oracle.wide(x, axis)
    with np.errstate(invalid="ignore"):
        value = x.sum(axes, keepdims=keepdims)
        return value, count * eps * np.abs(x).sum(axes, keepdims=keepdims)


def gradient_of_sum(x, upstream, axis=None, keepdims=False):
    kept = expected_sum(x, axis, keepdims=True)[0].shape
    return np.broadcast_to(upstream.reshape(kept), x.shape), 0.0


def expected_mean(x, axis=None, keepdims=False):
    _, _, count = oracle.wide(x, axis)
    with np.errstate(invalid="ignore"):
        value, bound = expected_sum(x, axis, keepdims)
        return value / np.float64(count), bound / np.float64(count)


def gradient_of_mean(x, upstream, axis=None, keepdims=False):
    _, _, count = oracle.wide(x, axis)
    repeated, _ = gradient_of_sum(x, upstream, axis, keepdims)
    slope = repeated / max(count, 1)
    return slope, oracle.unit(x) * np.abs(slope)  # one division


def expected_cumsum(x, axis=None):
    eps = oracle.unit(x)
    x = x.astype("float64")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    with np.errstate(invalid="ignore"):
        value = x.cumsum(axis)
        return value, x.shape[axis] * eps * np.abs(x).cumsum(axis)


def gradient_of_cumsum(x, upstream, axis=None):
    """Each element counts in all sums from its own on."""
    along = 0 if axis is None else axis
    value, size = (
        np.flip(np.flip(u, along).cumsum(along), along).reshape(x.shape)
        for u in (upstream, np.abs(upstream))
    )
    return value, upstream.shape[along] * oracle.unit(x) * size


def expected_segment_sum(data, segment_ids, num_segments=None):
    rows = len(set(segment_ids)) if num_segments is None else num_segments
    total, size = np.zeros((2, rows, *data.shape[1:]))
    for row, segment in zip(data.astype("float64"), segment_ids, strict=True):
        if segment >= 0:
            total[segment] += row
            size[segment] += np.abs(row)
    return total, len(data) * oracle.unit(data) * size


def gradient_of_segment_sum(data, upstream, segment_ids, num_segments=None):
    rows = [upstream[i] if i >= 0 else np.zeros(data.shape[1:]) for i in segment_ids]
    return np.reshape(rows, data.shape), 0.0


def moments(x, axis=None, **options):
    return ops.moments(x, axes=axis, **options)


FUNCTIONS = {
    "sum": oracle.Function(ops.sum, expected_sum, gradient_of_sum),
    "mean": oracle.Function(ops.mean, expected_mean, gradient_of_mean),
    "cumsum": oracle.Function(ops.cumsum, expected_cumsum, gradient_of_cumsum),
    "moments": oracle.Function(moments, oracle.moments, oracle.moments_gradient),
}
SEGMENT_SUM = oracle.Function(
    ops.segment_sum, expected_segment_sum, gradient_of_segment_sum
)
EACH = pytest.mark.parametrize("name", FUNCTIONS)
EAGER_AND_GRAPH = pytest.mark.parametrize("route", ["native", "graph"], indirect=True)

AXES = (None, 0, -1, 2, np.int64(1))
SEVERAL_AXES = ((0, 2), [-1, 0], (2, 1, 0), ())
BOX = draw(7, 1, 16, 2)


def cases_of(name):
    """Sizes, axes and dtypes of a function."""
    cases = {f"size {n}": (draw(n, 7), {"axis": 0}) for n in SIZES}
    cases |= {f"axis {axis!r}": (BOX, {"axis": axis}) for axis in AXES}
    if name != "cumsum":
        for axis in (*AXES, *SEVERAL_AXES):
            cases[f"axes {axis!r}"] = BOX, {"axis": axis}
            cases[f"axes {axis!r}, kept"] = BOX, {"axis": axis, "keepdims": True}
        cases["no rows"] = draw(0, 7), {"axis": 1}
    for dtype in DTYPES:
        for output_dtype in (None, "float16", "float32"):
            options = {"axis": -1, "output_dtype": output_dtype}
            cases[f"{dtype} to {output_dtype}"] = draw(3, 217, dtype=dtype), options
    return cases


def few_cases_of(name):
    """For each route: XLA compiles each of them."""
    cases = {
        "size 0": (draw(0, 7), {"axis": 0}),
        "size 989": (draw(989, 7, dtype="bfloat16"), {"axis": 0}),
    }
    if name != "cumsum":
        cases["axes"] = BOX, {"axis": (0, 2)}
    return cases


@EACH
def test_cases(library, name):
    FUNCTIONS[name].check(eager, cases_of(name))


@EACH
def test_few_cases(route, name):
    FUNCTIONS[name].check(route, few_cases_of(name))


@EACH
def test_a_batch_of_unknown_size(route, name):
    cases = {"all": (draw(17, 7), {"axis": None})}
    FUNCTIONS[name].check(oracle.with_unknown_batch(route), cases)


SEGMENTS = {
    "rows": (draw(17, 7), {"segment_ids": np.arange(17) // 3}),
    "in any order": (draw(17, 7), {"segment_ids": np.arange(17) % 4}),
    "numbers": (draw(989), {"segment_ids": np.zeros(989, "int32")}),
    "boxes": (draw(16, 3, 2), {"segment_ids": np.arange(16) % 2}),
    "a negative id counts nowhere": (draw(3, 7), {"segment_ids": [0, -1, 0]}),
    "an id that is missing": (draw(3, 7), {"segment_ids": [0, 3, 3]}),
    "bfloat16": (draw(217, 7, dtype="bfloat16"), {"segment_ids": np.arange(217) % 3}),
    "float32": (draw(217, 7, dtype="float32"), {"segment_ids": np.arange(217) % 3}),
    "float64": (draw(217, 7, dtype="float64"), {"segment_ids": np.arange(217) % 3}),
    "to float32": (
        draw(989),
        {"segment_ids": np.zeros(989, "int32"), "output_dtype": "float32"},
    ),
    "empty": (draw(0, 7), {"segment_ids": np.zeros(0, "int32")}),
}
SEGMENTS = {
    name: (data, {"num_segments": 6, **options})
    for name, (data, options) in SEGMENTS.items()
}


def test_segments():
    SEGMENT_SUM.check(eager, SEGMENTS)


def test_few_segments(route):
    names = ("in any order", "numbers", "a negative id counts nowhere", "bfloat16")
    SEGMENT_SUM.check(route, {name: SEGMENTS[name] for name in names})


@pytest.mark.parametrize("sorted_ids", [False, True])
@pytest.mark.parametrize("run", [eager, tf.function], ids=["eager", "graph"])
def test_there_are_as_many_segments_as_ids(run, sorted_ids):
    data = np.float16([[1, 2], [3, 4], [5, 6]])
    call = run(
        lambda ids: ops.segment_sum(data, ids, sorted=sorted_ids), autograph=False
    )
    found = call([0, 0, 1])
    assert found.dtype == tf.float16
    np.testing.assert_array_equal(found, [[4, 6], [5, 6]])


# Name: the function, the ones it gets, and the result; an FP16 sum stops at 2048.
ONES = {
    "sum": (lambda x: ops.sum(x, axis=0), 4096, 4096),
    "mean": (ops.mean, 100_000, 1),
    "cumsum": (lambda x: ops.cumsum(x)[-1], 4096, 4096),
    "segment_sum": (lambda x: ops.segment_sum(x, 0 * tf.range(4096), 1), 4096, [4096]),
    "variance": (lambda x: ops.moments(x)[1], 100_000, 0),
}


@pytest.mark.parametrize("name", ONES)
def test_many_ones(route, name):
    function, count, expected = ONES[name]
    found = route(function, autograph=False)(tf.ones(count, "float16"))
    assert found.dtype == tf.float16
    np.testing.assert_array_equal(found, expected)


def test_a_sum_beyond_fp16_is_finite_in_fp32(route):
    x = np.float16([[60000, 60000], [-60000, -60000]])
    run = route(
        lambda x: [ops.sum(x, -1), ops.sum(x, -1, output_dtype="float32")],
        autograph=False,
    )
    half, single = run(tf.constant(x))
    np.testing.assert_array_equal(half, np.float16([INFINITY, -INFINITY]))
    np.testing.assert_array_equal(single, np.float32([120000, -120000]))


def test_the_variance_takes_no_difference_of_large_squares(route):
    # 60016 +- 16. The squares are 3.6e9, which FP32 rounds to multiples of 256.
    x = np.float16([60000, 60032] * 500)
    mean, variance = route(ops.moments, autograph=False)(tf.constant(x))
    assert mean.dtype == variance.dtype == tf.float16
    assert float(mean) == np.float16(60016)
    assert float(variance) == 256


def test_a_mean_of_the_largest_numbers_is_finite(route):
    x = tf.constant([65504, 65504, -65504, -65504], "float16")
    run = route(
        lambda x: [ops.mean(x), *ops.moments(x, output_dtype="float32")],
        autograph=False,
    )
    half, mean, variance = run(x)
    assert (half.dtype, mean.dtype) == (tf.float16, tf.float32)
    assert float(half) == float(mean) == 0
    assert float(variance) == 65504.0**2  # 2047^2 * 2^10, exact in FP32


SPECIAL = np.full((7, 17), 3, "float16")
SPECIAL[1, 3], SPECIAL[2, 3], SPECIAL[3, 3] = NAN, INFINITY, -INFINITY
SPECIAL[4, 3:5] = INFINITY, -INFINITY
SPECIAL[5] = 65504


@EACH
def test_nan_and_inf_stay_in_their_row(route, name):
    FUNCTIONS[name].check(route, {"rows": (SPECIAL, {"axis": -1})})
    FUNCTIONS[name].check(eager, {"columns": (SPECIAL, {"axis": 0})})


def test_nan_and_inf_stay_in_their_segment(route):
    cases = {"rows": (SPECIAL, {"segment_ids": [0, 1, 2, 3, 4, 0, 5]})}
    cases["rows"][1]["num_segments"] = 6
    SEGMENT_SUM.check(route, cases)


@EACH
def test_nan_in_the_upstream_gradient_arrives(library, name):
    def one_nan(shape):
        return np.where(np.arange(np.prod(shape)).reshape(shape) == 1, NAN, 1.0)

    FUNCTIONS[name].check(eager, {"rows": (draw(3, 7), {"axis": 1})}, one_nan)


@pytest.mark.parametrize("name", [*FUNCTIONS, "segment_sum"])
def test_other_inputs(name):
    def call(x):
        if name == "segment_sum":
            return ops.segment_sum(x, [0, 0, 1])
        return FUNCTIONS[name].call(x)

    x = np.float16([1, 2, 4])
    expected = tf.nest.flatten(call(x))
    for same in (keras.Variable(x, dtype="float16"), tf.Variable(x)):
        for one, other in zip(tf.nest.flatten(call(same)), expected, strict=True):
            oracle.assert_same_bits(one.numpy(), other.numpy())
    for y in tf.nest.flatten(call([1.0, 2.0, 4.0])):
        assert y.dtype == tf.float32


@pytest.mark.parametrize("name", ["sum", "mean", "moments"])
def test_a_number_is_its_own_sum(route, name):
    found = route(FUNCTIONS[name].call, autograph=False)(tf.constant(3.0, "float16"))
    mean, *variance = tf.nest.flatten(found)
    assert (mean.dtype, mean.shape, float(mean)) == (tf.float16, (), 3.0)
    assert [float(v) for v in variance] == [0.0] * len(variance)


def test_synchronized_moments_of_one_replica_are_the_moments(route):
    x = tf.constant(draw(17, 7))
    run = route(
        lambda x: [ops.moments(x, 0, synchronized=s) for s in (False, True)],
        autograph=False,
    )
    for one, other in zip(*run(x), strict=True):
        oracle.assert_same_bits(other.numpy(), one.numpy())


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_sizes_whose_product_is_no_int32(route, name):
    """2^31 numbers for each of no results, of sizes that a graph does not know."""
    function = getattr(ops, name)
    run = route(
        lambda x: function(x, axis=(1, 2)),
        input_signature=[tf.TensorSpec([None] * 3, "float16")],
    )
    assert run(tf.zeros((0, 2**16, 2**15), "float16")).shape == (0,)


def test_rows_whose_number_is_no_int32():
    spec = tf.TensorSpec([None] * 3, "float16")
    run = tf.function(lambda x: as_rows(x, [2]), input_signature=[spec])
    assert run(tf.zeros((2**16, 2**15, 0), "float16")).shape == (2**31, 0)


def test_the_gradient_of_a_mean_counts_more_than_an_int32():
    # 2^32 elements, of which XLA computes only the one that is returned.
    @tf.function(jit_compile=True, autograph=False)
    def one_of_the_gradient():
        x = tf.zeros((2**16, 1, 2**16), "float16")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.mean(x, (0, 2), output_dtype="float32")
        return tape.gradient(y, x, tf.constant([2.0**20]))[0, 0, 0]

    assert float(one_of_the_gradient()) == 2.0**-12


def test_the_loss_scale_survives_the_gradient_of_a_mean(route):
    # 2^10 / 2^17 in FP16; 2^17, the number of elements, is beyond it.
    def differentiate(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.mean(x)
        return tape.gradient(y, x, tf.constant(2.0**10, "float16"))

    found = route(differentiate, autograph=False)(tf.zeros(2**17, "float16"))
    assert found.dtype == tf.float16
    assert np.all(found.numpy() == 2.0**-7)


@EACH
@EAGER_AND_GRAPH
def test_two_tapes(route, name):
    """As a GAN has them: one for each network."""
    oracle.assert_two_tapes_agree(route, FUNCTIONS[name].call, draw(3, 7))


def second_order_of_moments(x, u, v):
    """The gradient of sum(v * g), where g is the gradient of the variance."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            _, variance = ops.moments(x, -1)
        first = tf.cast(inner.gradient(variance, x, u), tf.float32)
        total = tf.reduce_sum(v * first)
    return outer.gradient(total, x)


@EAGER_AND_GRAPH
def test_second_order_of_the_variance(route):
    # g = 2 (x - m) u / N, so that v^T dg = 2 (v - mean(v)) u / N: 2 * 8 / 4 (v - 1).
    x, v = np.float16([[1, 2, 4, 8]]), np.float16([[0, 1, 3, 0]])
    run = route(second_order_of_moments, autograph=False)
    found = run(*map(tf.constant, (x, np.float16([8]), v.astype("float32"))))
    assert found.dtype == tf.float16
    np.testing.assert_array_equal(found, [[-4, 0, 8, -4]])


@EAGER_AND_GRAPH
def test_second_order_of_a_square(route):
    # With s = sum(x), that of s^2 is 2 s for each, and that of sum((2 s)^2) is 16 s.
    def differentiate(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.square(ops.sum(x))
            total = ops.sum(tf.square(inner.gradient(y, x)))
        return outer.gradient(total, x)

    found = route(differentiate, autograph=False)(tf.constant([1.0, 2.0], "float16"))
    assert found.dtype == tf.float16
    np.testing.assert_array_equal(found, [48, 48])


def with_ids(x, **options):
    return ops.segment_sum(x, [0] * len(x), **options)


CALLS = {name: one.call for name, one in FUNCTIONS.items()} | {"segment_sum": with_ids}
HALVES = np.ones((2, 3), "float16")
# Name: the array, the options, what the message says, and of which functions.
REFUSED = {
    "int": (np.ones((2, 3), "int32"), {}, "floating dtype. Received: .*int32", CALLS),
    "bool": (np.ones((2, 3), bool), {}, "floating dtype. Received: .*bool", CALLS),
    "int-result": (
        HALVES,
        {"output_dtype": "int32"},
        "`output_dtype` must be a floating dtype.*Received: output_dtype='int32'",
        CALLS,
    ),
    "axis": (HALVES, {"axis": 2}, "from -2 to 1.*Received: axis=2 .*2, 3", FUNCTIONS),
    "low-axis": (HALVES, {"axis": -3}, "from -2 to 1.*Received: axis=-3", FUNCTIONS),
    "axis-of-a-number": (np.float16(1), {"axis": 0}, "Received: axis=0", FUNCTIONS),
    "axis-twice": (
        HALVES,
        {"axis": (1, -1)},
        r"none twice.*Received: axis=\(1, -1\)",
        ["sum", "mean", "moments"],
    ),
    "fraction": (HALVES, {"axis": 1.0}, "an int.*Received: axis=1.0", FUNCTIONS),
    "text": (HALVES, {"axis": "a"}, "an int.*Received: axis='a'", FUNCTIONS),
    "truth": (HALVES, {"axis": True}, "an int.*Received: axis=True", FUNCTIONS),
    "no-axis": (HALVES, {"axis": ()}, "one number.*Received: 0 axes", ["cumsum"]),
    "two-axes": (HALVES, {"axis": (0, 1)}, "one number.*Received: 2 axes", ["cumsum"]),
    "no-dtype": (
        HALVES,
        {"output_dtype": "half-hearted"},
        "must be a floating dtype.*Received: output_dtype='half-hearted'",
        ["sum"],
    ),
}


@pytest.mark.parametrize(
    ("refused", "name"),
    [(refused, name) for refused, (*_, names) in REFUSED.items() for name in names],
)
def test_what_does_not_fit_is_refused(refused, name):
    x, options, message, _ = REFUSED[refused]
    with pytest.raises(ValueError, match=message):
        CALLS[name](x, **options)


@EACH
def test_an_unknown_number_of_dimensions_is_refused(name):
    run = tf.function(
        lambda x: FUNCTIONS[name].call(x, axis=0),
        input_signature=[tf.TensorSpec(None, "float16")],
        autograph=False,
    )
    with pytest.raises(ValueError, match=r"must be known\. Received: .*unknown"):
        run(tf.ones(3, "float16"))


NUMBERS = st.floats(width=16, allow_nan=False, allow_infinity=False)


@settings(max_examples=50)
@given(st.lists(NUMBERS, max_size=40))
def test_any_sum_is_that_of_the_numbers_to_fp32(numbers):
    bound = len(numbers) * 2.0**-24 * math.fsum(map(abs, numbers))
    expected = np.float64(math.fsum(numbers))
    for order in (numbers, numbers[::-1], sorted(numbers)):
        found = ops.sum(np.float16(order), output_dtype="float32")
        oracle.assert_rounded(found, expected, bound, "float32")


@settings(max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_the_last_of_a_cumsum_is_the_sum(numbers):
    x = np.float16(numbers)
    last = ops.cumsum(x, output_dtype="float32")[-1]
    oracle.assert_rounded(last, *expected_sum(x), "float32")
