"""fp16_gemm: gradients against those of float64, on every route."""

import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp.ops import fp16_gemm

HALF = 2.0**-11  # a rounding to FP16, of a number in its normal range
SINGLE = 2.0**-24
ACTIVATIONS = list(oracle.ACTIVATIONS)
EACH = pytest.mark.parametrize("activation", ACTIVATIONS)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype("float16")


def float64(x):
    return tf.constant(np.asarray(x, "float64"))


def product(a, b, transpose_a, transpose_b):
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def slope_error(activation, x, error):
    """How far the slope at x may be off, where x is off by `error`."""
    if activation is None:
        return 0.0
    if activation == "relu":
        assert np.all(np.abs(x) > error)  # else the side of the corner is open
        return 0.0
    if activation == "gelu":  # computed from x; the second derivative is below 0.8
        return 0.8 * error + 2.0**-20
    # Computed from y, rounded to FP16; the slope of x in y is at most 2 |y| <= 2.
    y = np.abs(oracle.ACTIVATIONS[activation](float64(x)).numpy())
    return 2 * (error + 2.0**-20 + HALF * y)


def expected_gradients(a, b, bias, upstream, alpha, activation, **transposes):
    """The gradients of a, b and bias in float64, and how far FP32 may be from each.

    The slope, upstream * activation'(x), is rounded once to FP16. No sum has more
    terms than the result has elements, and a sum of n terms in FP32 errs by n * 2^-24
    of the sum of their sizes: the gradient of the product of the absolute values.
    """
    x, error = oracle.gemm(a, b, bias=bias, alpha=alpha, **transposes)
    arguments = [float64(a), float64(b), float64(bias)]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        linear = alpha * product(*arguments[:2], **transposes) + arguments[2]
        y = oracle.ACTIVATIONS[activation](linear)
    exact = tape.gradient(y, arguments, float64(upstream))

    upstream = np.abs(upstream.astype("float64"))
    wrong = upstream * slope_error(activation, x, error)
    slope = 1.13 * upstream
    sums = (x.size + 3) * SINGLE * slope
    sizes = [tf.abs(x) for x in arguments]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sizes)
        linear = abs(alpha) * product(*sizes[:2], **transposes) + sizes[2]
    # Below 2^-14 the spacing of FP16 is that at 2^-14.
    rounded = wrong + HALF * np.maximum(slope, 2.0**-14)
    bounds = tape.gradient(linear, sizes[:2], float64(rounded + sums))
    bounds.append(tape.gradient(linear, sizes[2], float64(wrong + sums)))
    return [x.numpy() for x in exact], [x.numpy() for x in bounds]


def gradients(run, arguments, upstream, **options):
    """The gradients of a, b and bias on a route."""

    def differentiate(upstream, *arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            y = fp16_gemm(*arguments[:2], bias=arguments[2], **options)
        return tape.gradient(y, arguments, upstream)

    differentiate = run(differentiate, autograph=False)
    return differentiate(*map(tf.constant, (upstream, *arguments)))


def check(run, a, b, bias, upstream, alpha=1.0, activation=None, **options):
    transposes = {
        name: options.get(name, False) for name in ("transpose_a", "transpose_b")
    }
    found = gradients(
        run, (a, b, bias), upstream, alpha=alpha, activation=activation, **options
    )
    expected, bounds = expected_gradients(
        a, b, bias, upstream, alpha, activation, **transposes
    )
    for argument, *one in zip((a, b, bias), found, expected, bounds, strict=True):
        oracle.assert_rounded(*one, argument.dtype.name)


@EACH
def test_gradients(route, activation):
    a, b, bias = draw(1, 7, 16), draw(2, 16, 17) / np.float16(4), draw(3, 17)
    check(route, a, b, bias, draw(4, 7, 17), activation=activation)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@EACH
def test_transposes(library, transpose_a, transpose_b, activation):
    a = draw(1, 16, 7) if transpose_a else draw(1, 7, 16)
    b = (draw(2, 17, 16) if transpose_b else draw(2, 16, 17)) / np.float16(4)
    check(
        lambda f, **_: f,
        a,
        b,
        draw(3, 17).astype("float32"),
        draw(4, 7, 17).astype("float32"),
        alpha=0.375,
        activation=activation,
        output_dtype="float32",
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )


BATCHES = {
    "both": ((2, 3), (2, 3)),
    "a-only": ((2, 3), ()),
    "b-only": ((), (2, 3)),
    "a-is-shared": ((1, 3), (2, 1)),
    "b-is-shared": ((2, 3), (3,)),
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("transposed", [False, True])
def test_batches(library, batches, transposed):
    """What was broadcast gets the FP32 sum over the batch, rounded once."""
    options = {"transpose_a": transposed, "transpose_b": transposed}
    a = draw(1, *batches[0], *((16, 7) if transposed else (7, 16)))
    b = draw(2, *batches[1], *((17, 16) if transposed else (16, 17)))
    upstream = draw(4, *np.broadcast_shapes(*batches), 7, 17)
    check(lambda f, **_: f, a, b, draw(3, 17), upstream, **options)


def test_batches_in_xla(route):
    check(route, draw(1, 2, 3, 7, 4), draw(2, 3, 4, 5), draw(3, 5), draw(4, 2, 3, 7, 5))


@pytest.mark.parametrize(
    "sizes", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)], ids=lambda sizes: f"{sizes}"
)
def test_empty(route, sizes):
    m, k, n = sizes
    a, b, bias, upstream = draw(1, m, k), draw(2, k, n), draw(3, n), draw(4, m, n)
    found = gradients(route, (a, b, bias), upstream, activation="tanh")
    assert [x.shape for x in found] == [(m, k), (k, n), (n,)]
    assert not np.any(found[0]) and not np.any(found[1])


def test_bfloat16(library):
    # Small numbers: every product, sum and rounding is exact.
    a, b = (tf.constant(x, "bfloat16") for x in ([[1, 2]], [[3, 4, 5], [6, 7, 8]]))
    bias = tf.constant([1.0, 1.0, 1.0])
    upstream = tf.constant([[1, 0, 2]], "bfloat16")
    found = gradients(lambda f, **_: f, (a, b, bias), upstream, output_dtype="bfloat16")
    assert [x.dtype.name for x in found] == ["bfloat16", "bfloat16", "float32"]
    np.testing.assert_array_equal(found[0], [[13, 22]])
    np.testing.assert_array_equal(found[1], [[1, 0, 2], [2, 0, 4]])
    np.testing.assert_array_equal(found[2], [1, 0, 2])


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("rows", [(), (2,)])
def test_the_gradient_of_a_master_weight_is_fp32(route, transpose_b, rows):
    # 2^-15 * 2^-15 = 9.3e-10; the smallest FP16 number is 6e-8, so 0 in FP16.
    a = np.full((*rows, 1, 1), 2.0**-15, "float16")
    b, bias = np.ones((1, 1), "float32"), np.zeros(1, "float32")
    options = {"transpose_b": transpose_b}
    _, of_b, of_bias = gradients(route, (a, b, bias), a, **options)
    assert of_b.dtype == of_bias.dtype == tf.float32
    assert of_b.numpy().item() == max(1, *rows, 1) * 2.0**-30
    assert of_bias.numpy().item() == max(1, *rows, 1) * 2.0**-15


# 2^-12 is no part of an FP16 number beside 1.
@pytest.mark.parametrize(("weight", "rounded"), [(1 + 2.0**-12, 1), (1e5, np.inf)])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_a_master_weight_is_rounded_before_the_products(
    route, weight, rounded, transpose_a
):
    def differentiate(a, b):
        with tf.GradientTape() as tape:
            tape.watch(a)
            y = fp16_gemm(a, b, transpose_a, output_dtype="float32")
        return y, tape.gradient(y, a)

    run = route(differentiate, autograph=False)
    y, of_a = run(tf.ones((1, 1), "float16"), tf.constant([[weight]], "float32"))
    np.testing.assert_array_equal(y, np.float32([[rounded]]), strict=True)
    np.testing.assert_array_equal(of_a, np.float16([[rounded]]), strict=True)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_second_gradient_of_a_master_weight_is_fp32(route, transpose_b):
    # The derivative of v (u b) is u v = 2^-30: 0 in FP16.
    tiny, b = np.full((1, 1), 2.0**-15, "float16"), np.ones((1, 1), "float32")

    def differentiate(a, b, u):
        with tf.GradientTape() as outer:
            outer.watch(b)
            with tf.GradientTape() as inner:
                inner.watch(a)
                y = fp16_gemm(a, b, transpose_b=transpose_b)
            first = inner.gradient(y, a, u)
        return outer.gradient(first, b, u)

    run = route(differentiate, autograph=False)
    found = run(tf.constant(tiny), tf.constant(b), tf.constant(tiny))
    np.testing.assert_array_equal(found, np.float32([[2.0**-30]]), strict=True)


def test_alpha_unscales_the_weight_gradient_in_fp32(library):
    """A loss scale of 2^16 on gradients that FP16 cannot hold without it."""
    a = np.full((1, 1), 2.0**-10, "float16")
    slope = np.full((1, 1), 2.0**-20 * 2.0**16, "float16")
    found = fp16_gemm(
        a, slope, transpose_a=True, output_dtype="float32", alpha=2.0**-16
    )
    assert found.numpy().item() == 2.0**-30


def test_alpha_gets_no_gradient(library):
    alpha = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(alpha)
        y = fp16_gemm(draw(1, 2, 3), draw(2, 3, 2), alpha=alpha)
    assert tape.gradient(y, alpha) is None


def test_sums_of_the_gradients_are_fp32(library):
    # In FP16 the 2049th row would not count: 2048 + 1 is rounded to 2048.
    a, b, bias = np.ones((4097, 1)), np.ones((1, 4097)), np.zeros(4097)
    arguments = [x.astype("float16") for x in (a, b)] + [bias.astype("float32")]
    upstream = np.ones((4097, 4097), "float16")
    found = gradients(lambda f, **_: f, arguments, upstream)
    for gradient, expected in zip(found, (4096, 4096, 4097), strict=True):
        assert np.all(gradient == expected)


def test_a_gradient_that_overflows_is_inf(library):
    a, b, bias = np.float16([[2]]), np.float16([[3]]), np.float16([0])
    upstream = np.float16([[65504]])
    found = gradients(lambda f, **_: f, (a, b, bias), upstream)
    assert [x.numpy().item() for x in found] == [np.inf, np.inf, 65504]


@EACH
def test_nan_in_the_upstream_gradient_arrives(library, activation):
    arguments = draw(1, 2, 3), np.abs(draw(2, 3, 4)), np.full(4, 100, "float16")
    upstream = np.full((2, 4), np.nan, "float16")
    for gradient in gradients(
        lambda f, **_: f, arguments, upstream, activation=activation
    ):
        assert np.all(np.isnan(gradient))


def second_order(a, b, bias, u, v, activation):
    """The gradients of sum(v * g), where g is the gradient of a for the slope u."""
    with tf.GradientTape() as outer:
        outer.watch([a, b, bias])
        with tf.GradientTape() as inner:
            inner.watch(a)
            y = fp16_gemm(a, b, bias=bias, activation=activation)
        first = tf.cast(inner.gradient(y, a, u), tf.float32)
        total = tf.reduce_sum(v * first)
    return outer.gradient(
        total, [a, b, bias], unconnected_gradients=tf.UnconnectedGradients.ZERO
    )


def second_order_from(slope, second, a, b, u, v):
    """The same, given the first and second derivative of the activation.

    g = (u * slope) b^T, and the derivative of sum(v * g) by x is u * second * (v b).
    """
    of_x = u * second * (v @ b)
    return of_x @ b.T, v.T @ (u * slope) + a.T @ of_x, of_x.sum(0)


@EACH
def test_second_order(route, activation):
    random = np.random.default_rng(0)
    shapes = ((3, 4), (4, 5), (5,), (3, 5), (3, 4))
    data = [random.uniform(0.25, 0.5, shape).astype("float16") for shape in shapes]
    run = route(lambda *data: second_order(*data, activation), autograph=False)
    found = run(*map(tf.constant, data[:4]), tf.constant(data[4], "float32"))

    a, b, bias, u, v = (x.astype("float64") for x in data)
    x = tf.constant(a @ b + bias)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = oracle.ACTIVATIONS[activation](x)
        slope = inner.gradient(y, x)
    zero = tf.UnconnectedGradients.ZERO
    second = outer.gradient(slope, x, unconnected_gradients=zero).numpy()
    exact = second_order_from(slope.numpy(), second, a, b, u, v)
    # First and second derivatives are at most 1.13, and 8 roundings to FP16 lie between
    # an argument and its second gradient. No term is negative but for those.
    sizes = second_order_from(1.13, 1.13, a, b, u, v)
    for one, other, size in zip(found, exact, sizes, strict=True):
        assert one.dtype == tf.float16
        tolerance = 8 * HALF * np.max(size)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
        if np.any(second):  # which is what this test is about
            assert np.max(np.abs(other)) > 4 * tolerance
