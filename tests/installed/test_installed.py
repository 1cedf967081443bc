"""The wheel: what it says of itself, where it is, and that its library is used."""

import importlib.metadata
import re
import shutil
import site
from pathlib import Path

import pytest
import tensorflow as tf

import keras_mp
from keras_mp.ops.kernels import native


@pytest.fixture(scope="module")
def wheel():
    return importlib.metadata.distribution("keras_mp")


def test_the_package_is_that_of_the_wheel():
    assert Path(keras_mp.__file__).parents[1] in map(Path, site.getsitepackages())


@pytest.mark.parametrize("tool", ["c++", "g++", "clang++", "cmake", "ninja", "make"])
def test_nothing_here_could_have_built_the_library(tool):
    assert shutil.which(tool) is None


def test_one_wheel_is_for_every_python(wheel):
    tags = re.findall("^Tag: (.*)$", wheel.read_text("WHEEL"), re.MULTILINE)
    assert len(tags) == 1
    assert re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", tags[0])
    library = native.LIBRARY.read_bytes()
    for of_cpython in (b"libpython", b"PyObject_", b"Py_IncRef"):
        assert of_cpython not in library


def test_no_library_of_tensorflow_is_in_it(wheel):
    libraries = [path.name for path in wheel.files if ".so" in path.suffixes]
    assert libraries == [native.LIBRARY.name]


def test_it_asks_for_the_tensorflow_it_was_built_for(wheel):
    major, minor, _ = native.build_facts()["tensorflow"].split(".")
    expected = f"tensorflow<{major}.{int(minor) + 1},>={major}.{minor}"
    assert expected in wheel.requires


def test_the_library_is_used():
    info = keras_mp.ops.build_info()
    assert info["route"] == "native"
    assert info["built_for"] == tf.__version__
    assert "missing" not in info
