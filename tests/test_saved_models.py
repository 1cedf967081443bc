"""Files of a converted model, and of one made plain again, loaded elsewhere."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_mp

LOAD = """
import numpy as np
import tensorflow as tf
x = tf.constant(np.load(r"{0}/x.npy"))
loaded = tf.saved_model.load(r"{0}/saved")
np.save(r"{0}/y.npy", loaded.serve(x))
"""
AS_A_LAYER = """
import keras
model = keras.saving.load_model(r"{0}/model.keras")
assert np.array_equal(model(x), np.load(r"{0}/eager.npy"))
layer = keras.layers.TFSMLayer(r"{0}/saved", call_endpoint="serve")
assert np.array_equal(layer(x), loaded.serve(x))
"""
PLAIN = """
import sys
assert not [name for name in sys.modules if name.startswith("keras_mp")]
"""


def run(code, path):
    done = subprocess.run(
        [sys.executable, "-c", code.format(path)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return np.load(path / "y.npy")


def model():
    """Layers with ops of the native library, of each kind."""
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((6, 6, 2), batch_size=2)
    x = keras.layers.AveragePooling2D(2)(keras.layers.Conv2D(4, 1)(inputs))
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Reshape((9, 4))(x)
    x = keras.layers.LayerNormalization()(keras.layers.MultiHeadAttention(2, 2)(x, x))
    x = keras.layers.Dense(3)(keras.layers.LSTM(3)(x))
    return keras.Model(inputs, keras.layers.Softmax()(x))


@pytest.mark.slow
@pytest.mark.xslow_except("converted")
@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (keras_mp.convert, "import keras_mp" + LOAD + AS_A_LAYER),
        (lambda model: keras_mp.to_keras(keras_mp.convert(model)), LOAD + PLAIN),
    ],
    ids=["converted", "plain"],
)
def test_a_saved_model_is_loaded_in_another_process(prepare, code, tmp_path):
    trained = prepare(model())
    x = np.random.default_rng(0).normal(size=(2, 6, 6, 2)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    expected = trained(x).numpy()
    np.save(tmp_path / "eager.npy", expected)
    trained.save(tmp_path / "model.keras")
    trained.export(tmp_path / "saved", verbose=False)
    found = run(code, tmp_path)
    assert found.dtype == expected.dtype == np.float16
    # One FP16 rounding of probabilities below 1, and of what a graph reorders before.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2 * 2**-11)
