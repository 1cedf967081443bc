"""The native library: loaded, refused or missing, and the messages."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp.ops import build_info, fp16_gemm
from keras_mp.ops.kernels import native
from keras_mp.registration import register_ops

ONES = np.ones((1, 1), "float16")


@pytest.fixture
def library_at(monkeypatch, tmp_path):
    """Uses another file as the library, made from the bytes of the real one."""

    def use(change):
        path = tmp_path / "_keras_mp_ops.so"
        contents = change(native.LIBRARY.read_bytes())
        if contents is not None:
            path.write_bytes(contents)
        load, facts = native.load, native.build_facts
        monkeypatch.setattr(native, "LIBRARY", path)
        monkeypatch.setattr(native, "load", lambda: load(path))
        monkeypatch.setattr(native, "build_facts", lambda at=path: facts(at))
        return path

    return use


def of_another_tensorflow(contents):
    here = f'"tensorflow": "{tf.__version__}"'.encode()
    assert contents.count(here) == 1
    return contents.replace(here, here.replace(tf.__version__.encode(), b"1.99.0"))


@pytest.mark.parametrize(
    ("built_for", "running", "is_same"),
    [
        ("2.21.0", "2.21.0", True),
        ("2.22.0rc0", "2.22.0-rc0", True),
        ("2.23.0.dev20261026", "2.23.0-dev20261026", True),
        ("2.21.0+nv25.2", "2.21.0", True),
        ("2.21.0", "2.21.1", False),
        ("2.22.0rc0", "2.22.0-rc1", False),
        ("2.22.0rc0", "2.22.0", False),
        ("2.2.0", "2.20.0", False),
    ],
)
def test_a_library_is_for_one_release(monkeypatch, built_for, running, is_same):
    loaded = []
    monkeypatch.setattr(native, "build_facts", lambda path: {"tensorflow": built_for})
    monkeypatch.setattr(tf, "load_library", loaded.append)
    monkeypatch.setattr(tf, "__version__", running)
    if is_same:
        native.register(Path("of_it.so"))
        assert loaded == ["of_it.so"]
        return
    message = f"for the installed TensorFlow, {running}. Received: .*for {built_for}"
    with pytest.raises(native.NativeLibraryError, match=message):
        native.register(Path("of_it.so"))
    assert loaded == []


# Name: what happens to the file, and what the message says of it.
BROKEN = {
    "missing": (lambda contents: None, "is missing"),
    "another-tensorflow": (of_another_tensorflow, "built for 1.99.0"),
    "cut-off": (lambda contents: contents[:1000], "must say what it was built for"),
    "empty": (lambda contents: b"", "must say what it was built for"),
    "damaged-header": (lambda contents: bytes(8) + contents[8:], "cannot be loaded"),
    "damaged-facts": (
        lambda contents: contents.replace(b'{"tensorflow"', b'{"tensor\\xff'),
        "must say what it was built for",
    ),
    "half-the-facts": (
        lambda contents: contents.replace(b'"compiler"', b'"computer"'),
        "must say what it was built for",
    ),
}
EACH = pytest.mark.parametrize("name", BROKEN)


@EACH
def test_auto_warns_once_and_uses_the_reference(ops_mode, library_at, name):
    change, reason = BROKEN[name]
    path = library_at(change)
    ops_mode("auto")
    with pytest.warns(UserWarning) as warned:
        assert fp16_gemm(ONES, ONES).numpy() == 1
    (message,) = (str(warning.message) for warning in warned)
    for part in ("keras_mp.ops.fp16_gemm", str(path), reason, "pip install", "CMake"):
        assert part in message
    assert "KERAS_MP_OPS=reference" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fp16_gemm(ONES, ONES).numpy() == 1


@EACH
def test_native_raises_every_time(ops_mode, library_at, name):
    change, reason = BROKEN[name]
    path = library_at(change)
    ops_mode("native")
    for _ in range(2):
        with pytest.raises(native.NativeLibraryError) as error:
            fp16_gemm(ONES, ONES)
        for part in (str(path), reason, "pip install"):
            assert part in str(error.value)
    assert isinstance(error.value, ImportError)


@EACH
def test_reference_does_not_look(ops_mode, library_at, name):
    library_at(BROKEN[name][0])
    ops_mode("reference")
    assert fp16_gemm(ONES, ONES).numpy() == 1


@EACH
def test_build_info_tells_why_a_route_is_missing(ops_mode, library_at, name):
    change, reason = BROKEN[name]
    library_at(change)
    ops_mode("auto")
    info = build_info()
    assert info["route"] == "reference"
    assert reason in info["missing"]
    built_for = {"another-tensorflow": "1.99.0", "damaged-header": tf.__version__}
    assert info.get("built_for") == built_for.get(name)


@pytest.mark.parametrize("mode", ["auto", "native"])
@pytest.mark.parametrize("name", sorted(BROKEN.keys() - {"missing"}))
def test_the_import_warns_of_a_library_that_cannot_be_loaded(
    ops_mode, library_at, name, mode
):
    change, reason = BROKEN[name]
    path = library_at(change)
    ops_mode(mode)
    with pytest.warns(UserWarning) as warned:
        register_ops()
    (message,) = (str(warning.message) for warning in warned)
    for part in ("a SavedModel that contains", str(path), reason, "pip install"):
        assert part in message
    assert "KERAS_MP_OPS=reference" in message


def test_the_import_of_a_package_without_a_library_is_silent(ops_mode, library_at):
    library_at(BROKEN["missing"][0])
    ops_mode("auto")
    register_ops()  # an op warns, when it is called


@EACH
def test_the_import_does_not_look_at_a_library_that_is_off(ops_mode, library_at, name):
    library_at(BROKEN[name][0])
    ops_mode("reference")
    register_ops()


def test_the_import_refuses_an_unknown_mode(ops_mode):
    ops_mode("cuda")
    with pytest.raises(ValueError, match="Received: KERAS_MP_OPS='cuda'"):
        register_ops()


def test_the_other_tensorflow_is_named_beside_this_one(ops_mode, library_at):
    library_at(of_another_tensorflow)
    ops_mode("native")
    with pytest.raises(native.NativeLibraryError) as error:
        fp16_gemm(ONES, ONES)
    assert tf.__version__ in str(error.value)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.20.1", "_keras_mp_ops_tf2_20.so"),
        ("2.21.0-dev20260101", "_keras_mp_ops_tf2_21.so"),
        ("2.2.0", "_keras_mp_ops.so"),
        ("2.22.0", "_keras_mp_ops.so"),
    ],
)
def test_the_library_of_the_minor_version_is_chosen(version, expected, tmp_path):
    for minor in ("2_20", "2_21"):
        (tmp_path / f"_keras_mp_ops_tf{minor}.so").touch()
    assert native.library_for(version, tmp_path) == tmp_path / expected


def test_a_wheel_without_a_fitting_library_names_those_it_has(tmp_path):
    (tmp_path / "_keras_mp_ops_tf2_20.so").touch()
    with pytest.raises(native.NativeLibraryError) as error:
        native.build_facts(tmp_path / "_keras_mp_ops.so")
    expected = f"TensorFlow {tf.__version__} is missing"
    for part in (expected, "_keras_mp_ops_tf2_20.so", "pip install", "2.20 or newer"):
        assert part in str(error.value)


@pytest.mark.parametrize("mode", ["cuda", "Native"])
def test_an_unknown_mode_is_refused(ops_mode, mode):
    ops_mode(mode)
    with pytest.raises(ValueError, match="KERAS_MP_OPS") as error:
        fp16_gemm(ONES, ONES)
    assert f"Received: KERAS_MP_OPS={mode!r}" in str(error.value)
    for allowed in native.MODES:
        assert repr(allowed) in str(error.value)


def test_auto_is_the_default(ops_mode, monkeypatch):
    ops_mode("auto")
    monkeypatch.delenv("KERAS_MP_OPS")
    assert native.mode() == "auto"
    assert native.library() is native.load()


def test_an_empty_mode_is_the_default(ops_mode):
    ops_mode("")
    assert native.mode() == "auto"


@needs("TensorFlow", 2, 20)
def test_build_info_with_the_library(ops_mode):
    ops_mode("native")
    info = build_info()
    assert info["route"] == info["mode"] == "native"
    assert info["tensorflow"] == info["built_for"] == tf.__version__
    assert Path(info["library"]) == native.LIBRARY
    assert info["cpu"] in native.supported_cpu_instructions()
    assert info["compiler"] and info["cuda"]
    assert "missing" not in info


def test_build_info_names_processor_and_gpu(monkeypatch):
    assert build_info()["processor"]
    names = {"GPU:0": {"device_name": "NVIDIA H100"}, "GPU:1": {}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: list(names))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", names.get)
    assert build_info()["gpu"] == "NVIDIA H100, GPU"


# Whether TensorFlow has CUDA, whether there is a driver, and what is said.
WITHOUT_GPU = {
    "cpu-build": (False, True, "built without CUDA"),
    "no-driver": (True, False, "no NVIDIA driver"),
    "hidden": (True, True, "tensorflow[and-cuda]"),
}


@pytest.mark.parametrize("name", WITHOUT_GPU)
def test_build_info_says_why_there_is_no_gpu(monkeypatch, name):
    has_cuda, has_driver, reason = WITHOUT_GPU[name]

    def load(library):
        assert library == "libcuda.so.1"
        if not has_driver:
            raise OSError

    # The module, which the function of its name hides.
    module = sys.modules["keras_mp.ops.build_info"]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [])
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: has_cuda)
    monkeypatch.setattr(module.ctypes, "CDLL", load)
    monkeypatch.setenv("KERAS_MP_OPS", "reference")
    gpu = build_info()["gpu"]
    assert gpu.startswith("none: ") and reason in gpu


def test_build_info_with_the_reference(ops_mode):
    ops_mode("reference")
    info = build_info()
    assert info["route"] == info["mode"] == "reference"
    assert "cpu" not in info


def test_build_info_refuses_an_unknown_mode(ops_mode):
    ops_mode("cuda")
    with pytest.raises(ValueError, match="KERAS_MP_OPS"):
        build_info()
