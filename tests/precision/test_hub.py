"""`convert` on backbones of keras-hub, as they come, with tiny random configs."""

import functools

import pytest
from families import assert_family
from hub_models import inputs_of, make_backbone

pytestmark = pytest.mark.slow

# Backbone: the classes whose own code computes products or sums: `keras_mp` has no
# counterpart of them, and says so.
BACKBONES = {
    "Bert": [],
    "Roberta": [],
    "DistilBert": [],
    "XLMRoberta": [],
    "Albert": [],
    "DebertaV3": ["DisentangledSelfAttention"],
    "GPT2": [],
    "OPT": [],
    "Bloom": ["BloomAttention"],
    "Mistral": ["CachedMistralAttention", "RotaryEmbedding"],
    "Llama": ["LlamaAttention", "LlamaRotaryEmbedding"],
    "Gemma": ["CachedGemmaAttention", "RotaryEmbedding"],
    "Bart": [],
    "Whisper": [],
    "ViT": [],
}
FAST = ("Bert", "GPT2", "Mistral")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.xslow)
        for name in BACKBONES
    ],
)
def test_what_is_left_is_told_of(name):
    make = functools.partial(make_backbone, name)
    assert_family(make, inputs_of(name), BACKBONES[name])
