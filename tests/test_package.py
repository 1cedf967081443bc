"""The package as a whole: its names, its import and the backend it needs."""

import importlib.metadata
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_mp

NAMES = {
    "Checkpoints",
    "ConstantLossScale",
    "DynamicLossScale",
    "FP32MasterOptimizer",
    "FP32Regularizer",
    "LossScale",
    "LossScaleCallback",
    "LossScaleCollapseError",
    "LossScaleState",
    "SwapEMAWeights",
    "export_weights",
    "wrap",
}


def python(code):
    """Runs `code` in a new interpreter, as a user would, and returns what it prints."""
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_public_names():
    assert set(keras_mp.__all__) >= NAMES
    assert list(keras_mp.__all__) == sorted(keras_mp.__all__)
    for name in keras_mp.__all__:
        assert hasattr(keras_mp, name), name


def test_nothing_else_is_public():
    modules = {module.name for module in pkgutil.iter_modules(keras_mp.__path__)}
    public = {name for name in dir(keras_mp) if not name.startswith("_")}
    assert public - modules == set(keras_mp.__all__) - modules


def test_a_public_name_is_what_its_module_defines():
    for name in keras_mp.__all__:
        item = getattr(keras_mp, name)
        if inspect.ismodule(item):
            assert item.__name__ == f"keras_mp.{name}"
            continue
        assert item.__name__ == name
        assert item.__module__.startswith("keras_mp.")
        assert getattr(sys.modules[item.__module__], name) is item


def test_star_import():
    scope = {}
    exec("from keras_mp import *", scope)
    assert set(scope) - {"__builtins__"} == set(keras_mp.__all__)


def test_the_version_is_that_of_the_distribution():
    """But for a label such as +cuda13, of `make wheel-cuda`."""
    distribution, *_ = importlib.metadata.version("keras_mp").split("+")
    assert keras_mp.__version__ == distribution
    assert re.fullmatch(r"\d+\.\d+\.\d+", keras_mp.__version__)


def test_the_package_is_typed():
    assert (Path(inspect.getfile(keras_mp)).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    "item",
    [
        keras_mp.ConstantLossScale,
        keras_mp.DynamicLossScale,
        keras_mp.FP32MasterOptimizer,
        keras_mp.FP32Regularizer,
    ],
)
def test_what_a_model_saves_is_registered_under_the_packages_name(item):
    name = f"keras_mp>{item.__name__}"
    assert keras.saving.get_registered_name(item) == name
    assert keras.saving.get_registered_object(name) is item


def test_what_the_import_does_and_does_not():
    # It imports no other module of TensorFlow than Keras itself, and no command; it
    # patches no method and changes no global, as in Apex; and the native library is
    # loaded when an op is called: a program that needs none works where it is broken.
    # `python -m keras_mp` is the command line.
    code = """
import sys
import keras
def state():
    return (
        keras.config.dtype_policy().name, keras.config.floatx(),
        keras.Model.compile, keras.Model.fit, keras.Variable.assign,
        keras.optimizers.Optimizer.apply, keras.optimizers.LossScaleOptimizer.apply,
        dict(vars(keras.optimizers)), dict(vars(keras.callbacks)),
    )
modules, before = set(sys.modules), state()
import keras_mp
print(*{name.partition(".")[0] for name in set(sys.modules) - modules})
print("keras_mp.command_line" in sys.modules)
print(keras_mp.wrap("adam"))
print(state() == before)
from keras_mp.ops.kernels import native
print(native.library.cache_info().currsize + native.load.cache_info().currsize)
import runpy
sys.argv = ["keras_mp", "info"]
runpy.run_module("keras_mp", run_name="__main__")
"""
    packages, imports_commands, shown, unchanged, loaded, *info = python(
        code
    ).splitlines()
    assert info[0] == f"keras_mp:     {keras_mp.__version__}"
    assert set(packages.split()) <= {"keras_mp", *sys.stdlib_module_names}
    assert (imports_commands, unchanged, loaded) == ("False", "True", "0")
    assert shown.startswith("FP32MasterOptimizer(Adam, loss_scale=DynamicLossScale(")
    assert shown == repr(keras_mp.wrap("adam"))


@pytest.mark.parametrize("backend", ["numpy", "openvino"])
def test_another_backend_is_refused_with_advice(backend, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    inner = keras.optimizers.SGD()
    for make in (keras_mp.wrap, keras_mp.FP32MasterOptimizer):
        with pytest.raises(RuntimeError) as caught:
            make(inner)
        message = str(caught.value)
        assert "needs Keras on one of the backends ('tensorflow', 'jax'," in message
        assert f"Received: keras.backend.backend()={backend!r}" in message
        assert "KERAS_BACKEND=tensorflow" in message
