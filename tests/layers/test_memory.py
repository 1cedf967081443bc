"""The tensors that layers keep for the backward pass, counted in a traced graph."""

import importlib.util
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from keras_mp import layers

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
EACH_POLICY = pytest.mark.parametrize("policy", ["mixed_float16", "float16"])


@pytest.fixture(scope="module")
def script():
    """The module benchmarks/held_bytes.py, which counts the bytes kept."""
    spec = importlib.util.spec_from_file_location(
        "held_bytes", BENCHMARKS / "held_bytes.py"
    )
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        spec.loader.exec_module(module)
    return module


@pytest.mark.xslow_except("ResNet-*-mixed_float16", "Transformer-*-float16")
@pytest.mark.slow_except("ResNet-*-mixed_float16")
@EACH_POLICY
@pytest.mark.parametrize(
    ("name", "shape"), [("ResNet", (2, 16, 16, 8)), ("Transformer", (8, 32, 32))]
)
def test_a_block_holds_at_most_0_55_of_its_bytes_in_fp32(script, name, shape, policy):
    block, _ = script.BLOCKS[name]
    for runs in script.RUNS:
        ours = script.held_by(block, shape, layers, policy, runs)
        theirs = script.held_by(block, shape, keras.layers, "float32", runs)
        assert script.total(ours) <= 0.55 * script.total(theirs)


SEQUENCES, IMAGES, VOLUMES = (2, 8, 4), (2, 8, 8, 4), (2, 4, 4, 4, 3)
SAME = {"kernel_size": 2, "padding": "same"}
CONVOLUTIONS = {
    "Conv1D": ({"filters": 5, "kernel_size": 2, "padding": "causal"}, SEQUENCES),
    "Conv2D": ({"filters": 5, "activation": "relu", **SAME}, IMAGES),
    "Conv2DTranspose": ({"filters": 5, **SAME}, IMAGES),
    "Conv3D": ({"filters": 5, **SAME}, VOLUMES),
    "DepthwiseConv2D": (SAME, IMAGES),
    "SeparableConv2D": ({"filters": 5, **SAME}, IMAGES),
}
OTHERS = {
    "AdaptiveAveragePooling1D": ({"output_size": 3}, SEQUENCES),
    "AdaptiveAveragePooling2D": ({"output_size": 3}, IMAGES),
    "AdaptiveAveragePooling3D": ({"output_size": 3}, VOLUMES),
    "AveragePooling1D": ({"pool_size": 2}, SEQUENCES),
    "AveragePooling2D": ({"pool_size": 2}, IMAGES),
    "AveragePooling3D": ({"pool_size": 2}, VOLUMES),
    "BatchNormalization": ({}, IMAGES),
    "GlobalAveragePooling1D": ({}, SEQUENCES),
    "GlobalAveragePooling2D": ({}, IMAGES),
    "GlobalAveragePooling3D": ({}, VOLUMES),
    "GroupNormalization": ({"groups": 2}, IMAGES),
    "LayerNormalization": ({}, IMAGES),
    "RMSNormalization": ({}, IMAGES),
    "Softmax": ({}, IMAGES),
    "UnitNormalization": ({}, IMAGES),
}


def fp32_of(held, size):
    """Returns the FP32 tensors of at least this size."""
    return [t for t in held if t.dtype == "float32" and t.bytes >= 4 * size]


@pytest.mark.slow_except("*-eager-float16")
@EACH_POLICY
@pytest.mark.parametrize(
    ("name", "runs"),
    [(name, runs) for name in (CONVOLUTIONS | OTHERS) for runs in ("eager", "graph")],
)
def test_a_layer_holds_no_fp32_tensor_of_its_size(script, name, runs, policy):
    options, shape = (CONVOLUTIONS | OTHERS)[name]
    layer = getattr(layers, name)(dtype=policy, **options)
    layer.build(shape)
    x = tf.TensorSpec(shape, "float16")
    held = script.held_tensors(layer, x, runs)
    assert not fp32_of(held, x.shape.num_elements())


def test_the_backward_pass_of_a_graph_does_not_convolve_again(script):
    layer = layers.Conv2D(5, 2, dtype="mixed_float16")
    layer.build(IMAGES)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, [x, *layer.trainable_variables])

    outputs = step.get_concrete_function(tf.TensorSpec(IMAGES, "float16")).outputs
    convolutions = [op for op in script.needed_by(outputs) if op.type == "Conv2D"]
    assert len(convolutions) == 1


@pytest.mark.slow_except("heads-float16")
@EACH_POLICY
@pytest.mark.parametrize(
    "layer",
    [
        lambda **dtype: layers.Attention(use_scale=True, **dtype),
        lambda **dtype: layers.Attention(score_mode="concat", **dtype),
        layers.AdditiveAttention,
        lambda **dtype: layers.MultiHeadAttention(1, 4, **dtype),
    ],
    ids=["dot", "concat", "additive", "heads"],
)
def test_attention_holds_no_fp32_scores(script, layer, policy):
    batch, length, size = 2, 8, 3
    x = keras.Input((length, size), batch_size=batch, dtype="float16")
    layer = layer(dtype=policy)
    heads = isinstance(layer, layers.MultiHeadAttention)
    model = keras.Model(x, layer(x, x) if heads else layer([x, x]))
    for runs in script.RUNS:
        held = script.held_tensors(model, tf.TensorSpec(x.shape, "float16"), runs)
        assert not fp32_of(held, batch * length * length)
