"""`convert` on backbones of keras-hub, as they come, with tiny random configs."""

import functools

import numpy as np
import pytest
from families import assert_family

TOKENS = np.ones((1, 8), "int32")
TEXT = {"token_ids": TOKENS, "padding_mask": TOKENS}
SEGMENTS = TEXT | {"segment_ids": 0 * TOKENS}
PAIR = {
    f"{part}_{name}": TOKENS
    for part in ("encoder", "decoder")
    for name in ("token_ids", "padding_mask")
}
SPEECH = {
    "encoder_features": np.ones((1, 8, 8), "float32"),
    "decoder_token_ids": TOKENS,
    "decoder_padding_mask": TOKENS,
}
IMAGES = np.ones((1, 16, 16, 3), "float32")

SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16}
WORDS = SIZES | {"vocabulary_size": 10, "num_heads": 2}
ENCODER = WORDS | {"max_sequence_length": 8}
GROUPED = SIZES | {
    "vocabulary_size": 10,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
}
# Backbone: its arguments, its inputs, and the classes whose own code computes products
# or sums: `keras_mp` has no counterpart of them, and says so.
BACKBONES = {
    "Bert": (ENCODER, SEGMENTS, []),
    "Roberta": (ENCODER, TEXT, []),
    "DistilBert": (ENCODER, TEXT, []),
    "XLMRoberta": (ENCODER, TEXT, []),
    "Albert": (ENCODER | {"embedding_dim": 4}, SEGMENTS, []),
    "DebertaV3": (ENCODER | {"bucket_size": 4}, TEXT, ["DisentangledSelfAttention"]),
    "GPT2": (ENCODER, TEXT, []),
    "OPT": (ENCODER, TEXT, []),
    "Bloom": (WORDS, TEXT, ["BloomAttention"]),
    "Mistral": (
        GROUPED,
        TEXT,
        ["CachedMistralAttention", "MistralLayerNormalization", "RotaryEmbedding"],
    ),
    "Llama": (
        GROUPED,
        TEXT,
        ["LlamaAttention", "LlamaLayerNorm", "LlamaRotaryEmbedding"],
    ),
    "Gemma": (
        GROUPED | {"head_dim": 4},
        TEXT,
        ["CachedGemmaAttention", "RMSNormalization", "RotaryEmbedding"],
    ),
    "Bart": (ENCODER, PAIR, []),
    "Whisper": (
        WORDS
        | {
            "num_mels": 8,
            "max_encoder_sequence_length": 8,
            "max_decoder_sequence_length": 8,
        },
        SPEECH,
        [],
    ),
    "ViT": (
        {
            "image_shape": (16, 16, 3),
            "patch_size": 8,
            "num_layers": 1,
            "num_heads": 2,
            "hidden_dim": 8,
            "mlp_dim": 16,
        },
        IMAGES,
        [],
    ),
}
FAST = ("Bert", "GPT2", "Mistral")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in BACKBONES
    ],
)
def test_what_is_left_is_told_of(name):
    models = pytest.importorskip("keras_hub", reason="needs keras-hub").models
    arguments, inputs, left = BACKBONES[name]
    backbone = getattr(models, f"{name}Backbone")
    assert_family(functools.partial(backbone, **arguments), inputs, left)
