"""The routes of an op, each a way to run a function."""

import functools

import pytest
import tensorflow as tf

from keras_mp.ops.kernels import native

# How a function runs, and what KERAS_MP_OPS says.
ROUTES = {
    "native": (lambda f, **_: f, "native"),
    "graph": (tf.function, "native"),
    "xla": (functools.partial(tf.function, jit_compile=True), "native"),
    "reference": (lambda f, **_: f, "reference"),
}


@pytest.fixture
def ops_mode(monkeypatch):
    """Sets KERAS_MP_OPS for one test, whatever it is outside."""

    def choose(mode):
        monkeypatch.setenv("KERAS_MP_OPS", mode)
        native.library.cache_clear()

    yield choose
    native.library.cache_clear()


@pytest.fixture(params=ROUTES)
def route(request, ops_mode):
    """Makes a function run on one of the routes; like `tf.function`, takes options."""
    run, mode = ROUTES[request.param]
    ops_mode(mode)
    return run


@pytest.fixture(params=["native", "reference"])
def library(request, ops_mode):
    """With the native library, and without; returns which."""
    ops_mode(request.param)
    return request.param
