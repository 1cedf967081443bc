"""Which configs are taken for what, and what the errors of the others say."""

import copy

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
    "inner-unknown-by-hand": (
        {"inner_optimizer": {"class_name": "Best", "config": {}}},
        TypeError,
        r"Received: inner_optimizer=\{'class_name': 'Best', 'config': \{\}\}\.",
    ),
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


ADAM = {"class_name": "Adam", "config": {"learning_rate": 0.5}}
SCALE = {"class_name": "keras_mp>ConstantLossScale", "config": {"value": 8.0}}
BY_HAND = {
    "all-keys": keras.optimizers.serialize(
        keras_mp.wrap(keras.optimizers.Adam(0.5), 8)
    ),
    "no-module": {
        "class_name": "FP32MasterOptimizer",
        "registered_name": "keras_mp>FP32MasterOptimizer",
        "config": {"inner_optimizer": ADAM, "loss_scale": SCALE},
    },
    "class-name-alone": {
        "class_name": "keras_mp>FP32MasterOptimizer",
        "config": {"inner_optimizer": ADAM, "loss_scale": SCALE},
    },
    "as-wrap-takes-them": {
        "class_name": "keras_mp>FP32MasterOptimizer",
        "config": {
            "inner_optimizer": ADAM | {"class_name": "adam"},
            "loss_scale": 8,
        },
    },
}


@pytest.mark.parametrize("by_hand", BY_HAND.values(), ids=BY_HAND)
@pytest.mark.parametrize(
    "make",
    [
        keras.optimizers.get,
        keras.optimizers.deserialize,
        keras.saving.deserialize_keras_object,
    ],
    ids=lambda make: make.__name__,
)
def test_keras_makes_the_optimizer_from_a_config(make, by_hand):
    optimizer = make(copy.deepcopy(by_hand))
    assert type(optimizer) is FP32MasterOptimizer
    assert type(optimizer.inner_optimizer) is keras.optimizers.Adam
    assert float(optimizer.learning_rate) == 0.5
    assert optimizer.loss_scale_rule == keras_mp.ConstantLossScale(8)


def test_a_class_in_a_scope_comes_before_that_of_keras():
    class SGD(keras.optimizers.SGD):
        pass

    bare = {"class_name": "SGD", "config": {}}
    copied = FP32MasterOptimizer.from_config({"inner_optimizer": bare}, {"SGD": SGD})
    assert type(copied.inner_optimizer) is SGD


RULES = [
    keras_mp.ConstantLossScale(8),
    keras_mp.DynamicLossScale(hysteresis=2),
    keras_mp.StatisticalLossScale(),
]


@pytest.mark.parametrize("keys", [[], ["module"], ["registered_name"]], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_keras_makes_a_rule_from_a_config(rule, keys):
    whole = serialized(rule)
    config = {key: whole[key] for key in keys}
    config |= {"class_name": whole["registered_name"], "config": whole["config"]}
    assert keras.saving.deserialize_keras_object(config) == rule


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
