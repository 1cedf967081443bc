"""Sets up TensorFlow and Keras for the tests and for the doctests in keras_mp/."""

import fnmatch
import gc
import os
import time

# Read by TensorFlow and Keras when they are imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp

pytest_plugins = ["pytester", "skip_policy", "older_versions"]

# `make test-backends` runs its tests without this file: they set up another backend.
# `make wheel` names its tests, which are not for an installation from this folder.
collect_ignore = ["tests/backends", "tests/installed"]

# The first call of a TensorFlow function is slow, so an example has no deadline.
hypothesis.settings.register_profile("keras_mp", deadline=None, derandomize=True)
hypothesis.settings.load_profile("keras_mp")

tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(2)
# So that tf.distribute has two replicas on any machine, and in test_replicas.py four.
REPLICAS = int(os.environ.get("KERAS_MP_TEST_REPLICAS", "2"))
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * REPLICAS,
)


# A test and a pattern of its marker; whether a case has been found that it names.
names_a_case = {}


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items):
    """Marks the cases that `slow_except` and `xslow_except` do not name."""
    for item in items:
        test, _, case = item.nodeid.partition("[")
        case = case.removesuffix("]")
        for marker in ("slow", "xslow"):
            named = item.get_closest_marker(f"{marker}_except")
            if not named:
                continue
            matching = {p for p in named.args if fnmatch.fnmatchcase(case, p)}
            for pattern in named.args:
                names_a_case.setdefault((test, pattern), False)
            names_a_case.update({(test, pattern): True for pattern in matching})
            if not matching:
                item.add_marker(marker)


@pytest.fixture(scope="session")
def patterns_without_a_case():
    """Patterns of `slow_except` and `xslow_except` in the files that were collected."""
    return [each for each, found in names_a_case.items() if not found]


SECONDS_BETWEEN_COLLECTIONS = 5
last_collection = time.monotonic()
gc.freeze()  # what has been imported is not looked at again


@pytest.fixture(autouse=True)
def prompt_collection():
    """Collects garbage before an iterator of tf.data in it is old.

    Its destructor may wait for a thread that autotunes and missed that it is over: as
    long as the iterator has lived, up to a minute. Collecting after each test would
    take longer than most tests.
    """
    global last_collection
    yield
    if time.monotonic() - last_collection > SECONDS_BETWEEN_COLLECTIONS:
        gc.collect()
        gc.freeze()  # or the caches of modules would be searched each time: seconds
        last_collection = time.monotonic()


@pytest.fixture(autouse=True)
def fresh_keras():
    """No test sees the names, dtype policy or random state another one left."""
    keras.utils.clear_session(free_memory=False)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)


# One for all tests: the collective operations of several strategies on the same
# devices would be taken for one another.
@pytest.fixture(scope="session")
def strategy():
    """A replica on each logical CPU."""
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace):
    """What an `Example:` may use without importing it."""
    doctest_namespace.update(keras=keras, keras_mp=keras_mp, np=np)
