"""What stands in for `distribution` on other backends has the same functions."""

import inspect

import pytest

from keras_mp import backend, distribution, without_replicas


@pytest.mark.parametrize("name", backend.__all__)
def test_every_backend_has_the_function(name):
    chosen, other = getattr(distribution, name), getattr(without_replicas, name)
    assert getattr(backend, name) is chosen
    assert list(inspect.signature(chosen).parameters) == list(
        inspect.signature(other).parameters
    )
