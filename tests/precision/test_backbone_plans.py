"""Plans for keras-hub's families of images whose embeddings are large.

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
    PATCHES,
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
INPUTS = {
    "CLIP": CAPTIONED,
    "DINOV3": {"pixel_values": IMAGES},
    "SigLIP": CAPTIONED,
}
# Backbone: its arguments, or None for hub_models's; what is made large; and the share
# of FP16. A convolution that returns large numbers is FP32. Flux and Moonshine of
# keras-hub 0.32 do not run under mixed_float16.
BACKBONES = {
    "CLIP": (None, "position_embedding", 0.95),
    "DINOV3": (BLOCKS | {"use_mask_token": False}, "patch", 0.45),
    "DeiT": (BLOCKS, "position_embedding", 0.95),
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
    for weight in backbone.weights:
        if large in weight.path and "ids" not in weight.path:
            weight.assign(LARGE * draw.normal(size=weight.shape))
    y = backbone.output
    if isinstance(y, dict) and "vision_logits" in y:
        y = y["vision_logits"]
    else:
        y = L.Reshape((-1, y.shape[-1]))(y)  # patches may stand in rows
        y = L.GlobalAveragePooling1D()(y)
        y = L.Dense(CLASSES, dtype="float32", name="head")(L.LayerNormalization()(y))
    each = keras.Model(backbone.input, y)
    optimizer = keras_mp.wrap(keras.optimizers.Adam(1e-3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    each.compile(optimizer, loss, jit_compile=False)
    return each


@pytest.mark.xslow
@pytest.mark.parametrize("name", BACKBONES)
def test_large_embeddings_train_as_in_fp32(name):
    x = INPUTS.get(name, IMAGES)
    in_fp32, planned = model(name, "float32"), model(name, "mixed_float16")
    check(in_fp32, planned, x, np.arange(len(IMAGES)), BACKBONES[name][2])


def check(in_fp32, planned, x, y, share):
    """Plans a model, and trains it beside one that computes in FP32."""
    assert keras_mp.find_overflow(planned, x, y) is not None
    plan = keras_mp.plan_precision(planned, x, y)
    assert plan.float16_share >= share
    assert plan.gradient_error <= 0.02 and not plan.notes
    plan.apply(planned)
    expected = [float(in_fp32.train_on_batch(x, y)) for _ in range(STEPS)]
    found = [float(planned.train_on_batch(x, y)) for _ in range(STEPS)]
    assert expected[-1] < 0.9 * expected[0]  # it learns
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01)
    assert int(planned.optimizer.skipped_steps) == 0


class Autoencoder(L.Layer):
    """What Stable Diffusion's backbone asks of one: nothing is trained on it here."""

    scale, shift = 1.0, 0.0

    def encode(self, images):
        return keras.ops.repeat(images[:, ::8, ::8], 2, axis=-1)[..., :4]

    def decode(self, latents, training=None):
        return latents[..., :3]


def diffuser(policy):
    """The Transformer of a Stable Diffusion 3, with large embeddings of positions."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    models = hub_models()
    encoders = [
        models.CLIPTextEncoder(32, 8, 8, 2, 2, 16, intermediate_output_index=0)
        for _ in range(2)
    ]
    each = models.StableDiffusion3Backbone(
        mmdit_patch_size=2,
        mmdit_hidden_dim=16,
        mmdit_num_layers=2,
        mmdit_num_heads=2,
        mmdit_position_size=8,
        mmdit_qk_norm="rms_norm",
        mmdit_dual_attention_indices=(0,),
        vae=Autoencoder(),
        clip_l=encoders[0],
        clip_g=encoders[1],
        latent_channels=4,
        image_shape=(64, 64, 3),
    ).diffuser
    (positions,) = [w for w in each.weights if "position_embedding" in w.path]
    draw = np.random.default_rng(1)
    positions.assign(LARGE * draw.normal(size=positions.shape))
    each.compile(keras_mp.wrap(keras.optimizers.Adam(1e-3)), "mse", jit_compile=False)
    return each


@pytest.mark.xslow
def test_a_diffuser_trains_as_in_fp32():
    draw = np.random.default_rng(0)
    latents, noise = draw.normal(size=(2, 2, 8, 8, 4)).astype("float32")
    x = {
        "latent": latents,
        "context": draw.normal(size=(2, 16, 4096)).astype("float32"),
        "pooled_projection": draw.normal(size=(2, 16)).astype("float32"),
        "timestep": np.array([[3.0], [700.0]], "float32"),
    }
    check(diffuser("float32"), diffuser("mixed_float16"), x, noise, 0.9)
