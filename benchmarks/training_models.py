"""Whole models that benchmarks train, each with its optimizer, its loss and a batch.

Each function returns the four. The model is not compiled; where the loss is None, it
adds one itself.
"""

import functools
import importlib.util
import sys
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from experiments.flags import parse
from translation import step_time, train


def translator():
    args = parse(train.HERE, ["--preset=demo", "--precision=fp32"], train.CHOICES)
    [batch], *sizes = step_time.make_batches(args, 1)
    model = train.make_model(args, "sgd", *sizes)
    return model, train.make_optimizer(args), None, batch


def of_images(make_model):
    model = make_model(weights=None, input_shape=(64, 64, 3), classes=10)
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(8, 64, 64, 3)), rng.integers(0, 10, 8)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    return model, optimizer, "sparse_categorical_crossentropy", (images, labels)


def transformer(blocks=4, width=256, words=2000):
    x = inputs = layers.Input((128,))
    x = layers.Embedding(words, width)(x)
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(4, width // 4)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        inner = layers.Dense(4 * width, "gelu")(x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(width)(inner)]))
    model = keras.Model(inputs, layers.Dense(words)(x))
    return predicting_words(model, words, batch=8, tokens=128)


def gpt2(tokens, batch, blocks=4, width=256, words=2000):
    """A decoder as GPT-2: norms first, learned positions, and one matrix of words."""
    inputs = layers.Input((tokens,), dtype="int32")
    embedding = layers.ReversibleEmbedding(words, width)
    positions = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    places = layers.Embedding(tokens, width)(positions)
    x = layers.Add()([embedding(inputs), places])
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(width)(layers.Dense(4 * width, "gelu")(y))
        x = layers.Add()([x, y])
    x = layers.LayerNormalization()(x)
    model = keras.Model(inputs, embedding(x, reverse=True))
    return predicting_words(model, words, batch, tokens)


def hub_gpt2(tokens, batch, blocks=4, width=256, words=2000):
    """That of keras-hub, with attention layers of its own, and dropout."""
    from keras_hub.models import GPT2Backbone

    body = GPT2Backbone(
        vocabulary_size=words,
        num_layers=blocks,
        num_heads=4,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=tokens,
    )
    next_words = body.token_embedding(body.output, reverse=True)
    model, *others, (x, y) = predicting_words(
        keras.Model(body.input, next_words), words, batch, tokens
    )
    return model, *others, ({"token_ids": x, "padding_mask": np.ones_like(x)}, y)


def predicting_words(model, words, batch, tokens):
    """Returns the model, Adam, the loss of the next word, and random words."""
    text = np.random.default_rng(0).integers(0, words, (batch, tokens + 1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, keras.optimizers.Adam(), loss, (text[:, :-1], text[:, 1:])


MODELS = {
    "translator": translator,
    "ResNet-50": functools.partial(of_images, keras.applications.ResNet50),
    "MobileNetV2": functools.partial(of_images, keras.applications.MobileNetV2),
    "Transformer": transformer,
    "GPT-2-256": functools.partial(gpt2, tokens=256, batch=8),
    "GPT-2-1024": functools.partial(gpt2, tokens=1024, batch=2),
    "GPT-2-50257-words": functools.partial(gpt2, tokens=256, batch=4, words=50_257),
}
if importlib.util.find_spec("keras_hub"):
    MODELS["keras-hub-GPT-2"] = functools.partial(hub_gpt2, tokens=256, batch=8)
