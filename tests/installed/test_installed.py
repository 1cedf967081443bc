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


@pytest.mark.parametrize(
    "tool", ["c++", "g++", "clang++", "cmake", "ninja", "make", "nvcc"]
)
def test_nothing_here_could_have_built_the_library(tool):
    assert shutil.which(tool) is None


def test_one_wheel_is_for_every_python(wheel):
    tags = re.findall("^Tag: (.*)$", wheel.read_text("WHEEL"), re.MULTILINE)
    assert len(tags) == 1
    assert re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", tags[0])
    library = native.LIBRARY.read_bytes()
    for of_cpython in (b"libpython", b"PyObject_", b"Py_IncRef"):
        assert of_cpython not in library


def test_its_name_says_whether_it_has_cuda_kernels(wheel):
    label = re.fullmatch(r"[\d.]+(?:\+cuda(\d+))?", wheel.version)[1]
    built_with = keras_mp.ops.build_info()["cuda"]
    if label is None:
        assert built_with == "none: built without CUDA"
    else:
        assert re.fullmatch(rf"(\d+\.\d )+by CUDA {label}\.\d+", built_with)
        assert {"7.5", "8.0", "9.0"} < set(built_with.split())


def test_its_libraries_need_no_cuda():
    """The kernels bring their runtime, which finds the driver when it is called."""
    library = native.LIBRARY.read_bytes()
    for name in (b"libcudart.so", b"libnvrtc.so"):
        assert name not in library
    assert isinstance(native.cuda_problem(), str)  # without a driver, too


def test_its_libraries_are_for_minor_versions_of_tensorflow_and_not_from_it(wheel):
    libraries = [path.name for path in wheel.files if ".so" in path.suffixes]
    assert native.LIBRARY.name in libraries
    for name in libraries:
        assert re.fullmatch(r"_keras_mp_ops(_tf2_\d+)?\.so", name)


def test_it_replaces_no_tensorflow(wheel):
    about_tensorflow = [line for line in wheel.requires if "tensorflow" in line]
    assert 'tensorflow>=2.18; extra == "tensorflow"' in about_tensorflow
    assert all("extra ==" in line for line in about_tensorflow)


def test_the_library_is_used():
    info = keras_mp.ops.build_info()
    assert info["route"] == "native"
    assert info["built_for"] == tf.__version__
    assert "missing" not in info
