"""TensorFlow and the backends of a single program answer the same questions."""

import inspect

import pytest

from keras_mp.optimizer.backend import Backend, backend
from keras_mp.optimizer.backend.single_program import SingleProgramBackend
from keras_mp.optimizer.backend.tensorflow import TensorFlowBackend

METHODS = [name for name, _ in inspect.getmembers(Backend, inspect.isfunction)]
METHODS = [name for name in METHODS if not name.startswith("_")]


def test_tensorflow_is_chosen():
    assert type(backend) is TensorFlowBackend


@pytest.mark.parametrize("name", METHODS)
def test_every_backend_has_the_method(name):
    documented = getattr(Backend, name)
    assert documented.__doc__
    for kind in (TensorFlowBackend, SingleProgramBackend):
        method = getattr(kind, name)
        assert method is not documented
        assert list(inspect.signature(method).parameters) == list(
            inspect.signature(documented).parameters
        )


@pytest.mark.parametrize("kind", [TensorFlowBackend, SingleProgramBackend])
def test_no_backend_has_more_methods(kind):
    assert {name for name in vars(kind) if not name.startswith("_")} == set(METHODS)
