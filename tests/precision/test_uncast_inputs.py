"""Layers whose inputs Keras does not cast: embeddings and normalizations."""

import keras
import numpy as np

import keras_mp

WORDS = np.random.default_rng(0).integers(0, 11, (16, 5))


def test_the_logits_are_an_fp16_product_where_the_norm_before_is_fp32():
    keras.config.set_dtype_policy("mixed_float16")
    words = keras.layers.ReversibleEmbedding(11, 8, name="words")
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Rescaling(1e6, name="large")(words(ids))
    x = keras.layers.LayerNormalization(name="norm")(x)
    model = keras.Model(ids, words(x, reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras_mp.wrap("sgd"), loss)
    plan = keras_mp.plan_precision(model, WORDS, WORDS)
    assert plan.precisions == {
        "words": "float16_matmul",
        "large": "float32",
        "norm": "float32",
    }
    assert plan.float16_share == 1.0


def test_a_norm_in_fp32_does_not_round_to_the_fp16_of_its_input():
    keras.config.set_dtype_policy("mixed_float16")
    norms = [keras.layers.LayerNormalization(name=name) for name in ("large", "norm")]
    inputs = keras.Input((4,))
    x = keras.layers.Dense(4, name="dense")(inputs)
    model = keras.Model(inputs, norms[1](norms[0](x)))
    norms[0].beta.assign([3e5, -3e5, 0.0, 0.0])
    model.compile(keras_mp.wrap("sgd"), "mse")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    plan = keras_mp.plan_precision(model, x, x)
    assert (
        plan.precisions["large"] == plan.precisions["norm"] == "float32"
        and not plan.notes
    )
    assert np.all(np.isfinite(plan.apply(model)(x)))
    keras_mp.to_keras(model)
    assert not any(norm.autocast for norm in norms)
