"""TensorFlow and the backends of a single program answer the same questions."""

import inspect

import pytest

from keras_mp.optimizer.backend import SingleProgramBackend, backend
from keras_mp.optimizer.backend_tf import TensorFlowBackend

METHODS = [name for name in vars(SingleProgramBackend) if not name.startswith("_")]


def test_tensorflow_is_chosen():
    assert type(backend) is TensorFlowBackend


@pytest.mark.parametrize("name", METHODS)
def test_every_backend_has_the_method(name):
    documented = getattr(SingleProgramBackend, name)
    assert documented.__doc__
    method = getattr(TensorFlowBackend, name)
    assert method is not documented
    assert list(inspect.signature(method).parameters) == list(
        inspect.signature(documented).parameters
    )


def test_no_backend_has_more_methods():
    own = {name for name in vars(TensorFlowBackend) if not name.startswith("_")}
    assert own == set(METHODS)
