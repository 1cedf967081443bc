"""Each callback of Keras that reads or changes an optimizer, with each kind wrapped.

The loss is the sum of two layers' outputs for an input of 1, and every gradient is 1.
So a step of SGD takes the learning rate from a weight, and so does one of Lion, which
takes the sign of a gradient: weights are known by hand.
"""

import inspect

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import callbacks, optimizers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mp

EPOCHS = 3
ONE = np.ones((1, 1), "float32")


def by_layer(**options):
    """SGD for the layer "second", Lion for all others."""
    sgd = optimizers.SGD(1.0, **options)
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.Lion(0.5, **options), {"second/.*": sgd})
    )


def by_function(**options):
    lion, sgd = optimizers.Lion(0.5, **options), optimizers.SGD(1.0, **options)
    return optimizers.MultiOptimizer(lambda v: sgd if "second" in v.path else lion)


def lion(**options):
    return optimizers.Lion(0.5, **options)


COMPRESSED = {"masters": "remainders", "state": keras_mp.Int8State(min_size=1)}
NO_MASTERS = {"masters": None, "rounding": "stochastic"}
KINDS = {
    "sgd": (lambda **options: optimizers.SGD(0.5, **options), {}),
    "lion": (lion, {}),
    "compressed": (lion, COMPRESSED),
    "no masters": (lion, NO_MASTERS),
}
# Keras 3.12, the last for Python 3.10, has no such optimizer.
if hasattr(optimizers, "MultiOptimizer"):
    KINDS |= {"multi": (by_layer, {}), "multi by function": (by_function, {})}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
POLICIES = ["float32", "mixed_float16", "float16"]
EACH_POLICY = pytest.mark.parametrize("policy", POLICIES)
QUICK = pytest.mark.slow_except("multi-float16")
# Each kind, and each policy.
SLOW = pytest.mark.xslow_except(
    "compressed-mixed_float16",
    "no masters-mixed_float16",
    "multi-float16",
    "multi*-mixed_float16",
    "sgd-float32",
)


def make_model(kind, policy, **options):
    keras.config.set_dtype_policy(policy)
    dense = {"use_bias": False, "kernel_initializer": "zeros"}
    x = keras.Input((1,))
    outputs = [
        keras.layers.Dense(1, name=name, **dense)(x) for name in ("first", "second")
    ]
    model = keras.Model(x, keras.layers.Add(dtype="float32")(outputs))
    make, forms = KINDS[kind]
    optimizer = keras_mp.wrap(make(**options), loss_scale=8, **forms)
    model.compile(optimizer, mean_output, run_eagerly=True)
    # The optimizers that a function returns are known from here on, bare ones as well.
    optimizer.build(model.trainable_variables)
    return model


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def fit(model, *given, epochs=EPOCHS, **options):
    options |= {"epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(ONE, ONE, callbacks=list(given), **options).history


def learning_rates(model):
    inner = model.optimizer.inner_optimizer
    each = getattr(inner, "optimizers", [inner])
    return {optimizer.name: float(optimizer.learning_rate) for optimizer in each}


def kernels(model):
    return [layer.kernel.numpy().item() for layer in model.layers[1:3]]


def assert_same_state(model, other):
    pairs = zip(
        [*model.variables, *model.optimizer.variables],
        [*other.variables, *other.optimizer.variables],
        strict=True,
    )
    for one, expected in pairs:
        oracle.assert_same_bits(oracle.value(one), oracle.value(expected), one.path)


def start(kind):
    """The learning rate of each layer: 1/2, and 1 for the SGD of a MultiOptimizer."""
    return np.array([0.5, 1.0 if "multi" in kind else 0.5])


def logged(history):
    return sorted(name for name in history if name.startswith("learning_rate"))


def names(kind):
    if "multi" in kind:
        return ["learning_rate_lion", "learning_rate_sgd"]
    return ["learning_rate"]


@QUICK
@SLOW
@EACH_POLICY
@EACH_KIND
def test_learning_rate_scheduler(kind, policy):
    model = make_model(kind, policy)
    halve = callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = fit(model, halve)
    assert set(learning_rates(model).values()) == set(start(kind) / 8)
    assert logged(history) == names(kind)
    for rates in (history[name] for name in names(kind)):
        assert rates == [rates[0], rates[0] / 2, rates[0] / 4]
    assert kernels(model) == list(-start(kind) * (1 / 2 + 1 / 4 + 1 / 8))


@QUICK
@SLOW
@EACH_POLICY
@EACH_KIND
def test_reduce_lr_on_plateau(kind, policy):
    model = make_model(kind, policy)
    # The loss falls in every epoch, which is worse with mode="max".
    reduce = callbacks.ReduceLROnPlateau("loss", mode="max", factor=0.5, patience=1)
    history = fit(model, reduce)
    assert set(learning_rates(model).values()) == set(start(kind) / 4)
    assert logged(history) == names(kind)
    for rates in (history[name] for name in names(kind)):
        assert rates == [rates[0], rates[0], rates[0] / 2]
    assert kernels(model) == list(-start(kind) * (1 + 1 + 1 / 2))


@QUICK
@SLOW
@EACH_POLICY
@EACH_KIND
def test_tensorboard(kind, policy, tmp_path):
    model = make_model(kind, policy)
    halve = callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    board = callbacks.TensorBoard(tmp_path, write_graph=False)
    fit(model, halve, board, validation_data=(ONE, ONE))
    events = EventAccumulator(str(tmp_path / "train")).Reload()
    found = {
        name: [float(tf.make_ndarray(e.tensor_proto)) for e in events.Tensors(name)]
        for name in events.Tags()["tensors"]
        if "learning_rate" in name
    }
    assert sorted(found) == [f"epoch_{name}" for name in names(kind)]
    for rates in found.values():
        assert rates == [rates[0], rates[0] / 2, rates[0] / 4]
    validation = EventAccumulator(str(tmp_path / "validation")).Reload()
    (steps,) = (n for n in validation.Tags()["tensors"] if "vs_iterations" in n)
    assert [event.step for event in validation.Tensors(steps)] == [1, 2, 3]


class Interrupt(callbacks.Callback):
    """Ends a run where its last epoch begins."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == EPOCHS - 1:
            raise KeyboardInterrupt


@QUICK
@SLOW
@EACH_POLICY
@EACH_KIND
def test_backup_and_restore(kind, policy, tmp_path):
    def halve():
        return callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)

    def backup():
        return callbacks.BackupAndRestore(tmp_path / "backup")

    whole = make_model(kind, policy)
    fit(whole, halve())
    with pytest.raises(KeyboardInterrupt):
        fit(make_model(kind, policy), backup(), Interrupt(), halve())
    resumed = make_model(kind, policy)
    fit(resumed, backup(), halve())
    assert int(resumed.optimizer.iterations) == EPOCHS
    assert_same_state(resumed, whole)


@pytest.mark.slow
@QUICK
@SLOW
@EACH_POLICY
@EACH_KIND
def test_model_checkpoint_of_weights(kind, policy, tmp_path):
    path = tmp_path / "{epoch}.weights.h5"
    model = make_model(kind, policy)
    fit(model, callbacks.ModelCheckpoint(path, save_weights_only=True))
    loaded = make_model(kind, policy)
    loaded.load_weights(tmp_path / "1.weights.h5")
    assert_goes_on(loaded, model, kind)


@QUICK
@SLOW
@EACH_POLICY
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "multi by function"])
def test_model_checkpoint_of_models(kind, policy, tmp_path):
    """But with a MultiOptimizer by a function, which Keras cannot save."""
    model = make_model(kind, policy)
    fit(model, callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"))
    path = tmp_path / "1.keras"
    loaded = keras.saving.load_model(path, {"mean_output": mean_output})
    loaded.run_eagerly = True
    assert_goes_on(loaded, model, kind)


def assert_goes_on(loaded, model, kind):
    """Asserts that it stands after the first epoch, and ends like the other."""
    assert int(loaded.optimizer.iterations) == 1
    assert kernels(loaded) == list(-start(kind))
    fit(loaded, epochs=EPOCHS - 1)
    assert_same_state(loaded, model)


class Observer(callbacks.Callback):
    """Notes the weights in every evaluation."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(kernels(self.model))


SWAPS = [
    pytest.param(kind, policy, whose, id=f"{kind}-{policy}-{name}")
    for kind in KINDS
    for policy in POLICIES
    for name, whose in {"keras_mp": keras_mp, "keras": callbacks}.items()
    # What Keras swaps is neither a weight of 16 bits nor state of 8 bits.
    if whose is keras_mp or not (policy == "float16" or kind == "compressed")
]


@pytest.mark.xslow_except(
    "compressed-*",
    "multi-float16-keras_mp",
    "sgd-float32-keras_mp",
    "sgd-mixed_float16-keras",
)
@pytest.mark.slow_except("multi-float16-*", "multi-mixed_float16-keras")
@pytest.mark.parametrize(("kind", "policy", "whose"), SWAPS)
def test_swap_ema_weights(kind, policy, whose):
    # The averages are -1 (the first weight itself), -1.5 and -2.25 learning rates.
    model = make_model(kind, policy, use_ema=True, ema_momentum=0.5)
    observer = Observer()
    fit(model, whose.SwapEMAWeights(), observer, validation_data=(ONE, ONE))
    expected = [-start(kind) * steps for steps in (1, 1.5, 2.25)]
    np.testing.assert_array_equal(observer.seen, expected)
    assert kernels(model) == list(expected[-1])


TESTED = {
    "BackupAndRestore",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TensorBoard",
}
# It is for JAX, and needs a package of its own.
NOT_TESTED = {"OrbaxCheckpoint"}


def test_no_callback_of_keras_that_knows_an_optimizer_is_missing():
    classes = {n: c for n, c in vars(callbacks).items() if inspect.isclass(c)}
    found = {n for n, c in classes.items() if "optimizer" in inspect.getsource(c)}
    # EarlyStopping compiles a model in its docstring.
    assert found - {"EarlyStopping"} <= TESTED | NOT_TESTED


@EACH_KIND
def test_only_a_multi_optimizer_has_optimizers(kind):
    optimizer = make_model(kind, "float16").optimizer
    assert hasattr(optimizer, "optimizers") == ("multi" in kind)
