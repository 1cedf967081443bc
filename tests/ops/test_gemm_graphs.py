"""fp16_gemm inside tf.function, XLA, loops, SavedModels and tf.distribute."""

import subprocess
import sys

import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp.ops import fp16_gemm

HALF = "float16"

# The shapes of a and b, and what is known of the result before it is computed.
PARTLY_KNOWN = {
    "known": ([2, 3], [3, 5], [2, 5]),
    "rows": ([None, 3], [3, 5], [None, 5]),
    "columns": ([2, 3], [3, None], [2, None]),
    "inner": ([2, None], [None, 5], [2, 5]),
    "nothing-but-rank": ([None, None], [None, None], [None, None]),
    "batch": ([None, 2, 3], [3, 5], [None, 2, 5]),
    "batch-of-one": ([1, 2, 3], [None, 3, 5], [None, 2, 5]),
    "batches": ([4, 1, 2, 3], [7, 3, 5], [4, 7, 2, 5]),
    "rank-of-a": (None, [3, 5], None),
    "rank-of-b": ([2, 3], None, None),
}


def same_shape(shape, expected):
    if expected is None:
        return shape.rank is None
    return shape.rank is not None and shape.as_list() == expected


def concrete(shape, free):
    return [free if size is None else size for size in shape]


@pytest.mark.parametrize("shapes", PARTLY_KNOWN.values(), ids=PARTLY_KNOWN)
@pytest.mark.parametrize("transposed", [False, True])
def test_partly_known_shapes(library, shapes, transposed):
    *shapes, expected = shapes
    if transposed:
        shapes = [s if s is None else [*s[:-2], s[-1], s[-2]] for s in shapes]
    seen = []

    def differentiate(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = fp16_gemm(a, b, transposed, transposed, activation="relu")
        seen.append(y.shape)
        return y, *tape.gradient(y, [a, b])

    specs = [tf.TensorSpec(shape, HALF) for shape in shapes]
    run = tf.function(differentiate, input_signature=specs, autograph=False)
    a = tf.ones(concrete(shapes[0] or [6, 2, 3], 3), HALF)
    b = tf.ones(concrete(shapes[1] or [3, 5], 3), HALF)
    if transposed and shapes[0] is None:
        a = tf.linalg.matrix_transpose(a)
    if transposed and shapes[1] is None:
        b = tf.linalg.matrix_transpose(b)
    y, of_a, of_b = run(a, b)
    # The reference's matmul says less of a broadcast batch.
    if library == "native":
        assert same_shape(seen[0], expected)
    assert seen[0].is_compatible_with(y.shape)
    inner = a.shape[-2 if transposed else -1]
    assert np.all(y == float(inner))
    assert of_a.shape == a.shape and of_b.shape == b.shape
    assert np.all(of_a == float(tf.size(y) // (tf.size(a) // inner)))
    assert np.all(of_b == float(tf.size(y) // (tf.size(b) // inner)))


@pytest.mark.parametrize("of_b", [HALF, "float32"])
def test_a_product_is_one_op_of_the_graph(ops_mode, of_b):
    # What stands around it is traced for each layer of a model.
    ops_mode("native")
    specs = [tf.TensorSpec([2, 3], HALF), tf.TensorSpec([3, 5], of_b)]
    run = tf.function(lambda a, b: fp16_gemm(a, b), specs, autograph=False)
    nodes = run.get_concrete_function().graph.as_graph_def().node
    found = [node.op for node in nodes if node.op not in ("Placeholder", "Identity")]
    assert sorted(found) == ["Const", "KerasMp>Fp16Gemm"]


def test_shapes_differ_from_call_to_call(route):
    specs = [tf.TensorSpec([None, None], HALF)] * 2
    multiply = tf.function(
        route(fp16_gemm, autograph=False), input_signature=specs, autograph=False
    )
    for m, k, n in ((2, 3, 5), (1, 17, 1), (0, 3, 5), (2, 0, 5), (64, 111, 7)):
        found = multiply(tf.ones((m, k), HALF), tf.ones((k, n), HALF))
        np.testing.assert_array_equal(found, np.full((m, n), k, HALF))


@pytest.mark.parametrize("shape", [[2, 3], [None, None], None])
def test_shapes_that_cannot_fit_are_refused_when_traced(library, shape):
    specs = [tf.TensorSpec(shape, HALF), tf.TensorSpec([4], HALF)]
    run = tf.function(lambda a, b: fp16_gemm(a, b), specs, autograph=False)
    with pytest.raises(ValueError, match="2 dimensions"):
        run.get_concrete_function()


def test_traced_first_then_called_from_xla(library):
    """A function that was traced outside of XLA is not traced again inside."""
    inner = tf.function(
        lambda a, b: fp16_gemm(a, b, activation="relu"), autograph=False
    )
    a, b = tf.constant([[1, -2]], HALF), tf.constant([[3, 4], [5, -6]], HALF)
    np.testing.assert_array_equal(inner(a, b), [[0, 16]])

    @tf.function(jit_compile=True, autograph=False)
    def outer(a, b):
        with tf.GradientTape() as tape:
            tape.watch(a)
            y = inner(a, b)
        return y, tape.gradient(y, a)

    y, of_a = outer(a, b)
    assert inner.experimental_get_tracing_count() == 1
    np.testing.assert_array_equal(y, [[0, 16]])
    np.testing.assert_array_equal(of_a, [[4, -6]])


def test_while_loop_and_its_gradient(route):
    """x -> x w four times: x w^4, and 4 x w^3 for the weight."""

    def differentiate(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            _, y = tf.while_loop(
                lambda i, y: i < 4,
                lambda i, y: [i + 1, fp16_gemm(y, w)],
                [tf.constant(0), x],
                maximum_iterations=4,
            )
        return y, *tape.gradient(y, [x, w])

    x, w = tf.constant([[3.0]], HALF), tf.constant([[2.0]], "float32")
    y, of_x, of_w = route(differentiate, autograph=False)(x, w)
    assert [t.dtype.name for t in (y, of_x, of_w)] == [HALF, HALF, "float32"]
    assert [t.numpy().item() for t in (y, of_x, of_w)] == [48, 16, 96]


def test_forward_over_backward(library):
    a, b = tf.constant([[2.0, 3.0]], HALF), tf.constant([[5.0], [7.0]], HALF)
    with tf.autodiff.ForwardAccumulator(b, tf.ones_like(b)) as forward:
        with tf.GradientTape() as tape:
            tape.watch(a)
            y = fp16_gemm(a, b)
        of_a = tape.gradient(y, a)
    np.testing.assert_array_equal(of_a, [[5, 7]])
    np.testing.assert_array_equal(forward.jvp(y), [[5]])
    np.testing.assert_array_equal(forward.jvp(of_a), [[1, 1]])


def test_map_over_rows(library):
    a, b = tf.reshape(tf.range(6.0), (3, 1, 2)), tf.constant([[1.0], [10.0]], HALF)
    found = tf.map_fn(lambda row: fp16_gemm(row, b), tf.cast(a, HALF))
    np.testing.assert_array_equal(found[:, 0, 0], [10, 32, 54])


def test_recompute_grad(library):
    a, b = tf.constant([[2.0, 3.0]], HALF), tf.constant([[5.0], [7.0]], HALF)
    layer = tf.recompute_grad(lambda a: fp16_gemm(a, b))
    with tf.GradientTape() as tape:
        tape.watch(a)
        y = layer(a)
    np.testing.assert_array_equal(y, [[31]])
    np.testing.assert_array_equal(tape.gradient(y, a), [[5, 7]])


class Model(tf.Module):
    """An FP32 weight and bias, and relu."""

    def __init__(self):
        self.w = tf.Variable([[1.0, -1.0], [2.0, -2.0]])
        self.bias = tf.Variable([1.0, 1.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], HALF)], autograph=False)
    def __call__(self, x):
        return fp16_gemm(x, self.w, bias=self.bias, activation="relu")


# Runs in this process and in a new one.
RELOAD = """
import numpy as np
import tensorflow as tf
import keras_mp

def check(path, compiled):
    keras_mp.ops.build_info()  # loads the native library, where KERAS_MP_OPS allows it
    model = tf.saved_model.load(path)

    @tf.function(jit_compile=compiled, autograph=False)
    def differentiate(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
        return y, *tape.gradient(y, [x, model.w, model.bias])

    y, of_x, of_w, of_bias = differentiate(tf.constant([[3, 4]], "float16"))
    np.testing.assert_array_equal(y, [[12, 0]])
    np.testing.assert_array_equal(of_x, [[1, 2]])
    np.testing.assert_array_equal(of_w, [[3, 0], [4, 0]])
    np.testing.assert_array_equal(of_bias, [1, 0])
    assert [t.dtype.name for t in (y, of_w)] == ["float16", "float32"]
"""


def test_saved_model(library, tmp_path):
    tf.saved_model.save(Model(), str(tmp_path))
    scope = {}
    exec(RELOAD, scope)
    for compiled in (False, True):
        scope["check"](str(tmp_path), compiled)


@pytest.mark.xslow
def test_saved_model_in_a_new_process(ops_mode, tmp_path):
    ops_mode("native")
    tf.saved_model.save(Model(), str(tmp_path))
    code = f"{RELOAD}\ncheck({str(tmp_path)!r}, False)\ncheck({str(tmp_path)!r}, True)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_replicas(library, strategy):
    """Each has its own rows; the weight gradients are added."""
    with strategy.scope():
        w = tf.Variable([[1.0], [2.0]])

    def replica(x):
        with tf.GradientTape() as tape:
            y = fp16_gemm(x, w)
        return y, tape.gradient(y, w)

    @tf.function(autograph=False)
    def step(x):
        y, of_w = strategy.run(replica, args=(x,))
        return strategy.gather(y, 0), strategy.reduce("SUM", of_w, axis=None)

    rows = tf.data.Dataset.from_tensor_slices(np.float16([[1, 2], [3, 4]])).batch(2)
    (x,) = strategy.experimental_distribute_dataset(rows)
    y, of_w = step(x)
    np.testing.assert_array_equal(y, np.float16([[5], [11]]))
    np.testing.assert_array_equal(of_w, np.float32([[4], [6]]))


def test_a_graph_gives_the_bits_of_eager(ops_mode):
    ops_mode("native")
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(111, 111)).astype(HALF) for _ in "ab")
    graph = tf.function(fp16_gemm, autograph=False)
    oracle.assert_same_bits(graph(a, b).numpy(), fp16_gemm(a, b).numpy())


# The shapes of a and b.
UNDER_XLA = {
    "matrices": ([111, 217], [217, 17]),
    "batch-of-a": ([2, 3, 7, 17], [17, 5]),
    "batches": ([4, 1, 7, 17], [3, 17, 5]),
    "empty-sum": ([7, 0], [0, 5]),
    "no-rows": ([0, 17], [17, 5]),
}


@pytest.mark.parametrize("shapes", UNDER_XLA.values(), ids=UNDER_XLA)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_xla_on_a_cpu_gives_the_bits_of_eager(ops_mode, shapes, dtype, activation):
    ops_mode("native")
    random = np.random.default_rng(0)
    a, b = (tf.constant(random.normal(size=shape), dtype) for shape in shapes)
    bias = tf.constant(random.normal(size=shapes[1][-1]), tf.float32)

    def product(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            a, b, bias = arguments
            y = fp16_gemm(a, b, alpha=0.5, bias=bias, activation=activation)
        return y, *tape.gradient(y, arguments)

    compiled = tf.function(product, jit_compile=True, autograph=False)
    with tf.device("CPU"):
        found = compiled(a, b, bias)
        for one, other in zip(found, product(a, b, bias), strict=True):
            oracle.assert_same_bits(one.numpy(), other.numpy())


def test_xla_on_a_cpu_calls_the_kernel(ops_mode):
    ops_mode("native")
    a, b = tf.ones([7, 17], HALF), tf.ones([17, 5])

    @tf.function(jit_compile=True, autograph=False)
    def step(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = fp16_gemm(a, b)
        return y, *tape.gradient(y, [a, b])

    with tf.device("CPU"):
        hlo = step.experimental_get_compiler_ir(a, b)(stage="hlo")
    assert hlo.count("keras_mp.gemm") == 3
    # Each would be a copy of a matrix, in FP32 or rounded from it.
    assert " dot(" not in hlo and " convert(" not in hlo


def test_xla_finds_the_number_of_rows_when_it_runs(ops_mode):
    ops_mode("native")
    a = tf.reshape(tf.range(12, dtype="float32"), [4, 3])
    b, keep = tf.ones([3, 2], HALF), [True, False, True, True]

    @tf.function(jit_compile=True, autograph=False)
    def step(a, b):
        with tf.GradientTape() as tape:
            tape.watch(b)
            rows = tf.cast(tf.boolean_mask(a, keep), HALF)
            y = fp16_gemm(rows, b)
        return y, tape.gradient(y, b)

    y, of_b = step(a, b)
    np.testing.assert_array_equal(y, np.float16([[3, 3], [21, 21], [30, 30]]))
    np.testing.assert_array_equal(of_b, np.float16([[15, 15], [18, 18], [21, 21]]))
