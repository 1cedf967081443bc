"""Products and sums that layers with code of their own refer to."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import products_and_sums_in_16_bits
from keras import ops
from keras.ops import einsum as contract

import keras_mp
from keras_mp.precision.own_code import PRODUCTS_AND_SUMS, products_and_sums


def product(x):
    return ops.matmul(x, x)


mine = types.ModuleType("mine")
mine.product = product


def with_closure():
    def inner(x):
        return ops.dot(x, x)

    return lambda self, x: inner(x)


def nested(self, x):
    def inner(y):
        return ops.einsum("ab,bc->ac", y, y)

    return inner(x)


def loop(self, x):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ y), (0, x))[1]


def in_fp32(self, x):
    y = ops.cast(x, "float32")
    return ops.cast(ops.sum(y, -1, keepdims=True), x.dtype)


def in_place(self, x):
    x @= x
    return x


def imported_inside(self, x):
    import tensorflow

    return tensorflow.reduce_sum(x)


# Name of the case: the `call` of a layer, and the products and sums found in it.
CALLS = {
    "operator": (lambda self, x: x @ x, ["matmul"]),
    "keras": (lambda self, x: keras.ops.softmax(x), ["softmax"]),
    "tensorflow": (lambda self, x: tf.linalg.matvec(x, x[0]), ["matvec"]),
    "a name of TensorFlow 2": (lambda self, x: tf.nn.log_softmax(x), ["log_softmax"]),
    "another name": (lambda self, x: contract("ab,bc->ac", x, x), ["einsum"]),
    "in place": (in_place, ["matmul"]),
    "an import inside": (imported_inside, ["reduce_sum"]),
    "a function inside": (nested, ["einsum"]),
    "a function": (lambda self, x: product(x), ["matmul"]),
    "a function of a module": (lambda self, x: mine.product(x), ["matmul"]),
    "a function around": (with_closure(), ["dot"]),
    "a loop": (loop, ["matmul"]),
    "a mean, which Keras takes in FP32": (lambda self, x: ops.mean(x), []),
    "operations of keras_mp": (lambda self, x: keras_mp.ops.softmax(x), []),
    "numbers of NumPy": (lambda self, x: x * np.sum([1.0, 2.0]), []),
    "numbers of Python": (lambda self, x: x * sum([1.0, 2.0]), []),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_refers_to(name):
    call, expected = CALLS[name]
    layer = type("Own", (keras.layers.Layer,), {"call": call})(dtype="mixed_float16")
    assert products_and_sums(layer) == (expected, False)
    x = np.ones((2, 2), "float16")
    traced = tf.function(lambda: layer(x), autograph=False).get_concrete_function()
    assert has_products_or_sums(traced) == bool(expected)


def has_products_or_sums(traced):
    """Tells whether a graph has some in 16 bits, or has functions that it calls."""
    return bool(
        products_and_sums_in_16_bits(traced)
        or traced.graph.as_graph_def().library.function
    )


def test_a_cast_to_float32_is_told_of():
    layer = type("Own", (keras.layers.Layer,), {"call": in_fp32})()
    assert products_and_sums(layer) == (["sum"], True)


def test_a_lambda():
    assert products_and_sums(keras.layers.Lambda(ops.sum)) == (["sum"], False)
    layer = keras.layers.Lambda(lambda x: x - ops.cumsum(x))
    assert products_and_sums(layer) == (["cumsum"], False)


class Helper:
    """Computes for a layer, and is none."""

    def compute(self, x):
        return ops.tensordot(x, x, 1)


class Base(keras.layers.Layer):
    """Has methods, a helper and a sublayer of the name of an operation."""

    def __init__(self, **options):
        super().__init__(**options)
        self.helper, self.softmax = Helper(), keras.layers.Softmax()

    def call(self, x):
        return self.softmax(x) + self.weighted(x) + self.helper.compute(x)

    def weighted(self, x):
        return ops.vdot(x, x)


class Derived(Base):
    """Goes on with what the class above returns."""

    def call(self, x):
        return super().call(x) * 2


class Around(keras.layers.Layer):
    """Only adds what the layer inside returns."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inside = Base()

    def call(self, x):
        return x + self.inside(x)


def test_methods_helpers_and_sublayers():
    assert products_and_sums(Base()) == (["tensordot", "vdot"], False)
    assert products_and_sums(Derived()) == (["tensordot", "vdot"], False)
    assert products_and_sums(Around()) == ([], False)


def ones(*shape):
    return tf.ones(shape, "float16")


X, IMAGE, KERNEL = ones(2, 2), ones(1, 4, 4, 2), ones(2, 2, 2, 2)
HEADS = ones(1, 2, 2, 2)
IDS = tf.zeros(2, "int32")
# Each name of the table, with a call of the function.
OPERATIONS = {
    "adaptive_average_pool": lambda: ops.adaptive_average_pool(IMAGE, 2),
    "average": lambda: ops.average(X),
    "average_pool": lambda: ops.average_pool(IMAGE, 2),
    "avg_pool": lambda: tf.nn.avg_pool(IMAGE, 2, 2, "VALID"),
    "conv": lambda: ops.conv(IMAGE, KERNEL),
    "conv1d": lambda: tf.nn.conv1d(IMAGE[0], KERNEL[0], 1, "VALID"),
    "conv2d": lambda: tf.nn.conv2d(IMAGE, KERNEL, 1, "VALID"),
    "conv3d": lambda: tf.nn.conv3d(IMAGE[None], KERNEL[None], [1] * 5, "VALID"),
    "conv_transpose": lambda: ops.conv_transpose(IMAGE, KERNEL, 1),
    "convolution": lambda: tf.nn.convolution(IMAGE, KERNEL),
    "correlate": lambda: ops.correlate(X[0], X[0]),
    "cumsum": lambda: ops.cumsum(X),
    "depthwise_conv": lambda: ops.depthwise_conv(IMAGE, KERNEL),
    "depthwise_conv2d": lambda: tf.nn.depthwise_conv2d(IMAGE, KERNEL, [1] * 4, "VALID"),
    "dot": lambda: ops.dot(X, X),
    "dot_product_attention": lambda: ops.dot_product_attention(HEADS, HEADS, HEADS),
    "einsum": lambda: ops.einsum("ab,bc->ac", X, X),
    "inner": lambda: ops.inner(X, X),
    "l2_normalize": lambda: tf.nn.l2_normalize(X),
    "log_softmax": lambda: ops.log_softmax(X),
    "logsumexp": lambda: ops.logsumexp(X),
    "matmul": lambda: ops.matmul(X, X),
    "matvec": lambda: tf.linalg.matvec(X, X[0]),
    "nanmean": lambda: ops.nanmean(X),
    "nansum": lambda: ops.nansum(X),
    "norm": lambda: ops.norm(X),
    "normalize": lambda: ops.normalize(X, epsilon=1e-3),
    "reduce_logsumexp": lambda: tf.reduce_logsumexp(X),
    "reduce_mean": lambda: tf.reduce_mean(X),
    "reduce_std": lambda: tf.math.reduce_std(X),
    "reduce_sum": lambda: tf.reduce_sum(X),
    "reduce_variance": lambda: tf.math.reduce_variance(X),
    "segment_sum": lambda: ops.segment_sum(X, IDS, 2),
    "separable_conv": lambda: ops.separable_conv(IMAGE, KERNEL, ones(1, 1, 4, 2)),
    "softmax": lambda: ops.softmax(X),
    "std": lambda: ops.std(X),
    "sum": lambda: ops.sum(X),
    "tensordot": lambda: ops.tensordot(X, X, 1),
    "trace": lambda: ops.trace(X),
    "vdot": lambda: ops.vdot(X, X),
}
# These Keras, and TensorFlow, compute in FP32.
IN_FP32 = {
    "batch_normalization": lambda: ops.batch_normalization(X, X[0], X[0], -1),
    "layer_normalization": lambda: ops.layer_normalization(X),
    "mean": lambda: ops.mean(X),
    "moments": lambda: ops.moments(X, [0]),
    "moments of TensorFlow": lambda: tf.nn.moments(X, [0]),
    "rms_normalization": lambda: ops.rms_normalization(X),
    "var": lambda: ops.var(X),
}


@pytest.mark.parametrize("name", [*OPERATIONS, *IN_FP32])
def test_the_table_has_what_is_computed_in_16_bits(name):
    is_listed = name in OPERATIONS
    compute = OPERATIONS[name] if is_listed else IN_FP32[name]
    traced = tf.function(compute, autograph=False).get_concrete_function()
    assert has_products_or_sums(traced) == is_listed


def test_every_name_of_the_table_is_computed():
    assert set(OPERATIONS) == PRODUCTS_AND_SUMS
