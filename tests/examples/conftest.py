"""What the tests of all experiments share."""

import os

import pytest

from keras_mp.ops.kernels import native


@pytest.fixture(autouse=True)
def route_of_the_ops(monkeypatch):
    """Ends with the test what a run in pseudo FP16 sets for the rest of its process."""
    monkeypatch.setenv("KERAS_MP_OPS", os.environ.get("KERAS_MP_OPS", "auto"))
    native.library.cache_clear()
    yield
    native.library.cache_clear()
