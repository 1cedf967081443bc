"""A `.keras` file from someone else: loading it runs none of their code."""

import hashlib
import json
import os
import warnings
import zipfile

import keras
import numpy as np
import pytest

import keras_mp

CANARY = "KERAS_MP_CANARY"


def canary(x):
    """What anybody's code could do: a function that nobody has registered."""
    os.environ[CANARY] = "sang"
    return x


@pytest.fixture(autouse=True)
def silent_canary(monkeypatch):
    monkeypatch.delenv(CANARY, raising=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a model with something of each kind that has a config."""
    regularizer = keras_mp.FP32Regularizer(keras.regularizers.L2(0.5))
    layers = [
        keras_mp.layers.Dense(2, activation="relu", kernel_regularizer=regularizer),
        keras_mp.layers.LayerNormalization(),
    ]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile(keras_mp.wrap("sgd", loss_scale=8), "mse")
    model.optimizer.build(model.trainable_variables)
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path


def load_changed(saved, folder, edit, **options):
    """Loads the model after its config was edited."""
    with zipfile.ZipFile(saved) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(content["config.json"])
    edit(config)
    content["config.json"] = json.dumps(config)
    with zipfile.ZipFile(folder / "changed.keras", "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return keras.saving.load_model(folder / "changed.keras", **options)


def dense(config):
    return config["config"]["layers"][1]["config"]


def optimizer(config):
    return config["compile_config"]["optimizer"]["config"]


# What holds the config of an object, and under which key.
PLACES = {
    "inner_optimizer": (optimizer, "inner_optimizer"),
    "learning_rate": (
        lambda c: optimizer(c)["inner_optimizer"]["config"],
        "learning_rate",
    ),
    "loss_scale": (optimizer, "loss_scale"),
    "regularizer": (lambda c: dense(c)["kernel_regularizer"]["config"], "regularizer"),
    "kernel_regularizer": (dense, "kernel_regularizer"),
    "activation": (dense, "activation"),
    "layer": (lambda c: c["config"]["layers"], 1),
}


def code():
    """The byte code of a lambda, as Keras saves it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return keras.saving.serialize_keras_object(
            lambda x: __import__("os").environ.update(KERAS_MP_CANARY="sang") or x
        )


def described(name, module, config):
    names = {"class_name": name, "module": module, "registered_name": None}
    return names | {"config": config}


def function(name, module):
    return described("function", module, name) | {"registered_name": name}


BROUGHT = {
    "byte_code": code,
    "byte_code_by_a_known_name": lambda: code() | {"registered_name": "keras_mp>Dense"},
    "lambda_layer": lambda: described("Lambda", "keras.layers", {"function": code()}),
    "function": lambda: function("canary", __name__),
    "builtin": lambda: function("eval", "builtins"),
    "system": lambda: function("system", "os"),
    "class": lambda: described("Popen", "subprocess", {"args": ["false"]}),
    "download": lambda: described("get_file", "keras.utils", {"origin": "file:///"}),
    "pickle": lambda: described("TorchModuleWrapper", "keras.layers", {"module": "x"}),
}


def bring(brought, place):
    def edit(config):
        find, key = PLACES[place]
        find(config)[key] = BROUGHT[brought]()

    return edit


@pytest.mark.slow_except("byte_code-*", "*-layer")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("brought", BROUGHT)
def test_no_code_comes_with_a_config(brought, place, saved, tmp_path):
    # Keras looks for PyTorch before it refuses a pickle.
    with pytest.raises((TypeError, ValueError, ModuleNotFoundError)):
        load_changed(saved, tmp_path, bring(brought, place))
    assert CANARY not in os.environ


def test_the_file_loads_as_it_was(saved, tmp_path):
    """Or the test above refuses it for something else."""
    model = load_changed(saved, tmp_path, lambda config: None)
    assert type(model.optimizer) is keras_mp.FP32MasterOptimizer


def test_the_same_code_runs_where_the_user_wants_it(saved, tmp_path):
    """Or the test above brings none."""
    edit = bring("byte_code", "activation")
    model = load_changed(saved, tmp_path, edit, safe_mode=False)
    model(np.ones((1, 2)))
    assert os.environ.pop(CANARY) == "sang"


class Pickled:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return canary, (0,)


def test_no_pickle_comes_with_a_checkpoint(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    path = tmp_path / "made.npz"
    np.savez(path, **{"0 kernel float32": np.array([[Pickled()], [1]], object)})
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    path.rename(tmp_path / f"1-{checksum}.npz")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        keras_mp.Checkpoints(tmp_path).restore(model)
    assert CANARY not in os.environ
