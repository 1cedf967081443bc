"""fp16_gemm: invalid arguments raise errors with both shapes in the message.

Python's checks see what is known before the op runs. What a graph learns only when it
runs, the op itself refuses, and so does the reference.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_mp.ops import fp16_gemm
from keras_mp.ops.kernels import native

HALF, SINGLE = "float16", "float32"


def zeros(*shape, dtype=HALF):
    return np.zeros(shape, dtype)


# Name: a, b, options, and what the message names.
SHAPES = {
    "vector-a": (zeros(3), zeros(3, 2), {}, ["`a`", "2 dimensions"]),
    "vector-b": (zeros(2, 3), zeros(3), {}, ["`b`", "2 dimensions"]),
    "inner": (zeros(2, 3), zeros(4, 5), {}, ["inner sizes", "3 and 4"]),
    "inner-a": (zeros(2, 3), zeros(3, 5), {"transpose_a": True}, ["2 and 3"]),
    "inner-b": (zeros(2, 3), zeros(3, 5), {"transpose_b": True}, ["3 and 5"]),
    "empty-inner": (zeros(2, 0), zeros(1, 5), {}, ["0 and 1"]),
    "batch": (zeros(2, 3, 4), zeros(3, 4, 5), {}, ["leading dimensions"]),
    "bias": (zeros(2, 3), zeros(3, 5), {"bias": zeros(4)}, ["[N]", "[5]", "(4,)"]),
    "bias-of-one": (zeros(2, 3), zeros(3, 5), {"bias": zeros(1)}, ["(1,)"]),
    "bias-rank": (zeros(2, 3), zeros(3, 5), {"bias": zeros(2, 5)}, ["(2, 5)"]),
    "alpha": (zeros(2, 3), zeros(3, 5), {"alpha": [1.0]}, ["`alpha`", "(1,)"]),
}
DTYPES = {
    "float32-a": (zeros(2, 3, dtype=SINGLE), zeros(3, 5), {}, ["`a`", "float32"]),
    "float64-b": (zeros(2, 3), zeros(3, 5, dtype="float64"), {}, ["`b`", "float64"]),
    "int-a": (zeros(2, 3, dtype="int32"), zeros(3, 5), {}, ["`a`", "int32"]),
    "float64-bias": (
        zeros(2, 3),
        zeros(3, 5),
        {"bias": zeros(5, dtype="float64")},
        ["`bias`", "float64"],
    ),
    "mixed": (
        zeros(2, 3),
        tf.zeros((3, 5), "bfloat16"),
        {},
        ["`b`", "float16", "bfloat16"],
    ),
    "output": (
        zeros(2, 3),
        zeros(3, 5),
        {"output_dtype": "bfloat16"},
        ["`output_dtype`", "'bfloat16'"],
    ),
    "output-float64": (zeros(2, 3), zeros(3, 5), {"output_dtype": "float64"}, []),
    "activation": (
        zeros(2, 3),
        zeros(3, 5),
        {"activation": "softmax"},
        ["`activation`", "'softmax'", "relu"],
    ),
}


@pytest.mark.parametrize("case", (SHAPES | DTYPES).values(), ids=[*SHAPES, *DTYPES])
@pytest.mark.parametrize("traced", [False, True])
def test_python_refuses(library, case, traced):
    a, b, options, parts = case
    run = tf.function(fp16_gemm, autograph=False) if traced else fp16_gemm
    with pytest.raises(ValueError) as error:
        run(tf.constant(a), tf.constant(b), **options)
    message = str(error.value)
    names_a_only = "int32" in message
    for part in [*parts, "Received:", str(a.shape)] + [str(b.shape)] * (
        not names_a_only
    ):
        assert part in message


@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_what_is_known_only_at_run_time_is_refused(route, case):
    a, b, options, _ = case
    options = dict(options)
    unknown = [tf.TensorSpec(None, HALF)] * 2
    bias = tf.constant(options.pop("bias", np.zeros(b.shape[-1], HALF)))
    alpha = tf.constant(options.pop("alpha", 1.0))

    @tf.autograph.experimental.do_not_convert
    def multiply(a, b, bias, alpha):
        return fp16_gemm(a, b, bias=bias, alpha=alpha, **options)

    specs = [*unknown, tf.TensorSpec(None, HALF), tf.TensorSpec(None, SINGLE)]
    run = tf.function(route(multiply), input_signature=specs)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        run(tf.constant(a), tf.constant(b), bias, alpha)
    if native.library() is not None:  # the reference leaves the words to TensorFlow
        for shape in (a.shape, b.shape):
            assert str(list(shape)).replace(" ", "") in str(error.value)


# The bare op, as a reloaded SavedModel calls it: Python checks nothing there.
@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_the_bare_op_refuses(case):
    a, b, options, _ = case
    options = {"alpha": 1.0} | options
    biases = [options.pop("bias")] if "bias" in options else []
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        native.load().keras_mp_fp16_gemm(a=a, b=b, bias=biases, **options)
    for shape in (a.shape, b.shape):
        assert str(list(shape)).replace(" ", "") in str(error.value)


def test_the_bare_op_takes_one_bias_at_most():
    biases = [np.zeros(5, HALF)] * 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most one bias"):
        native.load().keras_mp_fp16_gemm(
            a=zeros(2, 3), b=zeros(3, 5), alpha=1.0, bias=biases
        )


def test_the_bare_op_refuses_an_unknown_activation():
    with pytest.raises(tf.errors.InvalidArgumentError, match="activation"):
        native.load().keras_mp_fp16_gemm(
            a=zeros(2, 3), b=zeros(3, 5), alpha=1.0, bias=[], activation="softmax"
        )


@pytest.mark.parametrize("compiled", [False, True])
def test_the_bare_op_refuses_another_half_type_as_output(compiled):
    @tf.function(jit_compile=compiled, autograph=False)
    def multiply(a, b):
        return native.load().keras_mp_fp16_gemm(
            a=a, b=b, alpha=1.0, bias=[], Tout=tf.bfloat16
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match="dtype of a"):
        multiply(zeros(2, 3), zeros(3, 5))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_bare_op_refuses_another_half_type_beside_a(compiled):
    @tf.function(jit_compile=compiled, autograph=False)
    def multiply(a, b):
        return native.load().keras_mp_fp16_gemm(a=a, b=b, alpha=1.0, bias=[])

    with pytest.raises(tf.errors.InvalidArgumentError, match="b has the dtype of a"):
        multiply(zeros(2, 3), tf.zeros((3, 5), "bfloat16"))


def test_more_rows_than_an_int32_counts(library):
    a = tf.zeros((2**31 + 8, 0), HALF)
    assert fp16_gemm(a, tf.zeros((0, 0), HALF)).shape == (2**31 + 8, 0)


def test_a_result_too_large_to_count_is_refused():
    # 2^31 * 2^33 elements; the arguments have none.
    with pytest.raises(tf.errors.InvalidArgumentError):
        native.load().keras_mp_fp16_gemm(
            a=tf.zeros((2**31, 0), HALF), b=tf.zeros((0, 2**33), HALF), alpha=1, bias=[]
        )
