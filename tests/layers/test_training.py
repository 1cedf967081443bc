"""Models of these layers, trained; and where the layers do not apply."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_mp
from keras_mp import layers
from keras_mp.layers import precision


def dense_model():
    return [layers.Dense(8, activation="relu"), layers.Dense(1)]


def sequence_model():
    return [
        keras.layers.Reshape((3, 2)),
        layers.LSTM(4, return_sequences=True),
        layers.GRU(4),
        layers.Dense(1),
    ]


def image_model():
    return [
        keras.layers.Reshape((3, 2, 1)),
        layers.Conv2D(4, 2),
        keras.layers.Flatten(),
        layers.Dense(1),
    ]


@pytest.mark.parametrize(
    ("make", "policy", "jit"),
    [
        (dense_model, "mixed_float16", True),
        (dense_model, "float16", False),
        (sequence_model, "mixed_float16", False),
        (image_model, "mixed_float16", False),
    ],
)
def test_a_wrapped_optimizer_trains(make, policy, jit):
    keras.config.set_dtype_policy(policy)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (16, 6)).astype("float32")
    y = np.sum(x, axis=1, keepdims=True) / 4
    model = keras.Sequential([keras.Input((6,)), *make()])
    optimizer = keras_mp.wrap(keras.optimizers.Adam(0.02))
    model.compile(optimizer, "mse", jit_compile=jit)
    history = model.fit(x, y, batch_size=16, epochs=12, verbose=0).history["loss"]
    assert np.all(np.isfinite(history))
    assert history[-1] < history[0] / 2
    assert int(optimizer.skipped_steps) == 0


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(dtype="mixed_float16")
        self.heads = layers.MultiHeadAttention(2, 2, dtype="mixed_float16")
        self.out = layers.Dense(1, dtype="mixed_float16")

    def call(self, x):
        return self.out(self.heads(x, x, use_causal_mask=True))


def test_a_subclassed_model_trains_at_changing_batch_sizes():
    model = Subclassed()
    model.compile(keras_mp.wrap("sgd"), "mse", jit_compile=False)
    x = np.random.default_rng(0).uniform(-1, 1, (7, 5, 3)).astype("float32")
    y = np.ones((7, 5, 1), "float32")
    losses = model.fit(x, y, batch_size=4, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_a_saved_model_loads_where_keras_mp_is_imported(tmp_path):
    path = tmp_path / "model.keras"
    model = keras.Sequential([keras.Input((5, 4)), layers.LSTM(3), layers.Dense(1)])
    model.save(path)
    code = f"""
import keras, keras_mp, numpy
model = keras.models.load_model({str(path)!r})
numpy.save({str(tmp_path / "y.npy")!r}, model(numpy.ones((1, 5, 4))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "y.npy")
    np.testing.assert_array_equal(found, model(np.ones((1, 5, 4))))


def test_on_two_replicas(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3, 2)),
                layers.LSTM(2, dtype="mixed_float16"),
                layers.Dense(1),
            ]
        )
        model.compile(keras_mp.wrap("sgd"), "mse")
    x, y = np.ones((4, 3, 2), "float32"), np.ones((4, 1), "float32")
    losses = model.fit(x, y, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]


@pytest.fixture
def another_backend(monkeypatch):
    precision._warn_of_backend.cache_clear()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    yield
    precision._warn_of_backend.cache_clear()


def test_on_another_backend_it_is_the_layer_of_keras(another_backend):
    x = np.float16(np.eye(3))
    results = []
    for package in (keras.layers, layers):
        keras.utils.set_random_seed(0)
        layer = package.Dense(2, dtype="mixed_float16")
        if package is layers:
            with pytest.warns(UserWarning, match="backend='jax'"):
                layer(x)
        results.append(layer(x).numpy())  # and no second warning, which is an error
    np.testing.assert_array_equal(*results)
