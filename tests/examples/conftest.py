"""What the tests of all experiments share."""

import os

import pytest
import voc

from keras_mp.ops.kernels import native


@pytest.fixture(autouse=True)
def route_of_the_ops(monkeypatch):
    """Ends with the test what a run in pseudo FP16 sets for the rest of its process."""
    monkeypatch.setenv("KERAS_MP_OPS", os.environ.get("KERAS_MP_OPS", "auto"))
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.fixture
def images_of_squares(tmp_path):
    """Images of a cat and a dog each, as the object detection example reads them."""
    from object_detection.data import load

    return load(voc.write_squares(tmp_path / "squares.tar"), "all", "all")[1]


@pytest.fixture
def flags_for_squares(tmp_path):
    """The flags of a short run on such images, but for the boxes of the network."""
    flags = ["--side=32", "--width=0.0625", "--batch=2", "--steps=2", "--eval-every=1"]
    data = voc.write_squares(tmp_path / "squares.tar")
    return [*flags, "--warm-up=1", "--verbose=0", f"--data={data}"]
