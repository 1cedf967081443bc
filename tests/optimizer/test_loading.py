"""Files of weights between precisions, optimizers, and forms of optimizer state."""

import contextlib
import re

import keras
import numpy as np
import oracle
import pytest
from keras import optimizers

import keras_mp

X = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
FORMS = {
    "float32": {},
    "int8": {"state": keras_mp.Int8State(min_size=1, min_rank=1, exclude=())},
    "remainders": {"masters": "remainders"},
    "int8 remainders": {"masters": "int8_remainders"},
    "no masters": {"masters": None, "rounding": "stochastic"},
}


def adam():
    return optimizers.Adam(0.5)


def wrapped(inner=adam, form="float32"):
    rule = keras_mp.DynamicLossScale(8.0)
    return lambda: keras_mp.wrap(inner(), rule, **FORMS[form])


def loss_scaling():
    return optimizers.LossScaleOptimizer(adam(), initial_scale=4.0)


# Name: the dtype policy and the optimizer.
SAVED = {
    "adam, float32": ("float32", adam),
    "adam, mixed_float16": ("mixed_float16", adam),
    "adam, float16": ("float16", adam),
    "LossScaleOptimizer, mixed_float16": ("mixed_float16", loss_scaling),
    "wrapped, float32": ("float32", wrapped()),
    "wrapped, mixed_float16": ("mixed_float16", wrapped()),
    "wrapped, float16": ("float16", wrapped()),
    "wrapped, int8": ("float16", wrapped(form="int8")),
    "wrapped, int8 remainders": ("float16", wrapped(form="int8 remainders")),
    "wrapped, no masters": ("float16", wrapped(form="no masters")),
}
LOADED = {
    "float32": ("float32", wrapped()),
    "mixed_float16": ("mixed_float16", wrapped()),
    "float16": ("float16", wrapped()),
    "remainders": ("float16", wrapped(form="remainders")),
    "int8 remainders": ("float16", wrapped(form="int8 remainders")),
    "int8": ("float16", wrapped(form="int8")),
    "no masters": ("float16", wrapped(form="no masters")),
}
NOT_WRAPPED = "The file is of an optimizer without keras_mp.wrap"


def built(policy, make, layers=2):
    keras.config.set_dtype_policy(policy)
    dense = [keras.layers.Dense(4, "tanh") for _ in range(layers - 1)]
    last = keras.layers.Dense(1, dtype="float32")
    model = keras.Sequential([keras.Input((4,)), *dense, last])
    model.compile(make(), "mse", run_eagerly=True, auto_scale_loss=False)
    model.optimizer.build(model.trainable_variables)
    return model


def fit(model, epochs=3):
    model.fit(X, X[:, :1], epochs=epochs, shuffle=False, verbose=0)
    return model


def inner_state(optimizer):
    """The counter and the slots, in FP32: the last entries of what is saved."""
    store = {}
    optimizer.save_own_variables(store)
    count = 2 + 2 * 4  # a momentum and a velocity of each of four weights
    return [np.float32(store[str(i)]) for i in range(len(store))][-count:]


@pytest.mark.xslow_except(
    "LossScaleOptimizer, mixed_float16-*-.weights.h5",
    "LossScaleOptimizer, mixed_float16-float16-.keras",
    "LossScaleOptimizer, mixed_float16-int8-.keras",
    "adam, float32-float16-.keras",
    "adam, float32-int8-.weights.h5",
    "wrapped, float32-int8-.keras",
    "wrapped, int8-float16-*",
    "wrapped, float16-float16-.weights.h5",
)
@pytest.mark.slow_except("adam, float32-float16-.keras", "wrapped, float32-int8-.keras")
@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
@pytest.mark.parametrize("loaded", LOADED)
@pytest.mark.parametrize("saved", SAVED)
def test_state_is_taken_over(saved, loaded, suffix, tmp_path):
    is_wrapped = saved.startswith("wrapped")
    saved, path = fit(built(*SAVED[saved])), tmp_path / f"file{suffix}"
    (saved.save if suffix == ".keras" else saved.save_weights)(path)
    model = built(*LOADED[loaded])
    warned = pytest.warns(UserWarning, match=NOT_WRAPPED)
    with contextlib.nullcontext() if is_wrapped else warned:
        model.load_weights(path)
    for mine, other in zip(model.weights, saved.weights, strict=True):
        expected = oracle.rounded(oracle.value(other), mine.dtype)
        oracle.assert_same_bits(oracle.value(mine), expected, mine.path)
    optimizer = model.optimizer
    # 8 bits have three fraction bits, and rounding is to either neighbour: off by less
    # than 2**-3 of the power of two below, and so of the largest.
    error = 2.0**-3 if loaded == "int8" else 0
    for mine, other in zip(
        inner_state(optimizer), inner_state(saved.optimizer), strict=True
    ):
        np.testing.assert_allclose(
            mine, other, rtol=0, atol=error * np.abs(other).max()
        )
    assert int(optimizer.iterations) == 3
    assert float(optimizer.loss_scale) == 8
    fit(model, 1)
    assert int(optimizer.iterations) == 4


def state_of(optimizer):
    return [oracle.value(variable) for variable in optimizer.variables]


def momentum():
    return optimizers.SGD(0.1, momentum=0.9)


# Name: the model in the file, and what the warning names. The model has 2 layers, 4
# weights, and 16 + 4 + 10 variables of state under float16.
OTHERS = {
    "more layers": ("float32", adam, 4, "It has 18 variables, .* has 30"),
    # Once loaded by the coincidence of counts: 2 + 2 * 14 variables.
    "as many": ("float32", optimizers.RMSprop, 14, "It has 30 variables, .* has 30"),
    "one slot": ("float16", wrapped(momentum), 2, "It has 26 variables, .* has 30"),
    "no slots": ("float32", optimizers.SGD, 2, "It has 2 variables, .* has 30"),
}


@pytest.mark.parametrize(
    ("policy", "make", "layers", "counts"), OTHERS.values(), ids=OTHERS
)
def test_state_of_another_optimizer_is_left_out(policy, make, layers, counts):
    store = {}
    built(policy, make, layers).optimizer.save_own_variables(store)
    optimizer = fit(built("float16", wrapped())).optimizer
    before = state_of(optimizer)
    with pytest.warns(UserWarning, match=counts) as warned:
        optimizer.load_own_variables(store)
    assert "has not changed" in str(warned[0].message)
    for mine, value in zip(optimizer.variables, before, strict=True):
        oracle.assert_same_bits(oracle.value(mine), value, mine.path)


def test_the_first_variable_that_differs_is_named():
    store = {}
    built("float16", wrapped()).optimizer.save_own_variables(store)
    store = {**store, "22": np.zeros((5, 4), "float32")}
    optimizer = built("float16", wrapped()).optimizer
    name = re.escape("kernel_momentum': float32 of shape (4, 4) here, float32 of shape")
    with pytest.warns(UserWarning, match=name + r" \(5, 4\) in the file"):
        optimizer.load_own_variables(store)


# 1 and 8 layers: with momentum, their files have as many variables as an optimizer that
# is not built, of its own and with its parent's.
@pytest.mark.parametrize("layers", [1, 2, 8])
@pytest.mark.parametrize("make", [momentum, wrapped()], ids=["momentum", "wrapped"])
def test_an_optimizer_that_is_not_built_takes_nothing(make, layers):
    store = {}
    built("float16", make, layers).optimizer.save_own_variables(store)
    optimizer = wrapped()()
    before = state_of(optimizer)
    with pytest.warns(UserWarning, match=r"is not built.*Call `optimizer.build\("):
        optimizer.load_own_variables(store)
    for mine, value in zip(optimizer.variables, before, strict=True):
        oracle.assert_same_bits(oracle.value(mine), value, mine.path)


def test_what_was_saved_before_a_build_is_loaded_before_a_build():
    store = {}
    saved = wrapped()()
    saved.learning_rate = 0.25
    saved.save_own_variables(store)
    optimizer = wrapped()()
    optimizer.load_own_variables(store)
    assert float(optimizer.learning_rate) == 0.25


@keras.saving.register_keras_serializable("loading")
class Block(keras.layers.Layer):
    """Makes its sublayers itself, so that a file has no policies of theirs."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.dense = keras.layers.Dense(4, name="dense")

    def build(self, shape):
        self.norm.build(shape)
        self.dense.build(shape)
        self.built = True

    def call(self, x):
        return x + self.dense(self.norm(x))

    def compute_output_shape(self, shape):
        return shape


def with_block(form="float32", converts=True):
    """A model under float16, whose normalization has FP32 weights if it converts."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float16")
    layers = [keras.Input((4,)), Block(name="block"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    if converts:
        keras_mp.convert(model)
    model.compile(wrapped(form=form)(), "mse", run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    return model


def masters(model):
    return [np.asarray(m) for m in model.optimizer.master_weights]


@pytest.mark.parametrize("form", ["float32", "remainders"])
@pytest.mark.parametrize("converts", [False, True], ids=["to halves", "to FP32"])
def test_masters_of_weights_that_are_stored_in_another_dtype(converts, form, tmp_path):
    """Once the file had a master less for each FP32 weight, and none was loaded."""
    saved = fit(with_block(form, not converts), 5)
    dtypes = {weight.dtype for weight in saved.trainable_variables}
    assert dtypes == ({"float16"} if converts else {"float16", "float32"})
    saved.save_weights(tmp_path / "file.weights.h5")
    model = with_block(form, converts)
    model.load_weights(tmp_path / "file.weights.h5")
    for mine, expected in zip(masters(model), masters(saved), strict=True):
        np.testing.assert_array_equal(mine, expected)
    assert any(np.any(m != m.astype("float16")) for m in masters(saved)[:2])


def test_a_saved_model_with_a_block_keeps_its_masters(tmp_path):
    """The loaded model has FP16 weights in the block, and all masters."""
    saved = fit(with_block(), 5)
    saved.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert {weight.dtype for weight in loaded.trainable_variables} == {"float16"}
    for mine, expected in zip(masters(loaded), masters(saved), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_an_fp32_weight_takes_a_master_that_it_is_a_rounding_of():
    saved, model = fit(with_block(converts=False), 5), with_block()
    store = {}
    saved.optimizer.save_own_variables(store)
    gamma, beta = model.trainable_variables[:2]
    of_gamma, of_beta = masters(saved)[:2]
    gamma.assign(of_gamma.astype("float16"))
    beta.assign(np.nextafter(of_beta.astype("float16"), np.float16(9)))
    before = beta.numpy()
    model.optimizer.load_own_variables(store)
    np.testing.assert_array_equal(gamma, of_gamma)
    np.testing.assert_array_equal(beta, before)  # other code has written to it since


def test_a_file_of_before_has_the_masters_of_halves_alone():
    saved, store = fit(with_block(), 5), {}
    saved.optimizer.save_own_variables(store)
    first = next(i for i in range(99) if store[str(i)].shape == (4,))
    kept = [store[str(i)] for i in range(len(store)) if i not in (first, first + 1)]
    model = with_block()
    model.set_weights(saved.get_weights())
    model.optimizer.load_own_variables({str(i): x for i, x in enumerate(kept)})
    for mine, expected in zip(masters(model), masters(saved), strict=True):
        np.testing.assert_array_equal(mine, expected)
