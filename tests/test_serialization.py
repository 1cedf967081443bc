"""Which configs are taken for what, and what the errors of the others say."""

import keras
import pytest

import keras_mp
from keras_mp import FP32MasterOptimizer, FP32Regularizer

serialized = keras.saving.serialize_keras_object


class Halving(keras_mp.LossScale):
    def next_scale(self, state, finite):
        return keras.ops.where(finite, state.scale, state.scale / 2)


class Slow(keras.optimizers.SGD):
    pass


@keras.saving.register_keras_serializable(package="tests")
def registered_l2(x):
    return keras.ops.sum(keras.ops.square(x))


def config(**changes):
    return keras_mp.wrap("sgd").get_config() | changes


def of_keras(name, **values):
    names = {"module": "keras.optimizers", "class_name": name, "registered_name": None}
    return names | {"config": values}


# Keras fails on it with a KeyError.
BROKEN = {"class_name": "__numpy__", "config": {}}
BAD_ARGUMENTS = {
    "inner-missing": ({"inner_optimizer": None}, TypeError, "a serialized Optimizer"),
    "inner-name": ({"inner_optimizer": "sgd"}, TypeError, "a serialized Optimizer"),
    "inner-layer": (
        {"inner_optimizer": serialized(keras_mp.layers.Dense(1))},
        TypeError,
        r"a serialized Optimizer\. Received: .*Dense.*register a class of yours",
    ),
    "inner-unknown": ({"inner_optimizer": of_keras("Best")}, TypeError, "Best"),
    "inner-schedule": (
        {"inner_optimizer": of_keras("SGD", learning_rate=BROKEN)},
        ValueError,
        "as keras.saving.serialize_keras_object made it.*fails with KeyError: 'value'",
    ),
    "inner-scales": (
        {"inner_optimizer": serialized(keras_mp.wrap("sgd"))},
        ValueError,
        "must not scale the loss itself",
    ),
    "scale-layer": (
        {"loss_scale": serialized(keras_mp.layers.Dense(1))},
        TypeError,
        "`loss_scale` must be a serialized LossScale",
    ),
    "scale-argument": (
        {"loss_scale": serialized(keras_mp.ConstantLossScale(2)) | {"config": {}}},
        TypeError,
        "'value'",
    ),
    "seed-none": ({"seed": None}, TypeError, "`seed` must be an int"),
    "seed-negative": ({"seed": -1}, ValueError, "`seed` must be at least 0"),
    "name": ({"name": 5}, TypeError, "`name` must be a str"),
    "unknown": ({"scale": 5}, TypeError, "'scale'"),
}


@pytest.mark.parametrize(
    ("changes", "error", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS
)
def test_what_is_no_config_of_an_optimizer(changes, error, message):
    with pytest.raises(error, match=message):
        FP32MasterOptimizer.from_config(config(**changes))


def test_an_error_is_short_however_deep_the_config():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TypeError, match="`seed` must be an int") as raised:
        FP32MasterOptimizer.from_config(config(seed=deep))
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("scope", ["argument", "scope"])
def test_classes_that_a_scope_names(scope):
    wrapped = keras_mp.wrap(Slow(0.5), Halving(8.0, 2.0))
    names = {"Halving": Halving, "Slow": Slow}
    if scope == "argument":
        copy = FP32MasterOptimizer.from_config(wrapped.get_config(), names)
    else:
        with keras.saving.custom_object_scope(names):
            copy = FP32MasterOptimizer.from_config(wrapped.get_config())
    assert type(copy.inner_optimizer) is Slow
    assert copy.loss_scale_rule == Halving(8.0, 2.0)
    with pytest.raises(TypeError, match="register a class of yours"):
        FP32MasterOptimizer.from_config(wrapped.get_config())


@pytest.mark.parametrize(
    "regularizer",
    ["l2", registered_l2, keras.regularizers.L1(0.5)],
    ids=["name", "function", "object"],
)
def test_a_regularizer_and_its_copy(regularizer):
    original = FP32Regularizer(regularizer)
    copy = FP32Regularizer.from_config(original.get_config())
    weight = keras.ops.ones((2, 3), "float16")
    assert float(copy(weight)) == float(original(weight)) > 0


def unregistered(x):
    return keras.ops.sum(x)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, TypeError, "a callable, or the name or config of one. Received: .*None"),
        (5, TypeError, "Received: regularizer=5"),
        ("l3", ValueError, "l3"),
        (serialized(unregistered), TypeError, "a callable, or the name"),
        (serialized(keras.activations.relu), TypeError, "a callable, or the name"),
        (serialized(keras.layers.Dense(1)), TypeError, "a serialized Regularizer"),
        (
            serialized(keras.regularizers.L2()) | {"config": {"l2": "x"}},
            ValueError,
            "l2=x",
        ),
    ],
    ids=["none", "number", "name", "unregistered", "activation", "layer", "inside"],
)
def test_what_is_no_regularizer(value, error, message):
    with pytest.raises(error, match=message):
        FP32Regularizer.from_config({"regularizer": value})
