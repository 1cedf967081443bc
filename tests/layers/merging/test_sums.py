"""Products and sums that overflow in FP16: Dot, Add, Average and Activation."""

import keras
import numpy as np
import pytest

from keras_mp import layers

HALF = {"dtype": "float16"}
TENTHS = np.full((1, 5000), 0.1, "float16")  # their sum is 499.88, which rounds to 500
ONES = {"kernel_initializer": "ones", **HALF}
ZEROS = np.zeros((1, 100_000), "float16")
LARGE = np.full((1, 1), 6e4, "float16")


def attend():
    layer = layers.GroupQueryAttention(2, 2, 1, **ONES)
    x = np.full((1, 1, 2), 200.0, "float16")  # q.k is 2 * 400**2, beyond 65,504
    return layer(x, x)


CASES = {
    "grouped-attention": (attend, 1600.0),
    "softmax": (lambda: layers.Activation("softmax", **HALF)(ZEROS), 1e-5),
    "log-softmax": (lambda: layers.Activation("log_softmax", **HALF)(ZEROS), -11.513),
    "softmax-of-dense": (
        lambda: layers.Dense(100_000, "softmax", kernel_initializer="zeros", **HALF)(
            LARGE
        ),
        1e-5,
    ),
    "softmax-of-einsum": (
        lambda: layers.EinsumDense(
            "ab,bc->ac", 100_000, "softmax", kernel_initializer="zeros", **HALF
        )(LARGE),
        1e-5,
    ),
    "softmax-of-convolution": (
        lambda: layers.Conv1D(
            100_000, 1, activation="softmax", kernel_initializer="zeros", **HALF
        )(LARGE[:, None]),
        1e-5,
    ),
    "add": (lambda: layers.Add(**HALF)([LARGE, LARGE, -LARGE]), 6e4),
    "average": (lambda: layers.Average(**HALF)([LARGE, LARGE]), 6e4),
    "dot": (
        lambda: layers.Dot(1, **HALF)([TENTHS, np.ones((1, 5000), "float16")]),
        500.0,
    ),
    # 3e4 in each of two: the length is 42,426.
    "dot-normalized": (
        lambda: layers.Dot(1, normalize=True, **HALF)(
            [np.full((1, 2), 3e4, "float16")] * 2
        ),
        1.0,
    ),
    "simple-rnn": (
        lambda: layers.SimpleRNN(1, activation=None, **ONES)(TENTHS[:, None]),
        500.0,
    ),
    "tied-embedding": (
        lambda: layers.ReversibleEmbedding(
            1, 5000, embeddings_initializer="ones", **HALF
        )(TENTHS, reverse=True),
        500.0,
    ),
    "untied-embedding": (
        lambda: layers.ReversibleEmbedding(
            1, 5000, tie_weights=False, embeddings_initializer="ones", **HALF
        )(TENTHS, reverse=True),
        500.0,
    ),
}


@pytest.mark.parametrize(("compute", "expected"), CASES.values(), ids=CASES)
def test_what_fp16_has_no_number_for(compute, expected):
    found = keras.ops.convert_to_numpy(compute())
    assert found.dtype == np.float16
    # One rounding; of probabilities below 6e-5 to a multiple of 6e-8.
    np.testing.assert_allclose(found, expected, rtol=2**-11, atol=2**-25)


def test_a_softmax_has_its_logits_for_the_loss():
    layer = layers.Dense(2, "softmax", **ONES)
    probabilities = layer(np.ones((1, 3), "float16"))
    assert probabilities._keras_logits.numpy().tolist() == [[3.0, 3.0]]


def test_an_embedding_that_is_looked_up_is_that_of_keras():
    layer = layers.ReversibleEmbedding(3, 2, **HALF)
    np.testing.assert_array_equal(
        layer(np.array([2, 0])), keras.ops.take(layer.embeddings, np.array([2, 0]), 0)
    )
