"""LoRA with keras-hub: FP16, int8 and int4 train as FP32, and what int8 needs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras_hub", reason="needs keras-hub")

import lora_keras_hub

pytestmark = [
    pytest.mark.slow,
    # Keras warns of each layer that has no weights to quantize.
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method"),
    pytest.mark.filterwarnings("ignore:What `convert` leaves:UserWarning"),
]


@pytest.mark.xslow
def test_16_bits_train_as_fp32(capsys):
    lora_keras_hub.main(["--steps=20", "--epochs=1"])
    _, *rows = capsys.readouterr().out.splitlines()
    sizes, before, after = np.array([row.split()[-3:] for row in rows], float).T
    assert (after < before).all()
    # Weights of four bits err by up to 1 / 14 of the largest of their column.
    np.testing.assert_allclose(after, after[0], rtol=0.03)
    assert (sizes[1:] < 0.6 * sizes[0]).all()


def gradients(quantization=None, **options):
    """Returns the gradients of LoRA's matrices in FP32, in one array."""
    keras.utils.clear_session(free_memory=False)
    model = lora_keras_hub.make_model("float32")
    if quantization:
        model.quantize(quantization, **options)
    model.backbone.enable_lora(4)
    random = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(random.normal(0, 0.1, weight.shape))
    tokens = random.integers(1, 128, (8, 17))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        value = loss(tokens[:, 1:], model(lora_keras_hub.inputs_of(tokens)))
    found = tape.gradient(value, model.trainable_variables)
    return np.concatenate([np.ravel(gradient) for gradient in found])


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


WEIGHTS_ONLY = {
    "config": keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
}
NO_EMBEDDING = {"filters": lora_keras_hub.is_not_embedding}


def test_an_int8_embedding_returns_logits_without_a_gradient():
    """Keras 3.15.1. If this fails, docs/guides/lora_and_keras_hub.md changes."""
    assert cosine(gradients("int8"), gradients()) < 0.5


@pytest.mark.parametrize(
    ("quantization", "options"),
    [("int8", NO_EMBEDDING), ("int8", WEIGHTS_ONLY), ("int4", NO_EMBEDDING)],
    ids=["int8", "int8 weights", "int4"],
)
def test_gradients_through_quantized_layers_are_right(quantization, options):
    assert cosine(gradients(quantization, **options), gradients()) > 0.98
