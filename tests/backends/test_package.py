"""The package without TensorFlow: what works, and what says that it needs it."""

import importlib
import sys

import keras
import numpy as np
import pytest
from backends.problems import value

import keras_mp
from keras_mp import layers

VECTORS = np.linspace(-1, 1, 16, dtype="float32").reshape(2, 8)
SEQUENCES, IMAGES, VOLUMES = (
    VECTORS.reshape(shape) for shape in ((2, 2, 4), (2, 2, 2, 2), (2, 2, 2, 2, 1))
)
STATE = np.zeros((2, 3), "float32")
FLOAT32 = {"dtype": "float32"}  # PyTorch has no orthogonal matrices of 16 bits
# The constructor's arguments, and what the layer is called with.
LAYERS = {
    "Activation": ({"activation": "softmax"}, VECTORS),
    "AdaptiveAveragePooling1D": ({"output_size": 2}, SEQUENCES),
    "AdaptiveAveragePooling2D": ({"output_size": 2}, IMAGES),
    "AdaptiveAveragePooling3D": ({"output_size": 1, "dtype": "float32"}, VOLUMES),
    "Add": ({}, [VECTORS, VECTORS, VECTORS]),
    "AdditiveAttention": ({}, [SEQUENCES, SEQUENCES]),
    "Attention": ({}, [SEQUENCES, SEQUENCES]),
    "Average": ({}, [VECTORS, VECTORS]),
    "AveragePooling1D": ({"pool_size": 2}, SEQUENCES),
    "AveragePooling2D": ({"pool_size": 2}, IMAGES),
    # PyTorch has none of 16 bits on a CPU.
    "AveragePooling3D": ({"pool_size": 2, "dtype": "float32"}, VOLUMES),
    "BatchNormalization": ({}, VECTORS),
    "Conv1D": ({"filters": 2, "kernel_size": 2}, SEQUENCES),
    "Conv1DTranspose": ({"filters": 2, "kernel_size": 2}, SEQUENCES),
    "Conv2D": ({"filters": 2, "kernel_size": 2}, IMAGES),
    "Conv2DTranspose": ({"filters": 2, "kernel_size": 2}, IMAGES),
    "Conv3D": ({"filters": 2, "kernel_size": 2}, VOLUMES),
    "Conv3DTranspose": ({"filters": 2, "kernel_size": 2}, VOLUMES),
    "ConvLSTM1D": ({"filters": 2, "kernel_size": 1} | FLOAT32, IMAGES),
    "ConvLSTM2D": ({"filters": 2, "kernel_size": 1} | FLOAT32, VOLUMES),
    "ConvLSTM3D": ({"filters": 2, "kernel_size": 1} | FLOAT32, VOLUMES[..., None]),
    "Dense": ({"units": 3}, VECTORS),
    "DepthwiseConv1D": ({"kernel_size": 2}, SEQUENCES),
    "DepthwiseConv2D": ({"kernel_size": 2}, IMAGES),
    "Dot": ({"axes": 1}, [VECTORS, VECTORS]),
    "EinsumDense": ({"equation": "ab,bc->ac", "output_shape": 3}, VECTORS),
    "Embedding": ({"input_dim": 3, "output_dim": 2}, np.array([[0, 2]])),
    "GRU": ({"units": 3}, SEQUENCES),
    "GRUCell": ({"units": 3}, VECTORS, [STATE]),
    "GlobalAveragePooling1D": ({}, SEQUENCES),
    "GlobalAveragePooling2D": ({}, IMAGES),
    "GlobalAveragePooling3D": ({}, VOLUMES),
    "GroupNormalization": ({"groups": 2}, SEQUENCES),
    "GroupQueryAttention": (
        {"head_dim": 2, "num_query_heads": 2, "num_key_value_heads": 1},
        SEQUENCES,
        SEQUENCES,
    ),
    "LSTM": ({"units": 3}, SEQUENCES),
    "LSTMCell": ({"units": 3}, VECTORS, [STATE, STATE]),
    "LayerNormalization": ({}, VECTORS),
    "MultiHeadAttention": ({"num_heads": 2, "key_dim": 2}, SEQUENCES, SEQUENCES),
    "Normalization": ({"mean": 1.0, "variance": 4.0}, VECTORS),
    "RMSNormalization": ({}, VECTORS),
    "ReversibleEmbedding": ({"input_dim": 3, "output_dim": 2}, np.array([[0, 2]])),
    "SeparableConv1D": ({"filters": 2, "kernel_size": 2}, SEQUENCES),
    "SeparableConv2D": ({"filters": 2, "kernel_size": 2}, IMAGES),
    "SimpleRNN": ({"units": 3}, SEQUENCES),
    "SimpleRNNCell": ({"units": 3}, VECTORS, [STATE]),
    "Softmax": ({}, VECTORS),
    "SpectralNormalization": ({"layer": lambda: keras.layers.Dense(3)}, VECTORS),
    "UnitNormalization": ({}, VECTORS),
}


def test_nothing_has_imported_tensorflow():
    assert sys.modules["tensorflow"] is None
    assert not [name for name in sys.modules if name.startswith("tensorflow.")]


def test_star_import_gives_what_works_here():
    scope = {}
    exec("from keras_mp import *", scope)
    assert set(scope) - {"__builtins__"} == set(keras_mp.__all__)
    assert "ops" not in scope


@pytest.mark.parametrize(
    "use",
    [
        lambda: keras_mp.ops.fp16_gemm,
        lambda: importlib.import_module("keras_mp.ops"),
        lambda: importlib.import_module("keras_mp.ops.gemm"),
        lambda: importlib.import_module("keras_mp.command_line.info"),
        lambda: keras_mp.wrap("sgd", all_reduce_dtype="float16"),
        lambda: keras_mp.convert(keras.Sequential([keras.layers.Dense(1)])),
        lambda: keras_mp.LossScaleCallback(log_dir="logs"),
    ],
    ids=["attribute", "ops", "gemm", "info", "sums", "convert", "log_dir"],
)
def test_what_needs_tensorflow_says_so(use):
    with pytest.raises((ImportError, RuntimeError)) as caught:
        use()
    message = str(caught.value)
    assert "TensorFlow backend" in message
    assert f"Received: backend={keras.backend.backend()!r}" in message
    assert "KERAS_BACKEND=tensorflow" in message


def test_every_layer_has_a_case():
    assert sorted([*LAYERS, "Probe"]) == sorted(layers.__all__)  # Keras has no Probe


@pytest.mark.filterwarnings("ignore:The layers of keras_mp accumulate")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_as_that_of_keras(name):
    options, *arguments = LAYERS[name]
    options = {"dtype": "mixed_bfloat16"} | options
    results = []
    for package in (keras.layers, layers):
        keras.utils.set_random_seed(0)
        made = {k: v() if callable(v) else v for k, v in options.items()}
        layer = getattr(package, name)(**made)
        results.append([value(x) for x in keras.tree.flatten(layer(*arguments))])
    for expected, found in zip(*results, strict=True):
        assert found.dtype.name == layer.compute_dtype
        np.testing.assert_array_equal(found, expected, strict=True)
