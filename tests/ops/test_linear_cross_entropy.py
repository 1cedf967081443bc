"""linear_cross_entropy: values and gradients beside float64, on every route."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import tensorflow as tf
from cross_entropy_oracle import assert_within, expected, problem

from keras_mp.ops import linear_cross_entropy

DTYPES = ("float16", "bfloat16", "float32")
HALVES = DTYPES[:2]
# Name: rows, size, words, other arguments.
CASES = {
    "plain": (17, 7, 111, {"bias": False}),
    "tied": (9, 16, 64, {"transpose": True, "soft_cap": 2.0}),
    "smooth": (7, 17, 217, {"label_smoothing": 0.1}),
    "capped": (3, 5, 30, {"soft_cap": 1.5, "label_smoothing": 0.25}),
    "soft": (5, 4, 17, {"soft": True}),
    "soft-tied": (5, 4, 17, {"soft": True, "transpose": True, "soft_cap": 3.0}),
    "one-word": (4, 3, 1, {}),
    "one-row": (1, 64, 989, {}),
    "one-number": (1, 1, 2, {"transpose": True, "bias": False}),
}
# More than one block of 2,048 words, with and without a rest.
LARGE = {
    "blocks": (6, 7, 4096, {}),
    "rest": (6, 7, 2049, {"transpose": True, "soft_cap": 3.0}),
    "soft": (6, 7, 4099, {"soft": True, "label_smoothing": 0.1}),
}


def value_and_gradients(run, given):
    """The loss, and its gradients for inputs, kernel and bias."""
    bias = [] if given.bias is None else [tf.constant(given.bias, "float32")]

    @run
    def compute(inputs, kernel, labels, upstream, *bias):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel, *bias])
            loss = linear_cross_entropy(inputs, kernel, labels, *bias, **given.options)
        return [loss, *tape.gradient(loss, [inputs, kernel, *bias], upstream)]

    soft = given.labels.ndim == 2
    found = compute(
        tf.cast(given.inputs, given.dtype),
        tf.cast(given.kernel, given.dtype),
        tf.cast(given.labels, "float32" if soft else "int32"),
        tf.cast(given.upstream, "float32"),
        *bias,
    )
    dtypes = [tf.float32, given.dtype, given.dtype, *[tf.float32] * len(bias)]
    assert [x.dtype for x in found] == dtypes
    return found


@pytest.mark.xslow_except(
    "*-float16", "*-bfloat16", "native-float32", "reference-float32"
)
@pytest.mark.slow_except("*-float16")
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(route, dtype):
    for name in ("plain", "tied", "soft"):
        rows, size, words, options = CASES[name]
        given = problem(rows, size, words, dtype, **options)
        assert_within(value_and_gradients(route, given), expected(given), name)


@pytest.mark.slow_except("native-*", "reference-*-float16")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_cases(library, name, dtype):
    rows, size, words, options = CASES[name]
    for seed in range(3):
        given = problem(rows, size, words, dtype, seed, **options)
        assert_within(value_and_gradients(lambda f: f, given), expected(given), name)


@pytest.mark.slow_except("*-rest-*")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", LARGE)
def test_several_blocks(route, name, dtype):
    rows, size, words, options = LARGE[name]
    given = problem(rows, size, words, dtype, **options)
    assert_within(value_and_gradients(route, given), expected(given), name)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_which_dtypes_have_a_kernel(ops_mode, dtype):
    ops_mode("native")

    @tf.function
    def compute():
        return linear_cross_entropy(
            tf.ones((2, 3), dtype), tf.ones((3, 4), dtype), [0, 1]
        )

    operations = compute.get_concrete_function().graph.get_operations()
    has_kernel = "KerasMp>LogitStatistics" in {one.type for one in operations}
    assert has_kernel == (dtype in DTYPES)


def random_problem(draw):
    rows, size = (int(draw.choice([1, 2, 7, 16, 17, 33])) for _ in range(2))
    words = int(draw.choice([1, 2, 7, 16, 17, 64, 111, 217]))
    return problem(
        rows,
        size,
        words,
        str(draw.choice(DTYPES)),
        int(draw.integers(1 << 30)),
        bias=bool(draw.integers(2)),
        soft=not draw.integers(4),
        transpose=bool(draw.integers(2)),
        soft_cap=float(draw.choice([0.5, 3, 30])) if draw.integers(2) else None,
        label_smoothing=float(draw.choice([0.0, 0.1, 0.9])),
    )


def check_random_problems(count):
    draw = np.random.default_rng(1)
    for i in range(count):
        given = random_problem(draw)
        found = value_and_gradients(lambda f: f, given)
        assert_within(found, expected(given), (i, given.inputs.shape, given.options))


@pytest.mark.slow_except("native")
def test_random_problems(library):
    check_random_problems(60)


@pytest.mark.xslow
def test_many_random_problems(library):
    check_random_problems(5000)


def test_an_fp32_kernel_is_rounded_and_its_gradient_is_not(route):
    """1/3 of a 16-bit kernel's gradient would be rounded."""
    for dtype in HALVES:
        inputs = tf.ones((1, 1), dtype)
        kernel = tf.constant([[2.0**-20 + 1, 1.0, 1.0]])

        @route
        def slope(inputs, kernel):
            with tf.GradientTape() as tape:
                tape.watch(kernel)
                loss = linear_cross_entropy(inputs, kernel, [0])
            return loss, tape.gradient(loss, kernel)

        loss, found = slope(inputs, kernel)
        assert found.dtype == tf.float32
        np.testing.assert_allclose(loss, [np.log(3)], rtol=2.0**-20)
        unit = 2.0**-11 if dtype == "float16" else 2.0**-8
        np.testing.assert_allclose(found, [[-2 / 3, 1 / 3, 1 / 3]], rtol=unit)


def test_logits_beyond_65504(route):
    """160,000 and 80,000: in FP16 both would be inf, and the loss NaN."""
    inputs = tf.constant([[400, 0]], "float16")
    kernel = tf.constant([[400, 200], [0, 0]], "float16")
    compute = route(lambda x, w: linear_cross_entropy(x, w, [1]))
    assert compute(inputs, kernel).numpy().tolist() == [80000.0]


@pytest.mark.slow_except("native-*", "xla-8.67*")
@pytest.mark.parametrize("upstream", [2.0**-24, 2.0**-60, 2.0**15])
def test_probabilities_do_not_round_to_zero(route, upstream):
    """1/1000 of 2^-24 is 0 in FP16; a sum of inputs of 2^15 is beyond it."""
    inputs, kernel = tf.ones((1, 1), "float16"), tf.zeros((1, 1000))

    @route
    def slope(inputs, kernel, upstream):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = linear_cross_entropy(inputs, kernel, [0])
        return tape.gradient(loss, kernel, upstream)

    found = slope(inputs, kernel, tf.constant([upstream])).numpy()
    np.testing.assert_allclose(found[0, 1:], upstream / 1000, rtol=2.0**-10)
    np.testing.assert_allclose(found[0, 0], -0.999 * upstream, rtol=2.0**-10)


def test_the_gradient_of_the_kernel_is_a_sum_in_fp32(route):
    """4,096 rows whose slopes are -1/2: an FP16 sum would stop at 1,024."""
    inputs, kernel = tf.ones((4096, 1), "float16"), tf.zeros((1, 2))

    @route
    def slope(inputs, kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = linear_cross_entropy(inputs, kernel, tf.zeros(4096, "int32"))
        return tape.gradient(loss, kernel)

    np.testing.assert_array_equal(slope(inputs, kernel), [[-2048, 2048]])


def test_statistics(route):
    """Of equal logits the first is the argmax; a second block does not win by a tie."""
    kernel = np.zeros((1, 4100), "float32")
    kernel[0, [3, 7, 4099]] = 2
    compute = route(
        lambda x, w: linear_cross_entropy(x, w, [[3, 1]], return_statistics=True)
    )
    loss, argmax, logsumexp = compute(tf.ones((1, 2, 1), "bfloat16"), kernel)
    total = np.log(4097 + 3 * np.exp(2))
    np.testing.assert_allclose(logsumexp, [[total, total]], rtol=2.0**-20)
    np.testing.assert_allclose(loss, [[total - 2, total]], rtol=2.0**-20)
    assert argmax.numpy().tolist() == [[3, 3]]
    assert (loss.dtype, argmax.dtype) == (tf.float32, tf.int32)
    inputs = tf.constant([[[1], [-1]]], "bfloat16")
    assert compute(inputs, kernel).argmax.numpy().tolist() == [[3, 0]]


def test_the_logsumexp_has_a_gradient(route):
    """The slopes of log(e^0 + e^0) are 1/2."""

    @route
    def slope(inputs, kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            found = linear_cross_entropy(inputs, kernel, [0], return_statistics=True)
        return tape.gradient(found.logsumexp, kernel)

    found = slope(tf.ones((1, 1), "float16"), tf.zeros((1, 2)))
    np.testing.assert_array_equal(found, [[0.5, 0.5]])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_ignored_rows(route, dtype):
    """Neither a loss nor a gradient, even of a label that is no word."""

    @route
    def slope(inputs, kernel, labels):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            loss = linear_cross_entropy(inputs, kernel, labels, ignore_class=-1)
        return [loss, *tape.gradient(loss, [inputs, kernel])]

    inputs, kernel = tf.ones((2, 1), dtype), tf.constant([[0.0, 0.0]])
    loss, of_inputs, of_kernel = slope(inputs, kernel, tf.constant([-1, 0]))
    np.testing.assert_allclose(loss, [0, np.log(2)], rtol=2.0**-20)
    np.testing.assert_array_equal(of_inputs, [[0], [0]])
    np.testing.assert_array_equal(of_kernel, [[-0.5, 0.5]])
    for x in slope(inputs, kernel, tf.constant([-1, -1])):
        np.testing.assert_array_equal(x, np.zeros(x.shape))


@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1])
def test_a_label_that_is_no_word_gives_nan(route, label):
    """In its row alone; what all rows share, the gradient of the kernel, is NaN."""

    @route
    def slope(inputs, kernel, labels):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            loss = linear_cross_entropy(inputs, kernel, labels)
        return [loss, *tape.gradient(loss, [inputs, kernel])]

    inputs, kernel = tf.ones((2, 1), "float16"), tf.zeros((1, 3))
    loss, of_inputs, of_kernel = slope(inputs, kernel, tf.constant([label, 0]))
    assert np.isnan(loss).tolist() == [True, False]
    assert np.isnan(of_inputs).ravel().tolist() == [True, False]
    assert np.isnan(of_kernel).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_that_are_not_finite(route, dtype):
    """-inf is a probability of 0; with inf or NaN, or -inf alone, there is no loss."""
    bias = tf.constant([0.0, -np.inf, 0.0])
    inputs = tf.constant([[0], [0], [np.inf], [-np.inf], [np.nan]], dtype)

    @route
    def compute(inputs, labels, bias):
        kernel = tf.ones((1, 3), dtype)
        return linear_cross_entropy(inputs, kernel, labels, bias)

    loss = compute(inputs, tf.constant([0, 1, 0, 0, 0]), bias).numpy()
    np.testing.assert_allclose(loss[:2], [np.log(2), np.inf], rtol=2.0**-20)
    assert np.isnan(loss[2:]).all()


@pytest.mark.slow_except("*-float16", "reference-*")
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows(route, dtype):
    @route
    def slope(inputs, kernel, bias):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel, bias])
            labels = tf.zeros([0, 2], "int32")
            loss = linear_cross_entropy(inputs, kernel, labels, bias)
        return [loss, *tape.gradient(loss, [inputs, kernel, bias])]

    given = tf.ones((0, 2, 3), dtype), tf.ones((3, 5)), tf.ones(5)
    loss, *grads = slope(*given)
    assert loss.shape == (0, 2)
    for x, grad in zip(given, grads, strict=True):
        np.testing.assert_array_equal(grad, np.zeros(x.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_numbers_in_a_row(library, dtype):
    """Of empty sums: equal probabilities."""
    loss = linear_cross_entropy(tf.zeros((1, 0), dtype), tf.zeros((0, 3)), [1])
    np.testing.assert_allclose(loss, [np.log(3)], rtol=2.0**-20)


@pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_float64_is_float64(library, run):
    given = problem(5, 7, 17, "float32")
    found = run(linear_cross_entropy)(given.inputs, given.kernel, given.labels)
    z = given.inputs @ given.kernel
    wanted = np.log(np.exp(z).sum(1)) - z[range(5), given.labels]
    assert found.dtype == tf.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_a_second_derivative(library):
    """Of FP32 beside float64."""
    given = problem(4, 3, 5, "float32")
    found = []
    for dtype in ("float32", "float64"):
        tensors = [tf.cast(x, dtype) for x in (given.inputs, given.kernel, given.bias)]
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                loss = linear_cross_entropy(
                    tensors[0], tensors[1], given.labels, tensors[2], soft_cap=3.0
                )
            slopes = inner.gradient(loss, tensors)
            penalty = sum(tf.reduce_sum(slope**2) for slope in slopes)
        found.append([x.numpy() for x in outer.gradient(penalty, tensors)])
    for one, other in zip(*found, strict=True):
        # A few dozen FP32 roundings of numbers that are as large as the largest.
        oracle.assert_close(one, other.astype("float32"), 64)


def test_sizes_that_are_not_known(route):
    spec = tf.TensorSpec([None, None, 4], "float16")
    labels = tf.TensorSpec([None, None], "int64")
    kernel = tf.random.stateless_normal((4, 5), (1, 2))
    run = route(lambda x, y: linear_cross_entropy(x, kernel, y))
    if isinstance(run, type(tf.function(lambda: 0))):
        run = tf.function(run.python_function, input_signature=[spec, labels])
    for shape in ((1, 3), (2, 5)):
        x = tf.ones((*shape, 4), "float16")
        loss = run(x, tf.ones(shape, "int64"))
        assert loss.shape == shape
        assert len(np.unique(np.round(loss, 5))) == 1


def test_no_tensor_has_a_number_for_each_logit(library):
    """33 rows, 4,100 words: forward and backward, in loops and outside."""

    @tf.function
    def slopes(inputs, kernel, labels):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            loss = linear_cross_entropy(inputs, kernel, labels)
        return tape.gradient(loss, [inputs, kernel])

    specs = [tf.TensorSpec([33, 7], "float16"), tf.TensorSpec([7, 4100], "float32")]
    concrete = slopes.get_concrete_function(*specs, tf.TensorSpec([33], "int32"))
    definition = concrete.graph.as_graph_def(add_shapes=True)
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    shapes = [
        [size.size for size in shape.dim]
        for node in nodes
        for shape in node.attr["_output_shapes"].list.shape
    ]
    assert any(33 in shape for shape in shapes)
    assert not any({33, 4100} <= set(shape) for shape in shapes)


# 2,048 rows of 65,536 words: their logits would be 512 MiB in FP32.
MEMORY = """
import re, sys
import numpy as np, tensorflow as tf
from keras_mp.ops import linear_cross_entropy

@tf.function(jit_compile=sys.argv[1] == "xla")
def slopes(inputs, kernel, labels):
    with tf.GradientTape() as tape:
        tape.watch([inputs, kernel])
        loss = linear_cross_entropy(inputs, kernel, labels)
    return tape.gradient(loss, [inputs, kernel])

def run(rows, words):
    labels = tf.zeros([rows], "int32")
    dtype = sys.argv[2]
    slopes(tf.ones((rows, 8), dtype), tf.ones((8, words), dtype), labels)
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

before = run(64, 64)
print((run(2048, 65536) - before) // 1024)
"""


@pytest.mark.xslow_except("xla-*")
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_memory_is_that_of_a_block(mode, dtype):
    """Its 4 MiB of logits and 2 of slopes, gradients, and workspaces of threads."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, mode, dtype],
        env=os.environ | {"KERAS_MP_OPS": "native"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48


def ones(*shape, dtype="float16"):
    return np.ones(shape, dtype)


# Name: inputs, kernel, labels, other arguments, what the message says.
REFUSED = {
    "scalar": (np.float16(1), ones(3, 4), 0, {}, "`inputs` must be"),
    "kernel": (ones(2, 3), ones(3), [0, 1], {}, "`kernel` a matrix"),
    "size": (ones(2, 3), ones(4, 3), [0, 1], {}, r"size is the last.*kernel.shape=\(4"),
    "transposed": (ones(2, 3), ones(3, 4), [0, 1], {"transpose": True}, "`transpose`"),
    "no-words": (ones(2, 3), ones(3, 0), [0, 1], {}, "at least 1"),
    "integers": (np.ones((2, 3), int), ones(3, 4), [0, 1], {}, "`inputs` must be of a"),
    "kernel-dtype": (ones(2, 3), ones(3, 4, dtype="f8"), [0, 1], {}, "`kernel` must"),
    "other-half": (
        ones(2, 3),
        tf.ones((3, 4), "bfloat16"),
        [0, 1],
        {},
        "`kernel` must have the dtype",
    ),
    "rows": (ones(2, 3), ones(3, 4), [0, 1, 2], {}, "`labels` must be"),
    "rank": (ones(2, 3), ones(3, 4), [[0], [1]], {}, "`labels` must be"),
    "probabilities": (ones(2, 3), ones(3, 4), ones(2, 3), {}, "`labels` must be"),
    "bools": (ones(2, 3), ones(3, 4), [True, False], {}, "`labels` must be integers"),
    "bias": (ones(2, 3), ones(3, 4), [0, 1], {"bias": ones(3)}, "`bias` must have"),
    "int-bias": (ones(2, 3), ones(3, 4), [0, 1], {"bias": [0] * 4}, "`bias` must be"),
    "cap": (ones(2, 3), ones(3, 4), [0, 1], {"soft_cap": 0}, "`soft_cap` must be"),
    "nan-cap": (ones(2, 3), ones(3, 4), [0, 1], {"soft_cap": np.nan}, "`soft_cap`"),
    "smoothing": (
        ones(2, 3),
        ones(3, 4),
        [0, 1],
        {"label_smoothing": 1},
        "`label_smoothing` must be",
    ),
    "ignored": (
        ones(2, 3),
        ones(3, 4),
        [0, 1],
        {"ignore_class": 0.5},
        "`ignore_class`",
    ),
    "ignored-soft": (
        ones(2, 3),
        ones(3, 4),
        ones(2, 4),
        {"ignore_class": 0},
        "sample weight of 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(library, name):
    inputs, kernel, labels, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        linear_cross_entropy(inputs, kernel, labels, **options)
