"""Configs that someone else may have written: each is right, or gives an error.

Random changes of real configs. What is accepted must be right by the rules as they are
written down here once more; for layers, what Keras's layer of that name accepts.
"""

import contextlib
import functools
import json
import math
import warnings

import keras
import numpy as np
import pytest

import keras_mp
from keras_mp.arguments import short_repr

pytestmark = pytest.mark.slow


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@functools.cache
def objects():
    """Serialized objects, whole and broken, as JSON."""
    serialized = keras.saving.serialize_keras_object
    of_keras = {"module": "keras.optimizers", "class_name": "SGD", "config": {}}
    broken = [
        {"a": 1},
        of_keras,
        of_keras | {"module": 5},
        of_keras | {"module": None},
        of_keras | {"class_name": 5},
        of_keras | {"class_name": "Nothing"},
        of_keras | {"config": 1},
        of_keras | {"registered_name": []},
        {"class_name": "SGD"},
        {"class_name": "system", "config": {}, "module": "os"},
        {"class_name": "function", "config": "relu", "module": "builtins"},
        {"class_name": "function", "config": 3, "module": "builtins"},
        {"class_name": "__lambda__", "config": {"value": "x"}},
        {"class_name": "__numpy__", "config": {}},
        {"class_name": "__tensor__", "config": {"value": [1.0], "dtype": "float32"}},
    ]
    whole = [
        keras.layers.Dense(1),
        keras_mp.layers.Dense(1),
        keras.regularizers.L2(0.5),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
        keras_mp.ConstantLossScale(2.0),
        keras_mp.DynamicLossScale(),
        keras_mp.wrap("sgd"),
    ]
    return json.dumps([*broken, *map(serialized, whole)])


def values():
    """What to put in the place of something: what JSON can hold, or more deeply."""
    numbers = [0, 1, -1, 7, 2**31, -(2**40), 10**400, 0.5, -0.5, 1e30, 1e-50]
    others = [None, True, False, math.inf, -math.inf, math.nan, [], [1], ["a"], {}]
    texts = ["", "x", "/", "dynamic", "nearest", "adam", "l2", "relu", "float16"]
    return [*numbers, *others, *texts, *json.loads(objects()), nested(3000)]


def places(config, path=()):
    """Yields the path to everything inside a config."""
    children = {}
    if isinstance(config, dict):
        children = config.items()
    elif isinstance(config, list):
        children = enumerate(config)
    for key, value in children:
        yield (*path, key)
        yield from places(value, (*path, key))


def change(config, generator):
    """Changes something in a config, in place; returns where and how."""
    everywhere = list(places(config))
    *path, key = everywhere[generator.integers(len(everywhere))]
    parent = config
    for step in path:
        parent = parent[step]
    how = generator.choice(["replace", "replace", "replace", "delete", "add", "rename"])
    pool = values()
    value = pool[generator.integers(len(pool))]
    if how == "replace":
        parent[key] = value
    elif how == "delete" or not isinstance(parent, dict):
        del parent[key]
    elif how == "add":
        parent["extra"] = value
    else:
        parent[f"{key}_"] = parent.pop(key)
    return [*path, key], how, value


def accepts(make, config):
    """Whether an object is made; the only errors allowed are these two."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            make(config)
        except (TypeError, ValueError) as error:
            assert str(error)
            return False
    return True


def keras_accepts(make, config):
    """The same for what is Keras's own, whose errors are of any kind."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        make(config)
        return True
    return False


# The rules once more.


def is_positive(value):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 2.0**-126 <= value < 2.0**128


def is_whole(value, least=1):
    return type(value) is int and least <= value < 2**31


DYNAMIC = keras_mp.DynamicLossScale().get_config()


def is_constant(config):
    return config.keys() == {"value"} and is_positive(config["value"])


def is_dynamic(config):
    if not config.keys() <= DYNAMIC.keys():
        return False
    config = {**DYNAMIC, **config}
    whole = [config.pop("growth_interval"), config.pop("hysteresis")]
    return (
        all(map(is_whole, whole))
        and all(map(is_positive, config.values()))
        and config["min_scale"] <= config["initial_scale"] <= config["max_scale"]
        and config["backoff_factor"] < 1 < config["growth_factor"]
    )


RULES = {"ConstantLossScale": is_constant, "DynamicLossScale": is_dynamic}


def is_text_or_none(value):
    return value is None or isinstance(value, str)


def is_serialized(config):
    return (
        isinstance(config, dict)
        and {"class_name", "config"} <= config.keys()
        and isinstance(config["class_name"], str)
        and is_text_or_none(config.get("module"))
        and is_text_or_none(config.get("registered_name"))
    )


def is_loss_scale(value):
    if not isinstance(value, dict):
        return value == "dynamic" or is_positive(value)
    if not is_serialized(value):
        return False
    name, config = value["class_name"], value["config"]
    config = {} if config is None else config
    registered = value.get("registered_name", name) == f"keras_mp>{name}"
    known = registered and name in RULES and isinstance(config, dict)
    return known and RULES[name](config)


def is_of_keras(config, module, kind):
    """A serialized object of a class of Keras that Keras itself makes."""
    if not is_serialized(config) or config.get("module") != f"keras.{module}":
        return False
    cls = getattr(getattr(keras, module), config["class_name"], None)
    return (
        isinstance(cls, type)
        and issubclass(cls, kind)
        and keras_accepts(keras.saving.deserialize_keras_object, config)
    )


def is_inner(config):
    if not is_of_keras(config, "optimizers", keras.optimizers.Optimizer):
        return False
    optimizer = keras.saving.deserialize_keras_object(config)
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return not scales and optimizer.loss_scale_factor is None


def is_wrapper(config):
    known = keras_mp.wrap("sgd").get_config().keys()
    defaults = {"loss_scale": 1, "rounding": "nearest", "seed": 0, "name": None}
    config = defaults | {"all_reduce_dtype": "float32"} | config
    return (
        config.keys() == known
        and is_loss_scale(config["loss_scale"])
        and config["rounding"] in ("nearest", "stochastic")
        and is_whole(config["seed"], least=0)
        and config["all_reduce_dtype"] in ("float32", "float16")
        and keras_accepts(lambda name: keras.optimizers.SGD(name=name), config["name"])
        and is_inner(config["inner_optimizer"])
    )


def is_regularizer(config):
    value = config.get("regularizer")
    if isinstance(value, str):
        known = keras_accepts(keras.regularizers.get, value)
    else:
        known = is_of_keras(value, "regularizers", keras.regularizers.Regularizer)
    return config.keys() == {"regularizer"} and known


def make_wrapper():
    inner = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.5, 10),
        weight_decay=0.25,
        use_ema=True,
        gradient_accumulation_steps=4,
    )
    return keras_mp.wrap(inner, keras_mp.DynamicLossScale(4.0), rounding="stochastic")


# What is changed, and what tells whether it is still right.
OBJECTS = {
    "wrapper": (make_wrapper, is_wrapper),
    "constant": (lambda: keras_mp.ConstantLossScale(2.0), is_constant),
    "dynamic": (keras_mp.DynamicLossScale, is_dynamic),
    "regularizer": (
        lambda: keras_mp.FP32Regularizer(keras.regularizers.L1L2(0.1, 0.2)),
        is_regularizer,
    ),
}


def check_objects(name, count):
    make, is_right = OBJECTS[name]
    original = make()
    generator = np.random.default_rng(len(name))
    found = {True: 0, False: 0}
    for _ in range(count):
        config = original.get_config()
        changed = change(config, generator)
        right = is_right(config)
        assert accepts(type(original).from_config, config) == right, short_repr(changed)
        found[right] += 1
    # Or one of the two was not tested.
    assert min(found.values()) > 0


# Those of `units` and the like that a layer needs.
FILTERS = {"filters": 2, "kernel_size": 2}
ARGUMENTS = {
    "Activation": {"activation": "relu"},
    **{f"AdaptiveAveragePooling{n}D": {"output_size": 2} for n in (1, 2, 3)},
    **{f"AveragePooling{n}D": {"pool_size": 2} for n in (1, 2, 3)},
    **{f"Conv{n}D": FILTERS for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": FILTERS for n in (1, 2, 3)},
    **{f"ConvLSTM{n}D": FILTERS for n in (1, 2, 3)},
    "Dense": {"units": 2},
    **{f"DepthwiseConv{n}D": {"kernel_size": 2} for n in (1, 2)},
    "Dot": {"axes": 1},
    "EinsumDense": {"equation": "ab,bc->ac", "output_shape": 2},
    "GRU": {"units": 2},
    "GRUCell": {"units": 2},
    "GroupQueryAttention": {
        "head_dim": 2,
        "num_query_heads": 2,
        "num_key_value_heads": 1,
    },
    "LSTM": {"units": 2},
    "LSTMCell": {"units": 2},
    "MultiHeadAttention": {"num_heads": 1, "key_dim": 2},
    "ReversibleEmbedding": {"input_dim": 3, "output_dim": 2},
    **{f"SeparableConv{n}D": FILTERS for n in (1, 2)},
    "SimpleRNN": {"units": 2},
    "SimpleRNNCell": {"units": 2},
    "SpectralNormalization": {"layer": keras.layers.Dense(1)},
}


def outcome(cls, config):
    """The class of the error, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cls.from_config(config)
        except Exception as error:
            return type(error)
    return None


def check_layer(name, count):
    """Keras's own `from_config` makes them, and is what refuses, as it does there."""
    ours, of_keras = getattr(keras_mp.layers, name), getattr(keras.layers, name)
    layer = ours(**ARGUMENTS.get(name, {}))
    found = set()
    for seed in range(count):
        configs = layer.get_config(), layer.get_config()
        for config in configs:
            changed = change(config, np.random.default_rng(seed))
        one, other = outcome(ours, configs[0]), outcome(of_keras, configs[1])
        assert one == other, short_repr(changed)
        found.add(one)
    assert found >= {None, TypeError}


@pytest.mark.parametrize(
    ("name", "count"),
    [("wrapper", 40), ("constant", 80), ("dynamic", 40), ("regularizer", 20)],
)
def test_a_few_objects(name, count):
    check_objects(name, count)


def test_a_few_layers():
    for name in ("Dense", "SpectralNormalization", "MultiHeadAttention"):
        check_layer(name, 10)


@pytest.mark.xslow
@pytest.mark.parametrize(
    ("name", "count"),
    [("wrapper", 2000), ("constant", 500), ("dynamic", 1000), ("regularizer", 500)],
)
def test_many_objects(name, count):
    check_objects(name, count)


@pytest.mark.xslow
@pytest.mark.parametrize("name", sorted(set(keras_mp.layers.__all__) - {"Probe"}))
def test_many_layers(name):
    check_layer(name, 40)
