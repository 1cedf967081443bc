"""Which route an op takes on a machine with other devices than this one.

TensorFlow places an op where it has a kernel for: a native op without one for the GPU
would run on the CPU, and nobody would be told.
"""

import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp.ops import fp16_gemm
from keras_mp.ops.kernels import dispatch, native

A = np.full((2, 3), 0.5, "float16")
SUMS = [[0.75, 0.75], [0.75, 0.75]]


@pytest.fixture
def machine(monkeypatch, ops_mode):
    """Makes TensorFlow see devices, and the library have kernels for GPUs or not."""
    ops_mode("native")
    asked = []

    def has_cuda(answer):
        asked.append(answer)
        return answer

    def become(kinds, cuda):
        seen = {kind: [kind] for kind in kinds}
        monkeypatch.setattr(dispatch, "devices", lambda kind: seen.get(kind, []))
        monkeypatch.setattr(native, "has_cuda", lambda: has_cuda(cuda))
        return asked

    return become


def ops_of(function):
    """The types of the ops in the graph of a function of one half matrix."""
    graph = tf.function(function).get_concrete_function(tf.TensorSpec([2, 3], "half"))
    functions = graph.graph.as_graph_def().library.function
    nodes = [
        *graph.graph.as_graph_def().node,
        *(n for f in functions for n in f.node_def),
    ]
    return {node.op for node in nodes}


# Name: the devices, whether the library has kernels for GPUs, and whether the product
# is native then.
MACHINES = {
    "cpu": (["CPU"], False, True),
    "gpu": (["CPU", "GPU"], True, True),
    "gpu-without-kernels": (["CPU", "GPU"], False, False),
    "tpu": (["CPU", "TPU"], False, False),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_route_of_a_product(machine, name):
    kinds, cuda, is_native = MACHINES[name]
    asked = machine(kinds, cuda)
    used = ops_of(lambda a: fp16_gemm(a, a, transpose_b=True))
    assert ("KerasMp>Fp16Gemm" in used) is is_native
    assert bool(asked) is ("GPU" in kinds)


def test_a_product_and_its_gradient_on_a_gpu_without_kernels(machine):
    machine(["CPU", "GPU"], False)
    a = tf.constant(A)
    with tf.GradientTape() as tape:
        tape.watch(a)
        c = fp16_gemm(a, A, transpose_b=True)
    np.testing.assert_array_equal(c, np.float16(SUMS), strict=True)
    expected = np.full((2, 3), 1.0, "float16")
    np.testing.assert_array_equal(tape.gradient(c, a), expected, strict=True)


def test_a_master_weight_on_a_gpu_is_rounded_by_tensorflow(machine):
    """The kernel for a GPU takes no FP32 matrix; the gradient is FP32 all the same."""
    machine(["CPU", "GPU"], True)
    tiny = tf.constant([[2.0**-15]], "float16")  # its square is 0 in FP16

    @tf.function(autograph=False)
    def differentiate(b):
        with tf.GradientTape() as tape:
            tape.watch(b)
            c = fp16_gemm(tiny, b)
        return tape.gradient(c, b, tiny)

    run = differentiate.get_concrete_function(tf.TensorSpec([1, 1]))
    products = [op for op in run.graph.get_operations() if "Fp16Gemm" in op.type]
    assert products
    assert {x.dtype for op in products for x in op.inputs[:2]} == {tf.float16}
    found = run(tf.ones([1, 1]))
    np.testing.assert_array_equal(found, np.float32([[2.0**-30]]), strict=True)


def test_a_gpu_without_kernels_is_told_of_once(monkeypatch, ops_mode):
    ops_mode("native")
    problem = native.cuda_problem()
    assert problem  # there is no GPU here
    monkeypatch.setattr(
        dispatch, "devices", lambda kind: ["GPU:0"] if kind == "GPU" else []
    )
    native.has_cuda.cache_clear()
    with pytest.warns(UserWarning, match=re.escape(problem)) as warned:
        fp16_gemm(A, A, transpose_b=True)
    (message,) = (str(warning.message) for warning in warned)
    assert "fp16_gemm" in message and "update step" in message
    assert "KERAS_MP_OPS=reference" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fp16_gemm(A, A, transpose_b=True)
    native.has_cuda.cache_clear()


# The ops that have no kernels for GPUs at all.
FORMULAS = {
    "softmax": lambda x: keras_mp.ops.softmax(x),
    "log_softmax": lambda x: keras_mp.ops.log_softmax(x),
    "logsumexp": lambda x: keras_mp.ops.logsumexp(x),
    "sum": lambda x: keras_mp.ops.sum(x, 1),
    "mean": lambda x: keras_mp.ops.mean(x, 1),
    "moments": lambda x: keras_mp.ops.moments(x, 1),
    "exponent_histogram": lambda x: keras_mp.ops.exponent_histogram(x),
    "unit_norm": lambda x: keras_mp.layers.UnitNormalization()(x),
    "pooling": lambda x: keras_mp.layers.AveragePooling1D(2)(x[None]),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_ops_without_kernels_for_gpus_take_the_formula(machine, name):
    machine(["CPU", "GPU"], True)
    used = ops_of(FORMULAS[name])
    assert not [op for op in used if op.startswith("KerasMp>")]


def test_build_info_tells_of_a_gpu_without_kernels(machine):
    machine(["CPU", "GPU"], False)
    info = keras_mp.ops.build_info()
    assert info["route"] == "reference"
    assert native.cuda_problem() in info["missing"]
