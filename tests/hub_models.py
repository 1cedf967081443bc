"""Tiny models of families of keras-hub: their backbones, and a task to train."""

import keras
import numpy as np
import pytest

SAMPLES, LENGTH, WORDS, CLASSES = 2, 8, 10, 3
TOKENS = np.random.default_rng(0).integers(1, WORDS, (SAMPLES, LENGTH)).astype("int32")
TEXT = {"token_ids": TOKENS, "padding_mask": np.ones_like(TOKENS)}
SEGMENTS = TEXT | {"segment_ids": 0 * TOKENS}
PAIR = {
    f"{part}_{name}": inputs
    for part in ("encoder", "decoder")
    for name, inputs in TEXT.items()
}
SPEECH = {
    "encoder_features": np.ones((SAMPLES, 8, 8), "float32"),
    "decoder_token_ids": TOKENS,
    "decoder_padding_mask": np.ones_like(TOKENS),
}
IMAGES = np.random.default_rng(1).normal(size=(SAMPLES, 16, 16, 3)).astype("float32")
CAPTIONED = {"images": IMAGES, "token_ids": TOKENS}

SIZES = {"num_layers": 1, "hidden_dim": 8}
BLOCK = SIZES | {"intermediate_dim": 16}
HEADS = BLOCK | {"num_heads": 2}
VOCABULARY = {"vocabulary_size": WORDS}
ENCODER = HEADS | VOCABULARY | {"max_sequence_length": LENGTH}
GROUPED = BLOCK | VOCABULARY | {"num_query_heads": 2, "num_key_value_heads": 1}
GEMMA = GROUPED | {"head_dim": 4}
PATCHES = {"image_shape": IMAGES.shape[1:], "patch_size": 8}
LENGTHS = {"max_encoder_sequence_length": 8, "max_decoder_sequence_length": LENGTH}
# Backbone of keras-hub: its arguments, and its inputs.
BACKBONES = {
    "Albert": (ENCODER | {"embedding_dim": 4}, SEGMENTS),
    "Bart": (ENCODER, PAIR),
    "Bert": (ENCODER, SEGMENTS),
    "Bloom": (HEADS | VOCABULARY, TEXT),
    "DebertaV3": (ENCODER | {"bucket_size": 4}, TEXT),
    "DistilBert": (ENCODER, TEXT),
    "Falcon": (BLOCK | VOCABULARY | {"num_attention_heads": 2}, TEXT),
    "GPT2": (ENCODER, TEXT),
    "GPTNeoX": (ENCODER | {"rotary_percentage": 0.5}, TEXT),
    "Gemma": (GEMMA, TEXT),
    "Gemma3": (GEMMA | {"image_size": None}, TEXT),
    "Llama": (GROUPED, TEXT),
    "Mistral": (GROUPED, TEXT),
    "OPT": (ENCODER, TEXT),
    "Phi3": (GROUPED, TEXT),
    "Qwen": (GROUPED, TEXT),
    "Qwen3": (GEMMA, TEXT),
    "Roberta": (ENCODER, TEXT),
    "T5": (HEADS | VOCABULARY, PAIR),
    "ViT": (SIZES | PATCHES | {"num_heads": 2, "mlp_dim": 16}, IMAGES),
    "Whisper": (HEADS | VOCABULARY | LENGTHS | {"num_mels": 8}, SPEECH),
    "XLMRoberta": (ENCODER, TEXT),
}
# Backbone of an image and a text: the arguments of both encoders, and its own.
ENCODERS = {
    "CLIP": ({"embedding_dim": 8}, {"projection_dim": 8}),
    "SigLIP": ({"embedding_dim": 8, "projection_dim": 8}, {}),
}
# Other sizes and options of a family: its backbone, and more arguments.
VARIANTS = {
    "Gemma2": (
        "Gemma",
        {
            "use_post_ffw_norm": True,
            "use_post_attention_norm": True,
            "attention_logit_soft_cap": 50.0,
            "final_logit_soft_cap": 30.0,
        },
    )
}
FAMILIES = sorted({*BACKBONES, *ENCODERS, *VARIANTS})


def hub_models():
    return pytest.importorskip("keras_hub", reason="needs keras-hub").models


def make_backbone(name):
    """Returns a tiny backbone of a family, under the global dtype policy."""
    models = hub_models()
    if name in ENCODERS:
        return _of_images_and_texts(models, name)
    name, options = VARIANTS.get(name, (name, {}))
    arguments, _ = BACKBONES[name]
    return getattr(models, f"{name}Backbone")(**arguments, **options)


def _of_images_and_texts(models, name):
    of_text, of_both = ENCODERS[name]
    vision = getattr(models, f"{name}VisionEncoder")(**HEADS, **PATCHES)
    text = getattr(models, f"{name}TextEncoder")(**ENCODER, **of_text)
    return getattr(models, f"{name}Backbone")(vision, text, **of_both)


def inputs_of(name):
    """Returns the inputs of a backbone."""
    if name in ENCODERS:
        return CAPTIONED
    name, _ = VARIANTS.get(name, (name, {}))
    return BACKBONES[name][1]


def make_task(name, optimizer="adam"):
    """Returns a tiny model of a family, compiled, with its inputs and its targets.

    It is the language model or classifier of keras-hub, where there is one, or else a
    backbone with a layer on top.
    """
    backbone, x = make_backbone(name), inputs_of(name)
    model = _with_task_of_hub(VARIANTS.get(name, (name,))[0], backbone)
    if model is None and name in ENCODERS:
        model = keras.Model(backbone.input, backbone.output["vision_logits"])
    elif model is None:
        model = keras.Model(backbone.input, _logits(backbone.output))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    y = TOKENS if len(model.output.shape) == 3 else np.arange(SAMPLES)
    return model, x, y


def _with_task_of_hub(name, backbone):
    models = hub_models()
    if hasattr(models, f"{name}ImageClassifier"):
        classifier = getattr(models, f"{name}ImageClassifier")
        return classifier(backbone=backbone, num_classes=CLASSES, preprocessor=None)
    for task in ("CausalLM", "Seq2SeqLM"):
        if hasattr(models, f"{name}{task}"):
            language_model = getattr(models, f"{name}{task}")
            return language_model(backbone=backbone, preprocessor=None)
    return None


def _logits(outputs):
    if isinstance(outputs, dict):
        outputs = outputs.get("decoder_sequence_output", outputs.get("sequence_output"))
    return keras.layers.Dense(WORDS, name="logits")(outputs)
