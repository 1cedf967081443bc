"""Models of these layers, trained; and where the layers do not apply."""

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


@pytest.mark.slow
@pytest.mark.xslow_except("dense_model-float16-*", "sequence_model-*", "image_model-*")
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


def residual_model(**options):
    """A convolution past which its input goes too, each with its normalization."""
    inputs = keras.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = skip = keras.layers.ReLU()(layers.BatchNormalization(momentum=0.5)(x))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.5, **options)(x)
    x = keras.layers.Add()([x, skip])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def images(number):
    """Noise, and stripes in every second image."""
    rng = np.random.default_rng(0)
    y = np.resize([0.0, 1.0], (number, 1)).astype("float32")
    stripes = np.resize([-1.0, 1.0], (6, 6, 1))
    x = rng.uniform(-1, 1, (number, 6, 6, 1)) + y[:, :, None, None] * stripes
    return x.astype("float32"), y


@pytest.mark.xslow_except("mixed_float16-True")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "jit"), [("mixed_float16", True), ("float16", False)]
)
def test_a_residual_model_trains_and_a_skipped_step_leaves_nothing(policy, jit):
    keras.config.set_dtype_policy(policy)
    model = residual_model()
    optimizer = keras_mp.wrap(keras.optimizers.Adam(0.02))
    model.compile(optimizer, "mse", jit_compile=jit)
    x, y = images(16)
    history = model.fit(x, y, batch_size=16, epochs=12, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2
    assert int(optimizer.skipped_steps) == 0
    before = model.get_weights()
    overflow = np.where(np.arange(16)[:, None, None, None] == 3, np.inf, x)
    model.fit(overflow, y, batch_size=16, verbose=0)
    assert int(optimizer.skipped_steps) == 1
    for weight, expected in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, expected, err_msg=weight.path)
    assert np.isfinite(model.evaluate(x, y, verbose=0))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(dtype="mixed_float16")
        self.heads = layers.MultiHeadAttention(2, 2, dtype="mixed_float16")
        self.out = layers.Dense(1, dtype="mixed_float16")

    def call(self, x):
        return self.out(self.heads(x, x, use_causal_mask=True))


@pytest.mark.slow
def test_a_subclassed_model_trains_at_changing_batch_sizes():
    model = Subclassed()
    model.compile(keras_mp.wrap("sgd"), "mse", jit_compile=False)
    x = np.random.default_rng(0).uniform(-1, 1, (7, 5, 3)).astype("float32")
    y = np.ones((7, 5, 1), "float32")
    losses = model.fit(x, y, batch_size=4, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_replica_without_examples_takes_part(strategy):
    # Of 5 examples in batches of 4, the last is one for the first replica alone.
    keras.config.set_dtype_policy("mixed_float16")
    with strategy.scope():
        model = residual_model(synchronized=True)
        model.compile(keras_mp.wrap("sgd"), "mse")
    before = model.get_weights()
    x, y = images(5)
    losses = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    assert model.optimizer.skipped_steps.numpy() == 0
    for weight, old in zip(model.weights, before, strict=True):
        for copy in strategy.experimental_local_results(weight.value):
            assert np.all(np.isfinite(copy)), weight.path
            assert np.any(copy != old), weight.path


@pytest.mark.xslow_except("Flatten-mixed_float16")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
@pytest.mark.parametrize("end", ["Flatten", "GlobalAveragePooling2D"])
def test_a_replica_without_examples_convolves(end, policy, strategy):
    # Of 9 examples in batches of 8, the last is one for the first replica alone.
    keras.config.set_dtype_policy(policy)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.Conv2DTranspose(2, 2),
                getattr(keras.layers, end)(),
                layers.Dense(1, dtype="float32"),
            ]
        )
        model.compile(keras_mp.wrap("sgd"), "mse")
    before = model.get_weights()
    x, y = images(9)
    losses = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    assert model.optimizer.skipped_steps.numpy() == 0
    for weight, old in zip(model.weights, before, strict=True):
        for copy in strategy.experimental_local_results(weight.value):
            assert np.any(copy != old), weight.path
    assert model.predict(x, batch_size=8, verbose=0).shape == (9, 1)


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
