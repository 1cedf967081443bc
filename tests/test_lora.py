"""LoRA in a run that is stopped: what each kind of file keeps of it."""

import keras
import numpy as np
import pytest

import keras_mp

pytestmark = pytest.mark.slow

x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
y = x[:, :1] * x[:, 1:2]


def make_model():
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float16")
    hidden = keras.layers.Dense(8, "relu", name="hidden")
    out = keras.layers.Dense(1, dtype="float32", name="out")
    model = keras.Sequential([keras.Input((4,)), hidden, out], name="model")
    hidden.enable_lora(2)
    model.compile(keras_mp.wrap(keras.optimizers.Adam(1e-2)), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, epochs, *callbacks, initial_epoch=0):
    model.fit(
        x,
        y,
        initial_epoch=initial_epoch,
        epochs=epochs,
        shuffle=False,
        callbacks=callbacks,
        verbose=0,
    )
    return model


def test_checkpoints_resume_bit_for_bit(tmp_path):
    checkpoints = keras_mp.Checkpoints(tmp_path)
    train(make_model(), 2, checkpoints)
    resumed, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path)
    done = checkpoints.restore(resumed)
    assert done == 2
    train(resumed, 4, checkpoints, initial_epoch=done)
    whole = train(make_model(), 4)
    for one, other in zip(resumed.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_keras_merges_lora_into_the_weights_that_it_saves(tmp_path):
    model = train(make_model(), 2)
    model.save_weights(tmp_path / "merged.weights.h5")
    loaded = make_model()
    loaded.load_weights(tmp_path / "merged.weights.h5")
    hidden = loaded.get_layer("hidden")
    assert np.any(model.get_layer("hidden").lora_kernel_b.numpy())
    assert not np.any(hidden.lora_kernel_b.numpy())
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2
