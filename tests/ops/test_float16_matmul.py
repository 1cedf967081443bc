"""float16_matmul: values and gradients against float64, on every route."""

import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp.ops.float16_matmul import float16_matmul

PLAIN_AND_SCALED = pytest.mark.parametrize(
    "scaled", [False, True], ids=["plain", "scaled"]
)


def draw(seed, *shape, scale=1.0):
    random = np.random.default_rng(seed).normal(size=shape)
    return (random * scale).astype("float32")


def rounded(x):
    """An FP32 array as the numbers that FP16 has, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(x, "float32").astype("float16").astype("float64")


def differentiate(run, arguments, upstream, **options):
    """The product, and the gradients of `a` and `b`, on a route."""

    def compute(upstream, a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = float16_matmul(a, b, **options)
        return y, *tape.gradient(y, [a, b], upstream)

    compute = run(compute, autograph=False)
    return compute(*map(tf.constant, (upstream, *arguments)))


def transposed(x, is_transposed):
    return np.swapaxes(x, -1, -2) if is_transposed else x


def summed_to(x, shape):
    """The sum over the batch dimensions along which `shape` was broadcast."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    axes = tuple(i for i, size in enumerate(shape[:-2]) if size < x.shape[i])
    return x.sum(axes, keepdims=True)


def bounds_of(a, b, error_a, error_b):
    """How far a product may be off, of factors that are off by so much.

    An FP32 sum errs by K * 2^-24 of the sum of the sizes, and alpha, scale and the sums
    over a batch by a few roundings more. Numbers below 2^-126 may count as 0.
    """
    size = np.abs(a) @ np.abs(b)
    of_factors = np.abs(a) @ error_b + error_a @ (np.abs(b) + error_b)
    return of_factors + (a.shape[-1] + 8) * 2.0**-24 * size + 2.0**-125


def exactly(x):
    """The numbers multiplied without scales, and their error: 0."""
    return rounded(x), np.zeros(np.shape(x))


def nearly(x):
    """The numbers themselves, and the error of their scaled rounding."""
    x = np.asarray(x, "float64")
    lost = max(2.0**-39 * np.max(np.abs(x), initial=0), 2.0**-151)
    return x, 2.0**-11 * np.abs(x) + lost


def check(run, a, b, upstream, scaled, transpose_a=False, transpose_b=False, alpha=1.0):
    transposes = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    options = transposes | {"alpha": alpha, "scaled": scaled}
    found = differentiate(run, (a, b), upstream, **options)
    factor = nearly if scaled else exactly
    a = [transposed(x, transpose_a) for x in factor(a)]
    b = [transposed(x, transpose_b) for x in factor(b)]
    grad = factor(upstream)
    a_T, b_T = ([np.swapaxes(x, -1, -2) for x in pair] for pair in (a, b))
    expected = [(a, b, grad, False), (grad, b_T, a, transpose_a)]
    expected.append((a_T, grad, b, transpose_b))
    for one, (x, y, like, flip) in zip(found, expected, strict=True):
        for_value, for_bound = x[0] @ y[0], bounds_of(x[0], y[0], x[1], y[1])
        value, bound = (
            alpha * transposed(summed_to(z, like[0].shape), flip)
            for z in (for_value, for_bound)
        )
        oracle.assert_rounded(one, value, bound + 2.0**-125, "float32")


@pytest.mark.slow_except(
    "native-*", "graph-*-scaled", "xla-(7, 17, 16)-*", "reference-(7, 17, 16)-*"
)
@PLAIN_AND_SCALED
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 17, 16), (64, 111, 5)], ids=str)
def test_products_and_gradients(route, sizes, scaled):
    m, k, n = sizes
    check(route, draw(1, m, k), draw(2, k, n), draw(3, m, n), scaled, alpha=0.375)


@PLAIN_AND_SCALED
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposes(library, transpose_a, transpose_b, scaled):
    a = draw(1, 17, 7) if transpose_a else draw(1, 7, 17)
    b = draw(2, 5, 17) if transpose_b else draw(2, 17, 5)
    check(lambda f, **_: f, a, b, draw(3, 7, 5), scaled, transpose_a, transpose_b)


BATCHES = {
    "both": ((2, 3), (2, 3)),
    "a-only": ((2, 3), ()),
    "b-only": ((), (2, 3)),
    "a-is-shared": ((1, 3), (2, 1)),
    "b-is-shared": ((2, 3), (3,)),
}


@PLAIN_AND_SCALED
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_batches(library, batches, is_transposed, scaled):
    a = draw(1, *batches[0], *((17, 7) if is_transposed else (7, 17)))
    b = draw(2, *batches[1], *((5, 17) if is_transposed else (17, 5)))
    upstream = draw(3, *np.broadcast_shapes(*batches), 7, 5)
    check(lambda f, **_: f, a, b, upstream, scaled, is_transposed, is_transposed)


@PLAIN_AND_SCALED
def test_sizes_that_are_not_known(scaled):
    def unknown(f, **options):
        matrices = tf.TensorSpec([None, None, None], tf.float32)
        matrix = tf.TensorSpec([None, None], tf.float32)
        return tf.function(f, input_signature=[matrices, matrices, matrix], **options)

    check(unknown, draw(1, 2, 7, 17), draw(2, 17, 5), draw(3, 2, 7, 5), scaled)


@pytest.fixture
def every_route(route, library):
    """The routes with the native library and without it, graphs of both."""
    return route


@PLAIN_AND_SCALED
def test_the_sizes_that_are_known_stay_known(scaled):
    spec = [tf.TensorSpec([None, 7, 17], "float32"), tf.TensorSpec([17, 5], "float32")]
    product = tf.function(lambda a, b: float16_matmul(a, b, scaled=scaled), spec)
    shape = product.get_concrete_function().output_shapes
    assert shape.as_list() == [None, 7, 5]


# The magnitudes of a, b and the upstream gradient.
RANGES = {
    "outliers": (3e5, 1e-9, 1e-9),
    "tiny-gradient": (1.0, 1.0, 1e-30),
    "large-and-small": (1e30, 1e-30, 1e-12),
    "all-small": (1e-20, 1e-12, 1e-14),
    "all-large": (1e12, 1e18, 1e10),
    "both-ends": (3e38, 5e-38, 5e-38),
    "one-end": (5e-38, 1.0, 5e-38),
}


@pytest.mark.xslow_except("native-*", "graph-*", "reference-*", "xla-native-*")
@pytest.mark.slow_except("graph-native-*", "xla-native-both-ends")
@pytest.mark.parametrize("ranges", RANGES.values(), ids=RANGES)
def test_scaled_products_of_any_range(every_route, ranges):
    """The bound of the docstring holds; no number is subnormal here."""
    random = np.random.default_rng(0)
    shapes = (7, 17), (17, 5), (7, 5)
    signs = [random.choice([-1.0, 1.0], shape) for shape in shapes]
    arrays = [
        np.float32(scale * sign * random.uniform(0.25, 1.0, sign.shape))
        for scale, sign in zip(ranges, signs, strict=True)
    ]
    check(every_route, *arrays, scaled=True)


def test_what_is_far_below_the_largest_is_lost_and_no_more(route):
    # Scaled, 2^20 is 2^14, and 2^-30 is 2^-36: below half of 2^-24. FP16 keeps 2^-18.
    a = np.diag(np.float32([2.0**20, 2.0**-18, 2.0**-30]))
    found, _, _ = differentiate(route, (a, np.eye(3, dtype="f4")), a, scaled=True)
    np.testing.assert_array_equal(np.diag(found), [2.0**20, 2.0**-18, 0.0])


def test_zeros_stay_zero_beside_the_largest_numbers(every_route):
    # The inverse scale, 2^226, is beyond FP32, and 0 * inf would be NaN.
    a = np.diag(np.float32([2.0**127, 0.0]))
    found = differentiate(every_route, (a, a), a, scaled=True)
    for x in found:
        np.testing.assert_array_equal(x, [[np.inf, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40])
def test_tensors_of_zeros_and_of_subnormal_numbers(route, value):
    a = np.full((2, 3), value, "float32")
    found = differentiate(route, (a, np.ones((3, 2), "f4")), a[:, :2], scaled=True)
    for x in found:
        assert np.all(np.abs(x) <= 3 * 1.01e-40)


NOT_FINITE = pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan], ids=str)


@pytest.mark.slow_except("*-nan-*")
@PLAIN_AND_SCALED
@NOT_FINITE
def test_what_is_not_finite_comes_through(route, value, scaled):
    """And the other rows are what they are without it."""
    a = np.full((2, 3), 0.5, "float32")
    a[0, 1] = value
    upstream = np.ones((2, 1), "float32")
    found = differentiate(route, (a, np.ones((3, 1), "f4")), upstream, scaled=scaled)
    result, of_a, of_b = (x.numpy().ravel() for x in found)
    assert not np.isfinite(result[0]) and result[1] == 1.5
    np.testing.assert_array_equal(of_a, [1.0] * 6)
    np.testing.assert_array_equal(np.isfinite(of_b), [True, False, True])


@pytest.mark.slow_except("native-*", "reference-*", "graph-*")
@PLAIN_AND_SCALED
@NOT_FINITE
def test_an_upstream_gradient_that_is_not_finite_comes_through(route, value, scaled):
    arguments = np.ones((2, 1), "float32"), np.ones((1, 1), "float32")
    upstream = np.float32([[1.0], [value]])
    _, of_a, of_b = differentiate(route, arguments, upstream, scaled=scaled)
    assert of_a[0, 0] == 1.0 and not np.isfinite(of_a[1, 0])
    assert not np.isfinite(of_b[0, 0])


def test_an_upstream_gradient_beyond_fp16_is_not_clipped(route):
    arguments = np.ones((1, 1), "float32"), np.ones((1, 1), "float32")
    upstream = np.float32([[2.0**20]])
    for scaled, expected in ((False, np.inf), (True, 2.0**20)):
        _, *gradients = differentiate(route, arguments, upstream, scaled=scaled)
        assert [x.numpy().item() for x in gradients] == [expected] * 2


def test_an_upstream_gradient_below_fp16_is_kept_if_scaled(route):
    arguments = np.ones((1, 1), "float32"), np.ones((1, 1), "float32")
    upstream = np.float32([[2.0**-30]])
    for scaled, expected in ((False, 0.0), (True, 2.0**-30)):
        _, *gradients = differentiate(route, arguments, upstream, scaled=scaled)
        assert [x.numpy().item() for x in gradients] == [expected] * 2


@pytest.mark.slow_except("native-*", "reference-*", "graph-*-plain")
@PLAIN_AND_SCALED
@pytest.mark.parametrize(
    "shapes",
    [((0, 3), (3, 2)), ((2, 0), (0, 2)), ((2, 3), (3, 0)), ((4, 2, 0), (0, 5))],
    ids=str,
)
def test_empty(route, shapes, scaled):
    a, b = (np.ones(shape, "float32") for shape in shapes)
    upstream = np.ones((a @ b).shape, "float32")
    result, of_a, of_b = differentiate(route, (a, b), upstream, scaled=scaled)
    np.testing.assert_array_equal(result, a @ b)
    assert of_a.shape == a.shape and of_b.shape == b.shape


@pytest.mark.slow_except("native-*", "graph-*-scaled", "xla-gelu-*", "reference-gelu-*")
@PLAIN_AND_SCALED
@pytest.mark.parametrize("activation", oracle.ACTIVATIONS)
def test_bias_and_activation_are_fp32(route, activation, scaled):
    # All numbers are FP16 numbers, so that nothing but FP32 rounds.
    a, b = (rounded(draw(i, *shape)) for i, shape in enumerate([(2, 3, 7), (7, 5)]))
    bias = draw(3, 5)

    def compute(a, b, bias):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            y = float16_matmul(a, b, bias=bias, activation=activation, scaled=scaled)
        return y, tape.gradient(y, bias)

    run = route(compute, autograph=False)
    y, of_bias = run(*(tf.constant(x, tf.float32) for x in (a, b, bias)))
    exact, error = oracle.gemm(a, b, bias=bias, activation=activation)
    oracle.assert_rounded(y, exact, error, "float32")
    wide = tf.constant(bias, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(wide)
        expected = oracle.ACTIVATIONS[activation](tf.constant(a @ b) + wide)
    # 6 rows, whose slopes are at most 1.13; the second derivatives are below 1.
    tolerance = 6 * (1.13 * 2.0**-20 + np.max(error))
    expected = tape.gradient(expected, wide)
    np.testing.assert_allclose(of_bias, expected, rtol=0, atol=tolerance)


@PLAIN_AND_SCALED
def test_a_weight_that_is_stored_in_fp16_is_multiplied_as_it_is(route, scaled):
    a, b = np.float32([[2.0**17]]), np.float16([[2.0**-20]])
    upstream = np.float32([[1.0]])
    result, of_a, of_b = differentiate(route, (a, b), upstream, scaled=scaled)
    assert [x.dtype.name for x in (result, of_a, of_b)] == [
        "float32",
        "float32",
        "float16",
    ]
    assert result.numpy().item() == (0.125 if scaled else np.inf)
    assert of_a.numpy().item() == 2.0**-20
    assert of_b.numpy().item() == np.inf  # 2^17, rounded to FP16


@PLAIN_AND_SCALED
def test_a_tensor_times_itself_gets_both_gradients(route, scaled):
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = float16_matmul(x, x, transpose_b=True, scaled=scaled)
        return tape.gradient(y, x)

    found = route(compute, autograph=False)(tf.constant([[1.0, 2.0]]))
    np.testing.assert_array_equal(found, np.float32([[2.0, 4.0]]))


def second_order(a, b, u, v, scaled):
    """The gradients of sum(v * g), where g is the gradient of a for the slope u."""
    with tf.GradientTape() as outer:
        outer.watch([a, b, u])
        with tf.GradientTape() as inner:
            inner.watch(a)
            y = float16_matmul(a, b, scaled=scaled)
        total = tf.reduce_sum(v * inner.gradient(y, a, u))
    return outer.gradient(total, [b, u])


@PLAIN_AND_SCALED
def test_second_order(route, scaled):
    """g is u b^T, so that b has the gradient v^T u, and u has v b."""
    a, b, u, v = (draw(i, *s) for i, s in enumerate([(3, 4), (4, 5), (3, 5), (3, 4)]))
    run = route(lambda *x: second_order(*x, scaled), autograph=False)
    of_b, of_u = run(*map(tf.constant, (a, b, u, v)))
    (b, b_error), (u, u_error), (v, v_error) = (
        (nearly if scaled else exactly)(x) for x in (b, u, v)
    )
    for found, x, y, x_error, y_error in (
        (of_b, v.T, u, v_error.T, u_error),
        (of_u, v, b, v_error, b_error),
    ):
        bound = bounds_of(x, y, x_error, y_error)
        oracle.assert_rounded(found, x @ y, bound, "float32")


def test_second_order_is_scaled_too(route):
    data = [tf.fill((1, 1), x) for x in (1.0, 1.0, 2.0**-40, 2.0**-40)]
    run = route(lambda *x: second_order(*x, scaled=True), autograph=False)
    of_b, of_u = run(*data)
    assert (of_b.numpy().item(), of_u.numpy().item()) == (2.0**-80, 2.0**-40)


@PLAIN_AND_SCALED
def test_a_vectorized_map_is_that_of_each_element(scaled):
    a, b = tf.constant(draw(1, 3, 2, 7)), tf.constant(draw(2, 7, 5))
    mapped = tf.vectorized_map(lambda x: float16_matmul(x, b, scaled=scaled), a)
    expected = tf.stack([float16_matmul(x, b, scaled=scaled) for x in a])
    np.testing.assert_array_equal(mapped, expected)


def read_for(tensor):
    """The tensors that a tensor of a graph is computed from, as far as they are read.

    An output of IdentityN is its input at the same place: TensorFlow removes the others
    before it runs a graph.
    """
    if tensor.op.type == "IdentityN":
        return [tensor.op.inputs[tensor.value_index]]
    return list(tensor.op.inputs)


def test_a_graph_keeps_factors_in_fp16_for_the_backward_pass():
    @tf.function(autograph=False)
    def step(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = float16_matmul(tf.sin(x), w)
        upstream.append(tf.ones_like(y))
        return tape.gradient(y, w, upstream[0])

    upstream = []
    spec = tf.TensorSpec((4, 4), tf.float32)
    graph = step.get_concrete_function(spec, spec).graph
    operations = graph.get_operations()
    forward = operations[: operations.index(upstream[0].op)]
    kept, waiting = set(), list(graph.outputs)
    while waiting:
        for x in read_for(waiting.pop()):
            (kept.add(x.ref()) if x.op in forward else waiting.append(x))
    assert {x.deref().dtype.name for x in kept if x.deref().shape.rank} == {"float16"}
