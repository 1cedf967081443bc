"""`convert` on a model in training: normalizations get FP32 weights with all state."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers
from stored_forms import FORMS

import keras_mp

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X[:, :1]


def network():
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float16")
    layers = [
        keras.layers.Dense(8, "tanh", name="dense"),
        keras.layers.LayerNormalization(name="norm"),
        keras.layers.Dense(1, name="out"),
    ]
    return keras.Sequential([keras.Input((4,)), *layers])


def adamw(**options):
    return optimizers.AdamW(0.01, weight_decay=0.05, **options)


def without_decay_of_norms():
    optimizer = adamw()
    optimizer.exclude_from_weight_decay(var_names=["gamma", "beta"])
    return optimizer


def multi():
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(adamw(), {".*norm.*": optimizers.SGD(0.1, 0.9)})
    )


CASES = {
    "adamw": (adamw, {}),
    "excluded from decay": (without_decay_of_norms, {}),
    "average": (lambda: adamw(use_ema=True, ema_overwrite_frequency=3), {}),
    "accumulation": (lambda: adamw(gradient_accumulation_steps=2), {}),
    **{form: (adamw, arguments) for form, arguments in FORMS.items()},
}


def compiled(model, inner, forms, **options):
    wrapped = keras_mp.wrap(inner(), **{"loss_scale": 8.0, **forms})
    model.compile(wrapped, "mse", **options)
    return model


def fit(model, epochs=1):
    model.fit(X, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)


def state(model):
    """Masters and what the optimizer saves, by the shape of its entries."""
    store = {}
    model.optimizer.save_own_variables(store)
    return [np.asarray(array) for array in store.values()]


def assert_equal(found, expected):
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.slow
@pytest.mark.xslow_except("adamw-graph", "accumulation-graph", "remainders-eager")
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_all_state_stays(name, mode):
    options = {
        "eager": {"run_eagerly": True},
        "graph": {"jit_compile": False},
        "xla": {"jit_compile": True},
    }[mode]
    model = compiled(network(), *CASES[name], **options)
    fit(model, 3)
    before, counts = state(model), len(model.optimizer.variables)
    keras_mp.convert(model)
    assert_equal(state(model), before)
    norm, optimizer = model.get_layer("norm"), model.optimizer
    assert norm.gamma.dtype == norm.beta.dtype == "float32"
    masters = [id(each) for each in optimizer.master_weights]
    assert id(norm.gamma) in masters and id(norm.beta) in masters
    of_masters = 0 if CASES[name][1].get("masters", "") is None else 2
    assert counts - len(optimizer.variables) == of_masters
    gamma = norm.gamma.numpy()
    fit(model, 2)
    assert np.all(norm.gamma.numpy() != gamma)
    assert int(optimizer.skipped_steps) == 0


@pytest.mark.slow
def test_the_next_step_is_that_of_a_model_converted_before():
    """Adam in FP32 for the normalization, from the same state: the same bits."""
    late, early = (compiled(network(), adamw, {}) for _ in range(2))
    keras_mp.convert(early)
    early.optimizer.build(early.trainable_variables)
    fit(late, 3)
    keras_mp.convert(late)
    store = {}
    late.optimizer.save_own_variables(store)
    early.set_weights(late.get_weights())
    early.optimizer.load_own_variables(store)
    for model in (late, early):
        fit(model, 2)
    assert_equal(state(late), state(early))


def test_a_multi_optimizer_knows_the_new_weight():
    model = compiled(network(), multi, {}, run_eagerly=True)
    fit(model, 3)
    gamma, slots = model.get_layer("norm").gamma.numpy(), state(model)
    keras_mp.convert(model)
    assert_equal(state(model), slots)
    fit(model)
    assert np.all(model.get_layer("norm").gamma.numpy() != gamma)


def test_a_checkpoint_of_tensorflow_is_saved_and_restored(tmp_path):
    model = compiled(network(), adamw, {}, run_eagerly=True)
    fit(model, 3)
    keras_mp.convert(model)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(tmp_path / "checkpoint")
    before = state(model)
    fit(model, 2)
    assert np.any(state(model)[-1] != before[-1])
    checkpoint.restore(path).assert_consumed()
    assert_equal(state(model), before)


@pytest.mark.slow
def test_a_loaded_model_is_planned_again(tmp_path):
    """What its layers make themselves is loaded in FP16, and no bit is lost."""
    model = compiled(network(), adamw, {})
    keras_mp.convert(model)
    fit(model, 3)
    model.save_weights(tmp_path / "file.weights.h5")
    loaded = compiled(network(), adamw, {})
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(tmp_path / "file.weights.h5")
    assert loaded.get_layer("norm").gamma.dtype == "float16"
    keras_mp.PrecisionPlan((), 1.0, 0.0, 4.0).apply(loaded)
    assert_equal(state(loaded), state(model))
    for each in (loaded, model):
        fit(each, 2)
    assert_equal(state(loaded), state(model))


@pytest.mark.slow
def test_a_frozen_normalization_has_no_state():
    model = network()
    model.get_layer("norm").trainable = False
    compiled(model, adamw, {})
    fit(model)
    before = state(model)
    keras_mp.convert(model)
    assert_equal(state(model), before)
    fit(model)


def test_replicas_are_refused(strategy):
    with strategy.scope():
        model = compiled(network(), adamw, {})
        model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"on one replica\. Received: 'sequential"):
        keras_mp.convert(model)
    assert model.get_layer("norm").gamma.dtype == "float16"
