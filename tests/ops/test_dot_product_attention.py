"""dot_product_attention: values and gradients beside float64, on every route."""

import itertools

import numpy as np
import oracle
import pytest
import tensorflow as tf
from attention_oracle import CASES, UNITS, assert_within, draw, expected, problem

from keras_mp.ops import dot_product_attention

SIZES = (0, 1, 7, 16, 17, 64, 111)


def values_and_gradients(run, tensors, mask, is_causal, dtype):
    mask = None if mask is None else tf.constant(mask)

    @run
    def compute(query, key, value, upstream):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            y = dot_product_attention(query, key, value, mask=mask, is_causal=is_causal)
        return [y, *tape.gradient(y, [query, key, value], upstream)]

    return compute(*(tf.cast(x, dtype) for x in tensors))


@pytest.mark.parametrize("dtype", UNITS)
def test_values_and_gradients(route, dtype):
    for name, case in CASES.items():
        given = problem(*case, dtype)
        found = values_and_gradients(route, *given, dtype)
        assert_within(found, expected(*given, dtype), dtype, name)


@pytest.mark.slow_except("native")
def test_sizes(library):
    for queries, keys in itertools.product(SIZES, SIZES):
        given = problem(queries, keys, 2, 1, None, queries % 2 == 0, "float16", size=7)
        found = values_and_gradients(lambda f: f, *given, "float16")
        wanted = expected(*given, "float16")
        assert_within(found, wanted, "float16", (queries, keys))


def test_scores_beyond_65504(route):
    """180,000 and 90,000: the first key takes all the attention."""
    query = tf.fill((1, 1, 1, 2), tf.constant(300, "float16"))
    key = tf.constant([[[[300, 300]], [[150, 150]]]], "float16")
    value = tf.constant([[[[1]], [[2]]]], "float16")
    attend = route(lambda *tensors: dot_product_attention(*tensors, scale=1.0))
    assert attend(query, key, value).numpy().item() == 1


def test_a_query_that_sees_no_key_attends_to_all(route):
    query, key = (tf.ones((1, 2, 1, 1), "float16") for _ in range(2))
    value = tf.constant([[[[1]], [[2]]]], "float16")
    mask = tf.constant([[False, False], [True, False]])

    def slopes(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            y = dot_product_attention(query, key, value, mask=mask, is_causal=True)
        return [y, *tape.gradient(y, [query, key, value])]

    y, *grads = (np.ravel(x).tolist() for x in route(slopes)(query, key, value))
    assert y == [1.5, 1]
    assert grads == [[0, 0], [0, 0], [1.5, 0.5]]


def test_a_bias_and_a_scale_have_gradients(route):
    """softmax([0, 0]) of values 0 and 1: slopes of 1/4 and -1/4."""
    query, value = np.ones((1, 1, 1, 1), "float16"), np.float16([[[[0]], [[1]]]])
    key = np.float16([[[[0]], [[2]]]])

    @route
    def slopes(query, key, value, bias, scale):
        with tf.GradientTape() as tape:
            tape.watch([bias, scale, query])
            y = dot_product_attention(query, key, value, bias=bias, scale=scale)
        return [y, *tape.gradient(y, [bias, scale, query])]

    bias, scale = tf.constant([1.0, 0.0]), tf.constant(0.5)
    given = map(tf.constant, (query, key, value))
    y, of_bias, of_scale, of_query = slopes(*given, bias, scale)
    assert y.numpy().item() == 0.5
    np.testing.assert_allclose(of_bias, [-0.25, 0.25], rtol=2.0**-20)
    np.testing.assert_allclose(of_scale, 0.5, rtol=2.0**-20)
    assert of_query.numpy().item() == 0.25
    assert (of_bias.dtype, of_query.dtype) == (tf.float32, tf.float16)


def test_sizes_that_are_not_known(route):
    spec = tf.TensorSpec([None, None, 2, 4], "float16")
    mask = tf.TensorSpec([None, 1, 1, None], "bool")
    run = route(
        lambda query, key, value, mask: dot_product_attention(
            query, key, value, mask=mask
        )
    )
    if isinstance(run, type(tf.function(lambda: 0))):
        run = tf.function(run.python_function, input_signature=[*[spec] * 3, mask])
    for batch, length in ((1, 3), (2, 5)):
        x = tf.random.stateless_normal((batch, length, 2, 4), (1, 2))
        x = tf.cast(x, "float16")
        hides_last = tf.range(length)[tf.newaxis, tf.newaxis, tf.newaxis] < length - 1
        hides_last = tf.repeat(hides_last, batch, axis=0)
        found = run(x, x, x, hides_last)
        shown = dot_product_attention(x, x[:, :-1], x[:, :-1])
        # Both round once; 2^-10 is a step of numbers below 2, and these are below 4.
        np.testing.assert_allclose(found, shown, rtol=0, atol=2.0**-9)


def test_no_tensor_has_a_number_for_each_pair(ops_mode):
    ops_mode("native")
    spec = tf.TensorSpec([1, 33, 2, 4], "float16")
    keys = tf.TensorSpec([1, 35, 2, 4], "float16")

    @tf.function
    def slopes(query, key):
        with tf.GradientTape() as tape:
            tape.watch([query, key])
            y = dot_product_attention(query, key, key, is_causal=True)
        return tape.gradient(y, [query, key])

    graph = slopes.get_concrete_function(spec, keys).graph
    shapes = [x.shape for op in graph.get_operations() for x in op.outputs]
    assert any(33 in shape for shape in shapes)
    assert not any({33, 35} <= set(shape) for shape in shapes)


@pytest.mark.parametrize(
    "options",
    [{"is_causal": True}, {"dropout": 0.25, "seed": (3, -5)}],
    ids=["causal", "dropout"],
)
def test_a_second_derivative(library, options):
    """Of FP32 beside float64, whose formula is TensorFlow's."""
    found = []
    for dtype in ("float32", "float64"):
        tensors = [
            tf.constant(draw(i, 1, 4, 2, 3, dtype="float32"), dtype) for i in range(3)
        ]
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                y = dot_product_attention(*tensors, **options)
            slopes = inner.gradient(y, tensors)
            penalty = sum(tf.reduce_sum(slope**2) for slope in slopes)
        found.append([x.numpy() for x in outer.gradient(penalty, tensors)])
    for one, other in zip(*found, strict=True):
        # A few dozen FP32 roundings of numbers that are as large as the largest.
        oracle.assert_close(one, other.astype("float32"), 64)


def half(*shape):
    return np.zeros(shape, "float16")


# Name: query, key, value, other arguments, what the message says.
REFUSED = {
    "rank": (half(2, 3, 4), half(2, 3, 4), half(2, 3, 4), {}, "query.shape=.2, 3, 4"),
    "batch": (half(1, 3, 2, 4), half(2, 3, 2, 4), half(2, 3, 2, 4), {}, "must be"),
    "keys": (half(2, 3, 2, 4), half(2, 3, 2, 4), half(2, 4, 2, 4), {}, "must be"),
    "size": (half(2, 3, 2, 4), half(2, 3, 2, 5), half(2, 3, 2, 4), {}, "must be"),
    "heads": (half(2, 3, 3, 4), half(2, 3, 2, 4), half(2, 3, 2, 4), {}, "multiple"),
    "integers": (np.zeros((2, 3, 2, 4), int), *[half(2, 3, 2, 4)] * 2, {}, "floating"),
    "dtypes": (half(2, 3, 2, 4), *[np.zeros((2, 3, 2, 4), "f")] * 2, {}, "same dtype"),
    "mask": (*[half(2, 3, 2, 4)] * 3, {"mask": np.ones(3)}, "of dtype bool"),
    "rank-of-mask": (
        *[half(2, 3, 2, 4)] * 3,
        {"mask": np.ones([1] * 5, bool)},
        "broad",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(library, name):
    *tensors, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        dot_product_attention(*tensors, **options)


def test_a_mask_that_does_not_broadcast_is_refused(library):
    x = half(2, 3, 2, 4)
    errors = (ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(errors, match=r"mask|broadcast|dimension"):
        dot_product_attention(x, x, x, mask=np.ones((2, 2), bool))
