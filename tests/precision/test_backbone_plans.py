"""Plans for keras-hub's families of images and speech whose embeddings are large.

The stream of residuals begins with numbers up to a million. The norms that read it
bring them back, so that FP32 trains such a model as any other.
"""

import keras
import numpy as np
import pytest
from hub_models import (
    CAPTIONED,
    HEADS,
    IMAGES,
    LENGTH,
    PATCHES,
    SAMPLES,
    TOKENS,
    WORDS,
    hub_models,
    make_backbone,
)

import keras_mp

L = keras.layers
STEPS, CLASSES = 30, 3
LARGE = 1e5
BLOCKS = HEADS | PATCHES
SWIN = {
    "image_shape": IMAGES.shape[1:],
    "embed_dim": 8,
    "depths": (1, 1),
    "num_heads": (2, 2),
    "window_size": 2,
    "drop_path": 0.0,  # its draws differ in FP16
}
WINDOWS = {
    "hidden_size": 8,
    "num_heads": 2,
    "num_layers": 2,
    "intermediate_dim": 16,
    "global_attention_layer_indices": [1],
    "image_shape": IMAGES.shape[1:],
    "patch_size": 4,
    "num_output_channels": 8,
    "window_size": 2,
}
SPEECH = {
    "vocabulary_size": WORDS,
    "filter_dim": 8,
    "encoder_num_layers": 1,
    "decoder_num_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 16,
    "encoder_num_heads": 2,
    "decoder_num_heads": 2,
}
LATENTS = {
    "input_channels": 8,
    "hidden_size": 16,
    "mlp_ratio": 2.0,
    "num_heads": 2,
    "depth": 1,
    "depth_single_blocks": 1,
    "axes_dim": [2, 2, 4],
    "theta": 10_000,
    "use_bias": True,
    "image_shape": (LENGTH, 8),
    "text_shape": (LENGTH, 8),
    "image_ids_shape": (LENGTH, 3),
    "text_ids_shape": (LENGTH, 3),
    "y_shape": (8,),
}
RANDOM = np.random.default_rng(2)


def drawn(*shape):
    return RANDOM.normal(size=(SAMPLES, *shape)).astype("float32")


IDS = np.tile(np.arange(LENGTH, dtype="float32")[None, :, None], (SAMPLES, 1, 3))
INPUTS = {
    "CLIP": CAPTIONED,
    "DINOV3": {"pixel_values": IMAGES},
    "Flux": {
        "image": LARGE * drawn(LENGTH, 8),
        "image_ids": IDS,
        "text": drawn(LENGTH, 8),
        "text_ids": IDS,
        "timesteps": np.ones(SAMPLES, "float32"),
        "y": drawn(8),
    },
    "Moonshine": {
        "encoder_input_values": drawn(1024, 1),
        "encoder_padding_mask": np.ones((SAMPLES, 1024), "bool"),
        "decoder_token_ids": TOKENS,
        "decoder_padding_mask": np.ones(TOKENS.shape, "bool"),
    },
    "SigLIP": CAPTIONED,
}
# Backbone: its arguments, or None for hub_models's; which weights are made large, None
# where its inputs are; and the share of FP16. A convolution that returns large numbers
# is FP32.
BACKBONES = {
    "CLIP": (None, "position_embedding", 0.95),
    "DINOV3": (BLOCKS | {"use_mask_token": False}, "patch", 0.45),
    "DeiT": (BLOCKS, "position_embedding", 0.95),
    "Flux": (LATENTS, None, 0.5),
    "Moonshine": (SPEECH, "token_embedding", 0.5),
    "SigLIP": (None, "patch_embedding", 0.5),
    "SwinTransformer": (SWIN, "patch_embedding", 0.8),
    "ViT": (None, "position_embedding", 0.95),
    "ViTDet": (WINDOWS, "pos_embed", 0.5),
}


def model(name, policy):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    arguments, large, _ = BACKBONES[name]
    if arguments is None:
        backbone = make_backbone(name)
    else:
        backbone = getattr(hub_models(), f"{name}Backbone")(**arguments)
    draw = np.random.default_rng(1)
    for weight in backbone.weights if large else ():
        if large in weight.path and "ids" not in weight.path:
            weight.assign(LARGE * draw.normal(size=weight.shape))
    y = backbone.output
    if isinstance(y, dict) and "vision_logits" in y:
        y = y["vision_logits"]
    else:
        y = y["decoder_sequence_output"] if isinstance(y, dict) else y
        y = L.Reshape((-1, y.shape[-1]))(y)  # patches may stand in rows
        y = L.GlobalAveragePooling1D()(y)
        y = L.Dense(CLASSES, dtype="float32", name="head")(L.LayerNormalization()(y))
    each = keras.Model(backbone.input, y)
    optimizer = keras_mp.wrap(keras.optimizers.Adam(1e-3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    each.compile(optimizer, loss, jit_compile=False)
    return each


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_large_embeddings_train_as_in_fp32(name):
    x = INPUTS.get(name, IMAGES)
    y = np.arange(len(IMAGES))
    in_fp32, planned = model(name, "float32"), model(name, "mixed_float16")
    assert keras_mp.find_overflow(planned, x, y) is not None
    plan = keras_mp.plan_precision(planned, x, y)
    assert plan.float16_share >= BACKBONES[name][2]
    assert plan.gradient_error <= 0.02 and not plan.notes
    plan.apply(planned)
    expected = [float(in_fp32.train_on_batch(x, y)) for _ in range(STEPS)]
    found = [float(planned.train_on_batch(x, y)) for _ in range(STEPS)]
    assert expected[-1] < 0.9 * expected[0]  # it learns
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01)
    assert int(planned.optimizer.skipped_steps) == 0
