"""Embeddings look up the words that they are given, or refuse ids that were rounded."""

import keras
import numpy as np
import pytest
from older_versions import needs

import keras_mp
from keras_mp import layers

# Above these, a dtype has not every whole number.
EXACT = {"float16": 2048, "bfloat16": 256}


def table(size):
    """A layer whose row of a word is the number of the word."""
    layer = layers.Embedding(size, 1, dtype="float32")
    layer.build()
    layer.embeddings.assign(np.arange(size)[:, None])
    return layer


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16", "float32"])
def test_ids_that_are_exact_are_looked_up(dtype):
    words = np.array([[0, 2047], [2049, 65001]], dtype)
    np.testing.assert_array_equal(table(65536)(words)[..., 0], words)


@pytest.mark.parametrize("dtype", EXACT)
def test_rounded_ids_are_refused_where_the_table_is_too_large_for_them(dtype):
    size = EXACT[dtype]
    words = keras.ops.cast(np.array([0, 1, size - 1]), dtype)
    np.testing.assert_array_equal(table(size)(words)[:, 0], [0, 1, size - 1])
    message = rf"input_dim={size + 1}, with ids in {dtype}.*int32.*convert"
    with pytest.raises(ValueError, match=message):
        table(size + 1)(words)


@needs("Keras", 3, 12)
def test_a_reversible_embedding_refuses_ids_and_no_activations():
    layer = layers.ReversibleEmbedding(3000, 2, dtype="mixed_float16")
    assert layer(np.ones((1, 2), "float16"), reverse=True).shape == (1, 3000)
    with pytest.raises(ValueError, match="ids in float16"):
        layer(np.ones((1, 2), "float16"))


class Doubled(keras.layers.Embedding):
    """A user's, with its own call."""

    def call(self, inputs):
        return 2 * super().call(inputs)


def test_a_subclass_with_its_own_call_refuses_them_too():
    layer = Doubled(3000, 1, "ones", dtype="float16")
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer])
    report = keras_mp.conversion_report(keras_mp.convert(model))
    assert report.converted == {"Doubled": 1} and not report.not_converted
    assert model(np.array([[2049]])).numpy() == 2
    with pytest.raises(ValueError, match="ids in float16"):
        layer(np.ones(1, "float16"))


def test_a_quantized_embedding_refuses_them_too():
    layer = keras.layers.Embedding(3000, 4, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer])
    keras_mp.convert(model)
    layer.quantize("int8")
    assert layer(np.array([2999])).shape == (1, 4)
    with pytest.raises(ValueError, match="ids in bfloat16"):
        layer(keras.ops.ones(1, "bfloat16"))
