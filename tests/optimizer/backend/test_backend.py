"""What stands in for TensorFlow on other backends has the same functions."""

import inspect

import pytest

from keras_mp.optimizer import backend
from keras_mp.optimizer.backend import single_program, tensorflow


@pytest.mark.parametrize("name", backend.__all__)
def test_every_backend_has_the_function(name):
    chosen, other = getattr(tensorflow, name), getattr(single_program, name)
    assert getattr(backend, name) is chosen
    assert list(inspect.signature(chosen).parameters) == list(
        inspect.signature(other).parameters
    )
