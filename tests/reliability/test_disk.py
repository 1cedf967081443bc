"""A full disk and a directory that may not be written to."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mp

NOBODY = 65534


def make_model():
    layer = keras.layers.Dense(1, kernel_initializer="ones", dtype="float16")
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile(keras_mp.wrap("sgd", loss_scale=1), "mse", run_eagerly=True)
    return model


def full(path):
    """Lets what is written to a path meet a full disk, as /dev/full is one."""
    path.symlink_to("/dev/full")


def test_a_checkpoint_on_a_full_disk(tmp_path):
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path)
    checkpoints.save(1, model)
    before = list(tmp_path.iterdir())
    expected = model.get_weights()
    model.set_weights([weight + 1 for weight in expected])
    full(tmp_path / "unfinished")
    message = r"Checkpoint 2 could not be written: No space left.*before it are as they"
    with pytest.raises(OSError, match=message) as raised:
        checkpoints.save(2, model)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == before
    assert checkpoints.restore(model) == 1
    for one, other in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fit_on_a_full_disk_goes_on_when_there_is_room(tmp_path):
    x = np.ones((2, 2), "float32")
    checkpoints = keras_mp.Checkpoints(tmp_path)

    class Fill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                full(tmp_path / "unfinished")

    def fit(*callbacks):
        model = make_model()
        done = checkpoints.restore(model)
        callbacks = [*callbacks, checkpoints]
        options = {"epochs": 4, "initial_epoch": done, "verbose": 0}
        model.fit(x, x[:, :1], callbacks=callbacks, **options)
        return done

    with pytest.raises(OSError, match="Checkpoint 3 could not be written"):
        fit(Fill())
    assert fit() == 2
    assert checkpoints.restore(make_model()) == 4


@pytest.fixture
def read_only():
    """A directory with a checkpoint, for a user who may not write to it."""
    with tempfile.TemporaryDirectory() as folder:
        keras_mp.Checkpoints(folder).save(1, make_model())
        os.chmod(folder, 0o555)
        yield Path(folder)
        os.chmod(folder, 0o755)


@contextlib.contextmanager
def without_privileges():
    """Root may write anywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("inside", ["", "new"])
def test_a_checkpoint_in_a_read_only_directory(inside, read_only):
    model, before = make_model(), list(read_only.iterdir())
    checkpoints = keras_mp.Checkpoints(read_only / inside)
    with without_privileges():
        with pytest.raises(PermissionError, match=r"Checkpoint 2 .* denied") as raised:
            checkpoints.save(2, model)
        assert keras_mp.Checkpoints(read_only).restore(model) == 1
    assert raised.value.filename == str(read_only / inside)
    assert list(read_only.iterdir()) == before


# The files of the example.


def test_a_result_on_a_full_disk(example, tmp_path):
    from files import write_whole

    path = tmp_path / "result.json"
    write_whole(path, lambda part: part.write_text("the first"))
    full(tmp_path / "result.json.part")
    with pytest.raises(OSError, match=r"result.json could not be written: .*No space"):
        write_whole(path, lambda part: part.write_text("the second"))
    assert path.read_text() == "the first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_folder_that_is_read_only(example, read_only):
    from train import main

    with without_privileges(), pytest.raises(PermissionError, match=str(read_only)):
        main([f"--out={read_only / 'run'}"])
    assert not (read_only / "run").exists()
