"""The native ops where XLA compiles, beside their kernels; and their gradients."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_mp.ops.kernels import native

INFINITY, NAN = float("inf"), float("nan")
KINDS = ("layer", "root_mean_square", "unit_length")
SIZES = ((0, 7), (7, 0), (17, 217))
# Ops that call their kernels under XLA on a CPU, and have a formula there, too.
CALLED = {"row_norm", "row_norm_gradient", "sum", "fp16_gemm_gelu_gradient"}
SPECIAL = [
    [INFINITY, 1, 2],
    [-INFINITY, 1, 2],
    [NAN, 1, 2],
    [-INFINITY, -INFINITY, -INFINITY],
    [INFINITY, NAN, -INFINITY],
    [0, 0, 0],
    [1e-4, -1e-4, 0],
]


def draw(*shape, dtype="float32"):
    rng = np.random.default_rng(len(shape) + sum(shape))
    return tf.cast(rng.normal(0.5, 1, shape).astype("float32"), dtype)


def row_cases(dtype):
    """Name: op, its tensors, its attributes."""
    for shape in SIZES:
        x, slope = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)[::-1]
        yield f"softmax {shape}", "softmax", {"x": x}, {}
        tensors = {"x": x, "grad_y": slope}
        yield f"softmax slope {shape}", "softmax_gradient", tensors, {}
        wide = {"x": draw(*shape)}
        yield f"float softmax {shape}", "float_softmax", wide, {"T": dtype}
        tensors = {"y": tf.nn.softmax(x), "grad_y": slope}
        yield f"float softmax slope {shape}", "float_softmax_gradient", tensors, {}
    special = tf.constant(np.float32(SPECIAL), dtype)
    ones = tf.ones_like(special)
    yield "softmax special", "softmax", {"x": special}, {}
    tensors = {"x": special, "grad_y": ones}
    yield "softmax slope special", "softmax_gradient", tensors, {}
    wide = {"x": tf.constant(SPECIAL)}
    yield "float softmax special", "float_softmax", wide, {"T": dtype}
    for kind, given in itertools.product(KINDS, [(0, 0), (1, 0), (1, 1)]):
        attributes = {"kind": kind, "epsilon": 1e-3}
        for shape in SIZES:
            x, slope = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)[::-1]
            gamma, beta = ([draw(shape[1])] * count for count in given)
            name = f"{kind} {given} {shape}"
            tensors = {"x": x, "gamma": gamma, "beta": beta}
            yield name, "row_norm", tensors, attributes
            tensors = {"x": x, "grad_y": slope, "gamma": gamma}
            numbers = attributes | {"num_beta": given[1]}
            yield f"{name} slope", "row_norm_gradient", tensors, numbers
    for kind in KINDS:
        attributes = {"kind": kind, "epsilon": 1e-3}
        tensors = {"x": special, "gamma": [], "beta": []}
        yield f"{kind} special", "row_norm", tensors, attributes


def channel_cases(dtype):
    shapes = [(4, 3, 5), (9, 3, 1), (0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 1, 1)]
    # Rows that are summed in quarters, and three that are left over.
    for shape in [*shapes, (19, 3, 1), (2, 19, 3)]:
        x, slope = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)[::-1]
        gamma, beta = draw(shape[1]), draw(shape[1])
        mean, variance = draw(shape[1]), 1.0 + gamma * gamma
        epsilon = {"epsilon": 1e-3}
        parameters = {"gamma": gamma, "beta": beta}
        given = {"mean": mean, "variance": variance}
        yield f"batch {shape}", "batch_norm", {"x": x} | parameters, epsilon
        tensors = {"x": x} | parameters | given
        yield f"batch given {shape}", "batch_norm_inference", tensors, epsilon
        tensors = {"x": x, "grad_y": slope, "gamma": gamma} | given
        for inference in (True, False):
            if not (inference or x.shape.num_elements()):
                # Mean and variance are then NaN.
                tensors = tensors | {name: p * NAN for name, p in given.items()}
            options = epsilon | {"inference": inference}
            name = f"batch slope {shape} {inference}"
            yield name, "batch_norm_gradient", tensors, options
        yield f"sum {shape}", "sum", {"x": x}, {}


def gemm_cases(dtype):
    """Gradients of gelu; those of a bias are sums over all rows of all matrices."""
    of_a, of_b = ([5, 17], [3, 5, 17], [2, 3, 5, 17]), ([17, 7], [3, 17, 7])
    for shape, of_weight, transpose in itertools.product(of_a, of_b, [False, True]):
        a, b = draw(*shape, dtype=dtype), draw(*of_weight, dtype=dtype) / 4
        batch = max(shape[:-2], of_weight[:-2], key=len)
        upstream = draw(*batch, 5, 7, dtype=dtype)
        tensors = {"a": a, "b": b, "alpha": tf.constant(0.5), "upstream": upstream}
        biases = {"bias": [draw(7)]}
        if transpose:
            tensors |= {"b": tf.cast(tf.linalg.matrix_transpose(b), tf.float32)}
            tensors |= {"upstream": tf.cast(upstream, tf.float32)}
            biases = {"bias": []}
        name = f"gelu slope {shape} {of_weight} {transpose}"
        options = {"transpose_b": transpose}
        yield name, "fp16_gemm_gelu_gradient", tensors | biases, options


def pool_cases(dtype):
    windows = {(1, 2, 2): (1, 2, 2), (2, 3, 1): (1, 1, 1), (3, 1, 2): (2, 3, 1)}
    windows |= {(4, 4, 4): (1, 2, 5), (1, 1, 2): (4, 1, 3), (1, 4, 4): (1, 4, 4)}
    shapes = [(2, 4, 5, 6, 3), (0, 4, 5, 6, 3), (2, 3, 2, 1, 1)]
    for (window, stride), padding, shape in itertools.product(
        windows.items(), ["valid", "same"], shapes
    ):
        attributes = {"window": window, "strides": stride, "padding": padding}
        if padding == "valid" and any(np.greater(window, shape[1:4])):
            continue  # refused where the shape is known
        name = f"{window} {stride} {padding} {shape}"
        x = draw(*shape, dtype=dtype)
        yield f"pool {name}", "average_pool", {"x": x}, attributes
        y = native.load().keras_mp_average_pool(x=x, **attributes)
        tensors = {"shape": list(shape), "grad_y": draw(*y.shape, dtype=dtype)}
        yield f"pool slope {name}", "average_pool_gradient", tensors, attributes


def conv_cases(dtype):
    # The kernel's size, the stride and the dilation of rows, then of columns.
    spacings = [((3, 1, 1), (3, 1, 1)), ((2, 3, 1), (3, 1, 2)), ((5, 2, 1), (1, 2, 3))]
    shapes = [(2, 7, 9, 20), (2, 6, 5, 3), (0, 6, 5, 3), (2, 5, 5, 0)]
    for spacing, padding, shape in itertools.product(
        spacings, ["valid", "same"], shapes
    ):
        size, strides, dilations = zip(*spacing, strict=True)
        name = f"{spacing} {padding} {shape}"
        attributes = {"strides": strides, "dilations": dilations, "padding": padding}
        x, bias = draw(*shape, dtype=dtype), draw(shape[-1])
        kernel = draw(*size, shape[-1], 1)
        for of_kernel, biases, result in [
            (kernel, [bias], dtype),
            (tf.cast(kernel, dtype), [tf.cast(bias, dtype)], dtype),
            (kernel, [], "float32"),
        ]:
            tensors = {"x": x, "kernel": of_kernel, "bias": biases}
            options = attributes | {"Tout": result}
            yield f"conv {name} {result}", "depthwise_conv", tensors, options
        y = native.load().keras_mp_depthwise_conv(
            x=x, kernel=kernel, bias=[], Tout=dtype, **attributes
        )
        grad_y = draw(*y.shape, dtype=dtype)
        tensors = {"x": x, "kernel": kernel, "grad_y": grad_y}
        yield f"conv grad_x {name}", "depthwise_conv_grad_x", tensors, attributes
        tensors = {"x": x, "grad_y": grad_y}
        options = attributes | {"kernel_size": size}
        yield f"conv grad_kernel {name}", "depthwise_conv_grad_kernel", tensors, options


def run(op, tensors, attributes):
    results = getattr(native.load(), f"keras_mp_{op}")(**tensors, **attributes)
    return tf.nest.flatten(results if tf.is_tensor(results) else list(results))


def assert_close(actual, wanted, name):
    assert actual.dtype == wanted.dtype, name
    assert actual.shape == wanted.shape, name
    # Both round once. The sums before are in FP32, of at most 217 terms and with
    # operations of a few 2**-22, relative to terms that are not above the largest
    # result by more than the 16 of rsqrt(epsilon) squared: two times 2**-9 at most
    # beside a rounding to bfloat16, and for FP32 results 217 * 2**-22.
    unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(actual.dtype.name, 2.0**-14)
    wanted = np.float64(tf.cast(wanted, tf.float64))
    finite = np.abs(wanted[np.isfinite(wanted)])
    size = max(1.0, finite.max(initial=0.0))
    np.testing.assert_allclose(
        np.float64(tf.cast(actual, tf.float64)),
        wanted,
        rtol=0,
        atol=2 * unit * size,
        err_msg=name,
    )


@pytest.mark.slow
@pytest.mark.xslow_except("*-float16", "row_cases-bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "cases",
    [row_cases, channel_cases, gemm_cases, pool_cases, conv_cases],
    ids=lambda cases: cases.__name__,
)
def test_xla_computes_what_the_kernels_do(cases, dtype):
    cases = list(cases(dtype))

    # One function for all, which XLA compiles faster than many.
    @tf.function(jit_compile=True, autograph=False)
    def compiled(tensors):
        return [
            run(op, of_op | constants_of(others), attributes)
            for of_op, (_, op, others, attributes) in zip(tensors, cases, strict=True)
        ]

    found = compiled([variables_of(tensors) for _, _, tensors, _ in cases])
    for results, (name, op, tensors, attributes) in zip(found, cases, strict=True):
        expected = run(op, tensors, attributes)
        for actual, wanted in zip(results, expected, strict=True):
            assert_close(actual, wanted, name)


@pytest.mark.slow
@pytest.mark.xslow_except("float16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_xla_compiles_the_formula_of_a_size_at_run_time(dtype):
    """As it does on a GPU, where the size is known as well."""
    cases = [
        case
        for case in called_cases(dtype)
        if first_tensor(case).shape.num_elements() and has_common_rows(case)
    ]
    assert {op for _, op, _, _ in cases} == CALLED

    @tf.function(jit_compile=True, autograph=False)
    def compiled(tensors, keep):
        def masked(name, x, keep):
            return tf.boolean_mask(x, keep) if name in WITH_ROWS else x

        return [
            run(
                op,
                {name: masked(name, x, kept) for name, x in of_op.items()},
                attributes,
            )
            for of_op, kept, (_, op, _, attributes) in zip(
                tensors, keep, cases, strict=True
            )
        ]

    tensors = [of_op for _, _, of_op, _ in cases]
    keep = [tf.ones(first_tensor(case).shape[0], tf.bool) for case in cases]
    text = compiled.experimental_get_compiler_ir(tensors, keep)("hlo")
    assert not any(f"keras_mp.{op}" in text for op in CALLED)
    found = compiled(tensors, keep)
    for results, (name, op, of_op, attributes) in zip(found, cases, strict=True):
        for actual, wanted in zip(results, run(op, of_op, attributes), strict=True):
            assert_close(actual, wanted, name)


@pytest.mark.parametrize("op", sorted(CALLED))
def test_xla_calls_the_kernel_where_all_sizes_are_known(op):
    cases = called_cases("float16")
    _, _, tensors, attributes = next(case for case in cases if case[1] == op)
    compiled = tf.function(
        lambda of_op: run(op, of_op, attributes), jit_compile=True, autograph=False
    )
    text = compiled.experimental_get_compiler_ir(tensors)("hlo")
    assert f"keras_mp.{op}" in text


# The arguments that have rows, of which XLA may find the number when it runs.
WITH_ROWS = ("x", "grad_y", "a", "upstream")


def called_cases(dtype):
    """The cases of ops that XLA calls on a CPU."""
    for case in (*row_cases(dtype), *channel_cases(dtype), *gemm_cases(dtype)):
        if case[1] in CALLED:
            yield case


def first_tensor(case):
    _, _, tensors, _ = case
    return next(iter(tensors.values()))


def has_common_rows(case):
    """Whether all arguments with rows have the same number of them."""
    _, _, tensors, _ = case
    return len({x.shape[0] for name, x in tensors.items() if name in WITH_ROWS}) == 1


def constants_of(tensors):
    return {name: x for name, x in tensors.items() if name == "shape"}


def variables_of(tensors):
    return {name: x for name, x in tensors.items() if name != "shape"}


# Each op that has a gradient, on few numbers: its tensors and attributes.
WINDOWS = {"window": (1, 2, 2), "strides": (1, 1, 2), "padding": "same"}
SPACING = {"strides": (1, 2), "dilations": (1, 1), "padding": "same"}
ROWS, CHANNELS, IMAGES = (3, 4), (2, 3, 2), (1, 1, 3, 3, 2)
EACH_CHANNEL = dict.fromkeys(("gamma", "mean", "variance"), (3,))
OPS = {
    "softmax": ({"x": ROWS}, {}),
    "softmax_gradient": ({"x": ROWS, "grad_y": ROWS}, {}),
    "float_softmax": ({"x": ROWS}, {"T": "float16"}),
    "float_softmax_gradient": ({"y": ROWS, "grad_y": ROWS}, {}),
    "row_norm": (
        {"x": ROWS, "gamma": [(4,)], "beta": [(4,)]},
        {"kind": "layer", "epsilon": 1e-3},
    ),
    "row_norm_gradient": (
        {"x": ROWS, "grad_y": ROWS, "gamma": [(4,)]},
        {"kind": "layer", "epsilon": 1e-3, "num_beta": 1},
    ),
    "batch_norm": ({"x": CHANNELS, "gamma": (3,), "beta": (3,)}, {"epsilon": 1e-3}),
    "batch_norm_inference": (
        {"x": CHANNELS, "beta": (3,), **EACH_CHANNEL},
        {"epsilon": 1e-3},
    ),
    "batch_norm_gradient": (
        {"x": CHANNELS, "grad_y": CHANNELS, **EACH_CHANNEL},
        {"epsilon": 1e-3, "inference": False},
    ),
    "sum": ({"x": CHANNELS}, {}),
    "fp16_gemm_gelu_gradient": (
        {"a": (2, 3), "b": (3, 2), "bias": [(2,)], "upstream": (2, 2)},
        {"alpha": 1.0},  # which gets no gradient
    ),
    "average_pool": ({"x": IMAGES}, WINDOWS),
    "average_pool_gradient": ({"grad_y": (1, 1, 3, 2, 2)}, WINDOWS),
    "depthwise_conv": (
        {"x": IMAGES[1:], "kernel": (2, 2, 2, 1), "bias": [(2,)]},
        SPACING | {"Tout": "float16"},
    ),
    "depthwise_conv_grad_x": (
        {"kernel": (2, 2, 2, 1), "grad_y": (1, 3, 2, 2)},
        SPACING | {"x": tf.zeros(IMAGES[1:], "float16")},
    ),
    "depthwise_conv_grad_kernel": (
        {"x": IMAGES[1:], "grad_y": (1, 3, 2, 2)},
        SPACING | {"kernel_size": (2, 2)},
    ),
}


def is_shape(value):
    return isinstance(value, tuple)


@pytest.mark.parametrize("size", [2**31, 2**62])
def test_a_kernel_whose_reach_overflows_is_refused(size):
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 to 2\\^31 - 1"):
        native.load().keras_mp_depthwise_conv(
            x=tf.zeros((1, 4, 4, 0), "float16"),
            kernel=tf.zeros((size, 1, 0, 1)),
            bias=[],
            strides=(1, 1),
            dilations=(2**31 - 1, 1),
            padding="valid",
            Tout="float16",
        )


@pytest.mark.slow_except("*-eager", "row_norm*-graph", "softmax*-graph")
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("op", OPS)
def test_the_bare_op_has_its_gradient(op, graph):
    """For SavedModels and second tapes, which see the op and not its function."""
    shapes, attributes = OPS[op]
    rng = np.random.default_rng(0)

    def draw_one(path, shape):
        halves = ("y", "grad_y") if op == "float_softmax" else (*WITH_ROWS, "y")
        dtype = "float16" if path[0] in halves else "float32"
        return tf.constant(rng.uniform(0.5, 1.5, shape), dtype)

    tensors = {
        name: [draw_one([name], s) for s in value]
        if isinstance(value, list)
        else draw_one([name], value)
        for name, value in shapes.items()
    }
    if op == "average_pool_gradient":
        attributes = attributes | {"shape": IMAGES}
    flat = tf.nest.flatten(tensors)

    def weighted(flat):
        """One number, of all results."""
        results = run(op, tf.nest.pack_sequence_as(tensors, flat), attributes)
        total = 0.0
        for y in results:
            weights = tf.reshape(tf.cast(tf.range(tf.size(y)) % 5, tf.float32), y.shape)
            total += tf.reduce_sum(weights * tf.cast(y, tf.float32))
        return total

    def slopes(flat):
        with tf.GradientTape() as tape:
            tape.watch(flat)
            z = weighted(flat)
        return tape.gradient(z, flat)

    found = (tf.function(slopes) if graph else slopes)(flat)
    # Of steps of 2**-4 either way: FP16 results of at most 4 err by 2**-10, 24 of them
    # at weights of at most 4, over 2**-3: 0.75; and the third derivative, times 2**-8.
    step = 2.0**-4
    for i, (x, slope) in enumerate(zip(flat, found, strict=True)):
        assert slope.dtype == x.dtype
        for at in np.ndindex(*x.shape):
            ends = []
            for sign in (1, -1):
                moved = x.numpy()
                moved[at] += sign * step
                ends.append(weighted([*flat[:i], tf.constant(moved), *flat[i + 1 :]]))
            # FP16 rounds x + step as well, by at most 2**-11 of 2.
            expected = (ends[0] - ends[1]) / (2 * step)
            scale = max(1.0, max(float(np.max(np.abs(s))) for s in found))
            assert abs(float(slope[at]) - float(expected)) < 0.1 * scale, (op, i, at)
