"""The functions of keras_mp.ops as nodes of functional models, saved and loaded."""

import inspect

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf

from keras_mp import ops
from keras_mp.ops.symbolic import FP32Reduction

X = np.random.default_rng(1).normal(4, 2, (5, 7)).astype("float16")
MASK = np.arange(35).reshape(5, 7) % 3 != 0
HEADS = X[:, :4].reshape(5, 2, 2, 1).repeat(2, axis=3) - 4
IDS = np.int32([0, 2, 0, 1, 1])

# Name: the function of KerasTensors or arrays, what it gets, and the shapes of the
# outputs where the size of the batch is not known.
CALLS = {
    "sum": (lambda x: ops.sum(x, axis=-1), [X], [(None,)]),
    "sum-of-axes": (lambda x: ops.sum(x, (0, -1), keepdims=True), [X], [(1, 1)]),
    "sum-of-all": (ops.sum, [X], [()]),
    "sum-by-name": (lambda x: ops.sum(axis=1, x=x), [X], [(None,)]),
    "sum-in-fp32": (lambda x: ops.sum(x, 0, output_dtype="float32"), [X], [(7,)]),
    "mean": (lambda x: ops.mean(x, axis=1, keepdims=True), [X], [(None, 1)]),
    "cumsum": (lambda x: ops.cumsum(x, axis=-1), [X], [(None, 7)]),
    "cumsum-of-all": (ops.cumsum, [X], [(None,)]),
    "segment_sum": (
        lambda data, ids: ops.segment_sum(data, ids, num_segments=4),
        [X, IDS],
        [(4, 7)],
    ),
    "segment_sum-of-all": (ops.segment_sum, [X, IDS], [(None, 7)]),
    "moments": (lambda x: ops.moments(x, -1), [X], [(None,), (None,)]),
    "moments-in-fp32": (
        lambda x: ops.moments(x, [0], True, False, "float32"),
        [X],
        [(1, 7), (1, 7)],
    ),
    "softmax": (ops.softmax, [X], [(None, 7)]),
    "softmax-with-a-mask": (
        lambda x, mask: ops.softmax(x, -1, mask),
        [X, MASK],
        [(None, 7)],
    ),
    "softmax-with-a-fixed-mask": (
        lambda x: ops.softmax(x, mask=MASK[0]),
        [X],
        [(None, 7)],
    ),
    "log_softmax": (ops.log_softmax, [X], [(None, 7)]),
    "dot_product_attention": (
        lambda x, mask: ops.dot_product_attention(x, x, x, mask=mask, scale=0.5),
        [HEADS, HEADS > 0],
        [(None, 2, 2, 2)],
    ),
    "logsumexp": (lambda x: ops.logsumexp(x, axis=1), [X], [(None,)]),
    "linear_cross_entropy": (
        lambda x, y: ops.linear_cross_entropy(x, X.T, y),
        [X, IDS],
        [(None,)],
    ),
}
EACH = pytest.mark.parametrize("name", CALLS)


def one_or_all(inputs):
    """An older Keras takes a list of one for another structure after loading."""
    return inputs[0] if len(inputs) == 1 else inputs


def model_of(name):
    function, arrays, _ = CALLS[name]
    inputs = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in arrays]
    return keras.Model(one_or_all(inputs), function(*inputs))


def assert_same(found, name):
    function, arrays, _ = CALLS[name]
    expected = tf.nest.flatten(function(*arrays))
    for one, other in zip(tf.nest.flatten(found), expected, strict=True):
        oracle.assert_same_bits(oracle.value(one), other.numpy())


@EACH
def test_a_model_gives_what_the_function_gives(name):
    model = model_of(name)
    assert_same(model(one_or_all(CALLS[name][1])), name)
    outputs = tf.nest.flatten(model.output)
    assert [tuple(y.shape) for y in outputs] == CALLS[name][2]
    found = tf.nest.flatten(model(one_or_all(CALLS[name][1])))
    for output, y in zip(outputs, found, strict=True):
        assert output.dtype == y.dtype.name


@EACH
def test_a_loaded_model_gives_the_same(name, tmp_path):
    model_of(name).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(loaded(one_or_all(CALLS[name][1])), name)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_model_predicts(jit_compile):
    x = keras.Input((7,), dtype="float16")
    model = keras.Model(x, ops.cumsum(ops.softmax(x), axis=-1))
    model.compile(jit_compile=jit_compile)
    found = model.predict(X, batch_size=2, verbose=0)
    assert found.dtype == np.float16
    # 7 roundings of the softmax, each of 2^-11 of its part of 1, and one of the sum.
    np.testing.assert_allclose(found[:, -1], 1, rtol=0, atol=2 * 2.0**-11)


def test_the_gradient_flows_through_a_loaded_model(tmp_path):
    x = keras.Input((2,), dtype="float16")
    keras.Model(x, ops.logsumexp(x, axis=-1)).save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    x = tf.constant([[3, 3]], "float16")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    slope = tape.gradient(y, x, tf.constant([1000], "float16"))
    assert slope.dtype == tf.float16
    np.testing.assert_array_equal(slope, [[500, 500]])


def test_an_error_in_a_model_is_that_of_the_function():
    x = keras.Input((7,), dtype="float16")
    with pytest.raises(
        ValueError, match=r"`axis` must be from -2 to 1.*Received: axis=2"
    ):
        ops.sum(x, axis=2)
    with pytest.raises(ValueError, match=r"floating dtype\. Received: .*int32"):
        ops.softmax(keras.Input((7,), dtype="int32"))


def test_a_generator_is_refused_since_no_file_would_have_it():
    x = keras.Input((2, 1, 4))
    seed = keras.random.SeedGenerator(1)
    with pytest.raises(ValueError, match=r"an int or two ints, .* Received: seed="):
        ops.dot_product_attention(x, x, x, dropout=0.5, seed=seed)


def test_a_call_without_its_tensor_is_refused():
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        ops.sum()


def test_the_functions_keep_their_signatures():
    assert list(inspect.signature(ops.softmax).parameters) == [
        "x",
        "axis",
        "mask",
        "output_dtype",
    ]


def config(**changes):
    return {"function": "sum", "arguments": {"axis": -1}, "name": "total", **changes}


def test_a_node_is_made_from_its_config():
    node = FP32Reduction.from_config(config())
    assert node.get_config() == config()
    np.testing.assert_array_equal(node(x=np.float16([[1, 2]])), np.float16([3]))


# Name: what the config says instead, and what the message says.
REFUSED = {
    "unknown-function": (
        {"function": "eval"},
        "`function` must be one of .*'softmax', 'sum'.*Received: function='eval'",
    ),
    "another-op": ({"function": "fp16_gemm"}, "Received: function='fp16_gemm'"),
    "unknown-argument": (
        {"arguments": {"axes": 1}},
        "`arguments` of sum must be among .*'axis'.*Received: .*'axes': 1",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_config_may_not_name_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FP32Reduction(**config(**changes))
    # As Keras words every failure of a config.
    with pytest.raises(TypeError, match=message):
        FP32Reduction.from_config(config(**changes))
