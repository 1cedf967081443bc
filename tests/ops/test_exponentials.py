"""softmax, log_softmax, logsumexp: values and gradients, on every route.

Every comparison is `oracle.assert_rounded`: the float64 result plus or minus the error
of FP32, derived in `oracle`, rounded once.
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

SIZES = (0, 1, 7, 16, 17, 217, 989)
DTYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
INFINITY, NAN = float("inf"), float("nan")
LARGEST = 65504.0
LOSS_SCALE = 2.0**10


def draw(*shape, dtype="float16"):
    """Logits up to 12 apart, most of them 4."""
    return np.random.default_rng(1).normal(0, 2, shape).astype(DTYPES[dtype])


def eager(function, **_):
    return function


FUNCTIONS = {
    "softmax": oracle.Function(ops.softmax, oracle.softmax, oracle.softmax_gradient),
    "log_softmax": oracle.Function(
        ops.log_softmax, oracle.log_softmax, oracle.log_softmax_gradient
    ),
    "logsumexp": oracle.Function(
        ops.logsumexp, oracle.logsumexp, oracle.logsumexp_gradient
    ),
}
SOFTMAX = FUNCTIONS["softmax"]
EACH = pytest.mark.parametrize("name", FUNCTIONS)
EAGER_AND_GRAPH = pytest.mark.parametrize("route", ["native", "graph"], indirect=True)
AXES = (None, 0, -1, 2, np.int64(1), (0, 2), [-1, 0], (2, 1, 0), ())
BOX = draw(7, 1, 16, 2)


def cases_of(name):
    """Sizes, axes and dtypes of a function."""
    cases = {f"size {n}": (draw(7, n), {"axis": -1}) for n in SIZES}
    cases |= {f"size {n} of columns": (draw(n, 7), {"axis": 0}) for n in SIZES}
    cases["no rows"] = draw(0, 7), {"axis": 1}
    for axis in AXES:
        cases[f"axis {axis!r}"] = BOX, {"axis": axis}
        if name == "logsumexp":
            cases[f"axis {axis!r}, kept"] = BOX, {"axis": axis, "keepdims": True}
    for dtype in DTYPES:
        # From more to fewer bits softmax holds the result, whose rounding the
        # reference does not have: test_the_gradient_of_a_rounded_softmax.
        shorter = [] if dtype in oracle.HALVES or name == "softmax" else ["float16"]
        for output_dtype in (None, "float32", *shorter):
            if (dtype, output_dtype, name) == ("float64", "float32", "softmax"):
                continue
            options = {"axis": -1, "output_dtype": output_dtype}
            cases[f"{dtype} to {output_dtype}"] = draw(3, 217, dtype=dtype), options
    return cases


# For each route: XLA compiles each of them.
FEW_CASES = {
    "size 0": (draw(0, 7), {"axis": 0}),
    "size 989": (draw(989, 7, dtype="bfloat16"), {"axis": 0}),
}


@EACH
def test_cases(library, name):
    FUNCTIONS[name].check(eager, cases_of(name))


@pytest.mark.slow
@EACH
def test_few_cases(route, name):
    FUNCTIONS[name].check(route, FEW_CASES)


@EACH
def test_a_batch_of_unknown_size(route, name):
    cases = {"all": (draw(17, 7), {"axis": None})}
    FUNCTIONS[name].check(oracle.with_unknown_batch(route), cases)


# Rows of logits that FP16 exponentials, or differences, could not take.
ROWS = {
    "large": [LARGEST, LARGEST, LARGEST - 32, LARGEST],
    "low": [-LARGEST, -LARGEST, -LARGEST + 32, -LARGEST],
    "far apart": [LARGEST, -LARGEST, 0, 2.0**-24],
    "e^12 is beyond FP16": [12, 11.5, 12, 11],
    "e^-20 is below FP16": [0, -20, -17, -12],
    "one minus infinity": [-INFINITY, 1, 2, 3],
    "all but one": [-INFINITY, -INFINITY, 3, -INFINITY],
    "minus infinity": [-INFINITY] * 4,
    "infinity": [0, 1, INFINITY, 2],
    "both": [0, INFINITY, -INFINITY, 2],
    "nan": [0, 1, NAN, 2],
    "nan and infinity": [-INFINITY, INFINITY, NAN, 2],
}
EXTREME = np.float16(list(ROWS.values()))


@pytest.mark.slow_except("native-*")
@EACH
def test_extreme_logits(route, name):
    def ones(shape):
        return LOSS_SCALE * np.ones(shape)

    cases = {
        "rows": (EXTREME, {"axis": -1}),
        "rows of two axes": (EXTREME.reshape(-1, 2, 2), {"axis": (-1, -2)}),
        "to float32": (EXTREME, {"axis": -1, "output_dtype": "float32"}),
    }
    FUNCTIONS[name].check(route, cases)
    FUNCTIONS[name].check(eager, cases, ones)


# Rows without a softmax, and the logsumexp of each.
UNDEFINED = {
    "infinity": ([0, 1, INFINITY, 2], INFINITY),
    "infinities of both signs": ([0, INFINITY, -INFINITY, 2], INFINITY),
    "nan": ([0, 1, NAN, 2], NAN),
    "nan first": ([NAN, 1, 0, 2], NAN),
    "nan and infinities": ([-INFINITY, INFINITY, NAN, 2], NAN),
    "nothing but minus infinity": ([-INFINITY] * 4, -INFINITY),
}
# What a kernel computes, what the formula does, and what is held as a rounded result.
DTYPE_PAIRS = (
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
    ("float32", "float32"),
    ("float32", "float16"),
    ("float64", "float64"),
)


@pytest.mark.xslow_except(
    "native-*",
    "graph-*",
    "reference-*",
    "xla-float16 to float16",
    "xla-float32 to float32",
)
@pytest.mark.slow_except("native-*")
@pytest.mark.parametrize(
    "dtypes", DTYPE_PAIRS, ids=[" to ".join(pair) for pair in DTYPE_PAIRS]
)
def test_a_row_without_a_softmax_is_nan(route, dtypes):
    """None of its probabilities is a number, nor is their gradient.

    Kernels of the host may give `[0, 0, nan, 0]` for `[0, 1, inf, 2]`. The row before
    and the row behind are not touched, nor is what a mask hides.
    """
    dtype, output_dtype = dtypes
    number = [0.0, 0.0, 0.0, 0.0]
    rows = [row for undefined, _ in UNDEFINED.values() for row in (number, undefined)]
    x = np.array([*rows, number], DTYPES[dtype])
    upstream = np.ones(x.shape, DTYPES[output_dtype])
    is_number = np.arange(len(x)) % 2 == 0
    shown = np.array([True, True, True, False])

    def every(x, upstream):
        options = {"output_dtype": output_dtype}
        functions = (
            lambda x: ops.softmax(x, **options),
            lambda x: ops.log_softmax(x, **options),
            lambda x: ops.softmax(tf.reshape(x, [-1, 2, 2]), (-1, -2), **options),
            lambda x: ops.log_softmax(tf.reshape(x, [-1, 2, 2]), (-1, -2), **options),
            lambda x: ops.softmax(x, mask=shown, **options),
        )
        found = []
        for function in functions:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            slope = tape.gradient(y, x, tf.reshape(upstream, tf.shape(y)))
            found += [tf.reshape(y, tf.shape(x)), slope]
        return [*found, ops.logsumexp(x, -1, **options)]

    *found, sums = route(every, autograph=False)(tf.constant(x), tf.constant(upstream))
    *unmasked, masked, masked_slope = [one.numpy().astype("float64") for one in found]
    for one in unmasked:
        np.testing.assert_array_equal(np.isnan(one).all(-1), ~is_number)
        np.testing.assert_array_equal(np.isnan(one).any(-1), ~is_number)
    for one in (masked, masked_slope):
        np.testing.assert_array_equal(np.isnan(one), np.outer(~is_number, shown))
        np.testing.assert_array_equal(one[:, ~shown], 0)
    np.testing.assert_array_equal(
        sums.numpy()[1::2].astype("float64"), [total for _, total in UNDEFINED.values()]
    )
    assert sums.dtype == output_dtype


def test_a_logsumexp_of_nothing_has_no_slope(route):
    x = np.full((2, 3), -INFINITY, "float16")
    x[1, 2] = 5
    value, slope = differentiate(
        route, lambda x: ops.logsumexp(x, -1), x, np.float16([1000, 1000])
    )
    assert value.dtype == slope.dtype == np.float16
    np.testing.assert_array_equal(value, [-INFINITY, 5])
    np.testing.assert_array_equal(slope, [[0, 0, 0], [0, 0, 1000]])


def differentiate(route, function, x, upstream):
    """The value and the gradient of a function, in NumPy."""

    def both(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, x, upstream)

    found = route(both, autograph=False)(tf.constant(x), tf.constant(upstream))
    return [one.numpy() for one in found]


# Name: the function of 100,000 logits, and the result: e^x adds up to infinity in FP16.
EQUAL = {
    "softmax": (ops.softmax, 1e-5),
    "log_softmax": (ops.log_softmax, -math.log(1e5)),
    "logsumexp": (lambda x: ops.logsumexp(x, keepdims=True), math.log(1e5)),
}


@EACH
def test_many_equal_logits(route, name):
    function, expected = EQUAL[name]
    found = route(function, autograph=False)(tf.zeros(100_000, "float16"))
    assert found.dtype == tf.float16
    assert np.all(found.numpy() == np.float16(expected))


def test_a_long_softmax_is_right_to_the_last_place(route):
    x = draw(70_000)
    found = route(ops.softmax, autograph=False)(tf.constant(x)).numpy()
    expected, _ = oracle.softmax(x)
    assert found.dtype == np.float16
    # Of numbers that are not negative, the integers of the bits count the steps.
    steps = oracle.bits(found).astype(int) - oracle.bits(expected.astype("float16"))
    assert np.max(np.abs(steps)) <= 1


def test_tiny_probabilities_have_a_gradient(route):
    # e^-18.4 = 1e-8 is 0 in FP16. Times 2^15 it is a slope of 3e-4.
    x = np.float16([[0, -18.421875, -18.421875]])
    upstream = np.float16([[0, 2.0**15, -(2.0**15)]])
    value, slope = differentiate(route, ops.softmax, x, upstream)
    np.testing.assert_array_equal(value, np.float16([[1, 0, 0]]))
    expected = oracle.softmax_gradient(x, upstream.astype("float64"))
    assert expected[0][0, 1] > 3e-4
    oracle.assert_rounded(slope, *expected, "float16")


def test_the_gradient_of_a_rounded_softmax(route):
    """From FP32 logits to FP16 the result is held, so its rounding is in the gradient.

    With the result off by e, p (u - sum(p u)) is off by e (|u| + sum(p |u|)) and
    p sum(e |u|); e is 2^-11 of the result, or 2^-25 where FP16 is subnormal.
    """
    x = draw(7, 17, dtype="float32")
    upstream = (LOSS_SCALE * np.random.default_rng(2).normal(size=x.shape)).astype(
        "float16"
    )
    value, slope = differentiate(
        route, lambda x: ops.softmax(x, output_dtype="float16"), x, upstream
    )
    p, error = oracle.softmax(x)
    oracle.assert_rounded(value, p, error, "float16")

    size = np.abs(upstream.astype("float64"))
    off = np.maximum(2.0**-11 * p, 2.0**-25) + error
    bound = off * (size + np.sum((p + off) * size, -1, keepdims=True))
    bound += p * np.sum(off * size, -1, keepdims=True)
    expected, error = oracle.softmax_gradient(x, upstream.astype("float64"))
    oracle.assert_rounded(slope, expected, bound + error, "float32")


@pytest.mark.parametrize(
    ("dtype", "output_dtype"),
    [("float32", "float16"), ("float32", "bfloat16"), ("float64", "float32")],
)
def test_a_softmax_of_fewer_bits_is_rounded_once(dtype, output_dtype):
    x = draw(7, 217, dtype=dtype)
    found = ops.softmax(x, output_dtype=output_dtype)
    oracle.assert_rounded(found, *oracle.softmax(x), output_dtype)


LOGITS = draw(3, 5, 7)
# Name: the mask; numbers above 0.5 are True.
MASKS = {
    "bool": draw(3, 5, 7) > -1,
    "numbers": np.linspace(0, 1, 105, dtype="float32").reshape(3, 5, 7),
    "halves": np.float16([0, 0.5, 0.50049, 1, -1, 2, NAN]),
    "ints": np.int32([0, 1, 2, -1, 0, 1, 1]),
    "list": [True, False, True, True, False, True, True],
    "of columns": np.array([True, False, True, True, False, True, True]),
    "of rows": np.array([[True], [False], [True], [True], [False]]),
    "of batches": np.array([True, False, True]).reshape(3, 1, 1),
    "of heads": draw(1, 5, 7) > 0,
    "one for all": np.array(True),
    "nothing": np.array(False),
}


@pytest.mark.parametrize("axis", [-1, 1, (0, -1)], ids=str)
def test_masks(library, axis):
    cases = {
        name: (LOGITS, {"mask": mask, "axis": axis}) for name, mask in MASKS.items()
    }
    SOFTMAX.check(eager, cases)


def test_masks_on_every_route(route):
    cases = {
        "halves": (LOGITS, {"mask": MASKS["halves"]}),
        "of rows": (LOGITS, {"mask": MASKS["of rows"], "axis": (0, -1)}),
    }
    SOFTMAX.check(route, cases)


def test_a_mask_of_unknown_size(route):
    specs = [tf.TensorSpec([None, 7], "float16"), tf.TensorSpec([None, None], "bool")]
    run = route(
        lambda x, mask: ops.softmax(x, mask=mask),
        input_signature=specs,
        autograph=False,
    )
    x, mask = LOGITS[0], MASKS["of rows"]
    found = run(tf.constant(x), tf.constant(mask))
    oracle.assert_rounded(found, *oracle.softmax(x, mask=mask), "float16")


def along_one_and_two_axes(mask):
    """Adds up two softmaxes of the same rows."""

    def both(x):
        return ops.softmax(x, -1, mask) + ops.softmax(x, (1, -1), mask)

    return both


def test_a_fully_masked_row_is_zero(route):
    value, slope = differentiate(
        route,
        along_one_and_two_axes([[[False, False, False]], [[True, True, False]]]),
        np.float16([[[1, 2, 3]], [[4, 4, 9]]]),
        np.float16([[[1000, 2000, 3000]], [[1000, 3000, 9000]]]),
    )
    np.testing.assert_array_equal(value, np.float16([[[0, 0, 0]], [[1, 1, 0]]]))
    np.testing.assert_array_equal(slope, np.float16([[[0, 0, 0]], [[-1000, 1000, 0]]]))


def test_what_is_masked_has_no_effect(route):
    value, slope = differentiate(
        route,
        along_one_and_two_axes([True, True, False, False, False, False]),
        np.float16([[[1, 1, NAN, INFINITY, -INFINITY, LARGEST]]]),
        np.float16([[[1000, 3000, 1000, 1000, 1000, 1000]]]),
    )
    np.testing.assert_array_equal(value, np.float16([[[1, 1, 0, 0, 0, 0]]]))
    np.testing.assert_array_equal(slope, np.float16([[[-1000, 1000, 0, 0, 0, 0]]]))


@EACH
def test_nan_in_the_upstream_gradient_arrives(library, name):
    def one_nan(shape):
        return np.where(np.arange(np.prod(shape)).reshape(shape) == 1, NAN, 1.0)

    FUNCTIONS[name].check(eager, {"rows": (draw(3, 7), {"axis": 1})}, one_nan)


@EACH
@EAGER_AND_GRAPH
def test_two_tapes(route, name):
    """As a GAN has them: one for each network."""
    oracle.assert_two_tapes_agree(route, FUNCTIONS[name].call, draw(3, 7))


# Each beside the function that TensorFlow differentiates in float64.
PLAIN = {
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "logsumexp": lambda x: tf.reduce_logsumexp(x, -1),
}


def second_order(function, x, u, v):
    """The gradient of sum(v * g), where g is the gradient for the slope u."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x, axis=-1)
        first = tf.cast(inner.gradient(y, x, u), v.dtype)
        total = tf.reduce_sum(v * first)
    return outer.gradient(total, x)


@EACH
@EAGER_AND_GRAPH
def test_second_order(route, name):
    random = np.random.default_rng(3)
    x, v = random.uniform(-1, 1, (2, 3, 5)).astype("float16")
    u = random.uniform(-1, 1, (3,) if name == "logsumexp" else (3, 5)).astype("float16")
    run = route(
        lambda *data: second_order(FUNCTIONS[name].call, *data), autograph=False
    )
    found = run(*map(tf.constant, (x, u, v.astype("float32"))))
    exact = second_order(
        lambda x, axis: PLAIN[name](x),
        *(tf.constant(a.astype("float64")) for a in (x, u, v)),
    )
    assert found.dtype == tf.float16
    # No number on the way is above 4, and 4 are rounded to FP16: the result, the
    # gradient of g, and the two terms that add up to it.
    np.testing.assert_allclose(found, exact, rtol=0, atol=4 * 2.0**-11 * 4)
    assert np.max(np.abs(exact)) > 4 * 4 * 2.0**-11


@EACH
def test_other_inputs(name):
    call, x = FUNCTIONS[name].call, np.float16([1, 2, 4])
    expected = call(x).numpy()
    for same in (keras.Variable(x, dtype="float16"), tf.Variable(x)):
        oracle.assert_same_bits(call(same).numpy(), expected)
    assert call([1.0, 2.0, 4.0]).dtype == tf.float32


def test_a_number_is_its_own_logsumexp(route):
    run = route(
        lambda x: [one.call(x, axis=None) for one in FUNCTIONS.values()],
        autograph=False,
    )
    found = run(tf.constant(3.0, "float16"))
    assert [(y.dtype, y.shape, float(y)) for y in found] == [
        (tf.float16, (), expected) for expected in (1.0, 0.0, 3.0)
    ]


HALVES = np.ones((2, 3), "float16")
# Name: the array, the options, and what the message says.
REFUSED = {
    "int": (np.ones((2, 3), "int32"), {}, r"floating dtype\. Received: .*int32"),
    "bool": (np.ones((2, 3), bool), {}, r"floating dtype\. Received: .*bool"),
    "output": (
        HALVES,
        {"output_dtype": "int32"},
        "`output_dtype` must be a floating dtype.*Received: output_dtype='int32'",
    ),
    "axis": (HALVES, {"axis": 2}, "from -2 to 1.*Received: axis=2 .*2, 3"),
    "low-axis": (HALVES, {"axis": -3}, "from -2 to 1.*Received: axis=-3"),
    "axis-of-a-number": (np.float16(1), {"axis": 0}, "Received: axis=0"),
    "axis-twice": (HALVES, {"axis": (1, -1)}, r"none twice.*Received: axis=\(1, -1\)"),
}
REFUSED_MASKS = {"long": (4,), "more-dimensions": (1, 2, 3), "rows": (3, 1)}


@pytest.mark.parametrize("refused", REFUSED)
@EACH
def test_what_does_not_fit_is_refused(refused, name):
    x, options, message = REFUSED[refused]
    with pytest.raises(ValueError, match=message):
        FUNCTIONS[name].call(x, **options)


@pytest.mark.parametrize("shape", REFUSED_MASKS.values(), ids=REFUSED_MASKS)
@pytest.mark.parametrize("run", [eager, tf.function], ids=["eager", "graph"])
def test_a_mask_that_does_not_broadcast_is_refused(run, shape):
    call = run(lambda x: ops.softmax(x, mask=np.ones(shape, bool)), autograph=False)
    with pytest.raises(
        ValueError, match=r"`mask` must broadcast.*Received: mask\.shape"
    ):
        call(tf.constant(HALVES))


@EACH
def test_an_unknown_number_of_dimensions_is_refused(name):
    run = tf.function(
        FUNCTIONS[name].call,
        input_signature=[tf.TensorSpec(None, "float16")],
        autograph=False,
    )
    with pytest.raises(ValueError, match=r"must be known\. Received: .*unknown"):
        run(tf.ones(3, "float16"))


NUMBERS = st.floats(width=16, allow_nan=False, allow_infinity=False)


@settings(max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_a_softmax_sums_to_one(numbers):
    # Each is rounded to FP16 by 2^-11 of itself, or by 2^-25 where it is below 2^-14.
    # The rounding of p in FP32 is as in `oracle`.
    x = np.float16(numbers)
    total = math.fsum(map(float, ops.softmax(x).numpy()))
    _, error = oracle.softmax(x)
    bound = 2.0**-11 + len(numbers) * 2.0**-25 + 2 * math.fsum(error)
    assert abs(total - 1) <= bound


@settings(max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=40), st.sampled_from([1, 100, 1000]))
def test_a_logsumexp_is_between_the_largest_and_what_n_of_it_give(numbers, n):
    # x and log(N) + x, each to a rounding of FP32 and the error of log(N) in FP32.
    x = np.repeat(np.float16(numbers), n)
    found = float(ops.logsumexp(x, output_dtype="float32"))
    _, error = oracle.logsumexp(x)
    largest = float(np.max(x))
    assert largest - error <= found <= largest + math.log(len(x)) + error
