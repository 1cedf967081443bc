"""A full disk and a directory that may not be written to."""

import contextlib
import errno
import os
import stat
import tempfile
import types
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mp

pytestmark = pytest.mark.slow

NOBODY = 65534


def make_model():
    layer = keras.layers.Dense(1, kernel_initializer="ones", dtype="float16")
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile(keras_mp.wrap("sgd", loss_scale=1), "mse", run_eagerly=True)
    return model


def full(path):
    """Lets what is written to a path meet a full disk, as /dev/full is one."""
    path.symlink_to("/dev/full")


@pytest.fixture
def disk(monkeypatch):
    """While `disk.full` is True, a checkpoint is written to /dev/full."""
    disk = types.SimpleNamespace(full=False)
    really_open = Path.open

    def open_on_disk(path, mode="r", **options):
        file = really_open(path, mode, **options)
        if not disk.full or path.name != "unfinished":
            return file
        file.close()
        return really_open(Path("/dev/full"), "wb")

    monkeypatch.setattr(Path, "open", open_on_disk)
    return disk


def test_a_checkpoint_on_a_full_disk(disk, tmp_path):
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path)
    checkpoints.save(1, model)
    before = list(tmp_path.iterdir())
    expected = model.get_weights()
    model.set_weights([weight + 1 for weight in expected])
    disk.full = True
    message = (
        r"Checkpoint 2 could not be written: No space left.*Earlier checkpoints are"
    )
    with pytest.raises(OSError, match=message) as raised:
        checkpoints.save(2, model)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == before
    assert checkpoints.restore(model) == 1
    for one, other in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fit_on_a_full_disk_goes_on_when_there_is_room(disk, tmp_path):
    x = np.ones((2, 2), "float32")
    checkpoints = keras_mp.Checkpoints(tmp_path)

    class Fill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            disk.full = epoch == 2

    def fit(*callbacks):
        model = make_model()
        done = checkpoints.restore(model)
        callbacks = [*callbacks, checkpoints]
        options = {"epochs": 4, "initial_epoch": done, "verbose": 0}
        model.fit(x, x[:, :1], callbacks=callbacks, **options)
        return done

    with pytest.raises(OSError, match="Checkpoint 3 could not be written"):
        fit(Fill())
    disk.full = False
    assert fit() == 2
    assert checkpoints.restore(make_model()) == 4


@pytest.fixture
def read_only():
    """A directory with a checkpoint, for a user who may not write to it."""
    with tempfile.TemporaryDirectory() as folder:
        model, checkpoints = make_model(), keras_mp.Checkpoints(folder)
        checkpoints.save(1, model)
        # That user may not be allowed to read the modules of Python it needs, either.
        checkpoints.restore(model)
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


def test_a_checkpoint_is_not_written_through_a_link(tmp_path):
    """Which someone may put there, and which may lead to any file."""
    model, theirs = make_model(), tmp_path / "theirs"
    theirs.write_text("not ours")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for target in (theirs, tmp_path / "none"):
        (folder / "unfinished").symlink_to(target)
        keras_mp.Checkpoints(folder).save(1, model)
        assert keras_mp.Checkpoints(folder).restore(model) == 1
        assert [path.is_symlink() for path in folder.iterdir()] == [False]
    assert theirs.read_text() == "not ours"
    assert not (tmp_path / "none").exists()


def test_a_folder_where_a_checkpoint_would_be_written(tmp_path):
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path)
    checkpoints.save(1, model)
    folder = tmp_path / "unfinished"
    folder.mkdir()
    message = rf"Checkpoint 2 could not be written: Is a directory: {folder}\. "
    with pytest.raises(IsADirectoryError, match=message) as raised:
        checkpoints.save(2, model)
    assert raised.value.filename == str(tmp_path)
    assert folder.is_dir()
    assert checkpoints.restore(model) == 1


def test_a_folder_with_the_name_of_a_checkpoint_is_none(tmp_path):
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path, keep=1)
    folder = tmp_path / f"000000009-{'0' * 16}.npz"
    folder.mkdir()
    assert checkpoints.restore(model) == 0
    checkpoints.save(1, model)
    assert checkpoints.restore(model) == 1
    assert folder.is_dir()


def test_a_new_checkpoint_is_on_the_disk_before_an_older_one_is_removed(
    tmp_path, monkeypatch
):
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, model)
    done = []

    def note(name, kind):
        act = getattr(os, name)

        def noted(what, *arguments, **options):
            done.append(kind(what))
            return act(what, *arguments, **options)

        monkeypatch.setattr(os, name, noted)

    def synced(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        return "sync the folder" if is_folder else "sync the file"

    note("fsync", synced)
    note("replace", lambda path: "rename")
    note("unlink", lambda path: f"remove {Path(path).name[:9]}")
    checkpoints.save(2, model)
    expected = ["sync the file", "rename", "sync the folder", "remove 000000001"]
    assert done[-4:] == expected


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_synced(code, tmp_path, monkeypatch):
    """Some file systems know no such thing; an error of the disk is told."""
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, model)
    (before,) = tmp_path.iterdir()
    fsync = os.fsync

    def fails(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    if code == errno.EINVAL:
        checkpoints.save(2, model)
    else:
        with pytest.raises(OSError, match="Checkpoint 2 could not be written: Input"):
            checkpoints.save(2, model)
    assert (tmp_path / before.name).exists() == (code == errno.EIO)


def replace_unlink(monkeypatch, path, act):
    """Has another function called in place of `os.unlink(path)`."""
    unlink = os.unlink

    def called(other, **options):
        (act if Path(other) == path else unlink)(other, **options)

    monkeypatch.setattr(os, "unlink", called)
    return unlink


def test_an_older_checkpoint_that_someone_else_removes(tmp_path, monkeypatch):
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, model)
    (path,) = tmp_path.iterdir()

    def removed_meanwhile(path):
        unlink(path)
        unlink(path)

    unlink = replace_unlink(monkeypatch, path, removed_meanwhile)
    checkpoints.save(2, model)
    assert not path.exists()
    assert checkpoints.restore(model) == 2


def not_permitted(path):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))


def test_an_older_checkpoint_that_cannot_be_removed(tmp_path, monkeypatch):
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, model)
    (path,) = tmp_path.iterdir()
    replace_unlink(monkeypatch, path, not_permitted)
    message = rf"longer kept must be removed\. Received: {path}: Operation not"
    with pytest.warns(UserWarning, match=message) as warned:
        checkpoints.save(2, model)
    ours = [each for each in warned if each.category is UserWarning]
    assert [warning.filename for warning in ours] == [__file__]
    assert path.exists()
    assert checkpoints.restore(model) == 2


def test_a_later_checkpoint_that_cannot_be_removed(tmp_path, monkeypatch):
    """`restore` would take it, and not what was saved last."""
    model, checkpoints = make_model(), keras_mp.Checkpoints(tmp_path)
    checkpoints.save(3, model)
    (path,) = tmp_path.iterdir()
    replace_unlink(monkeypatch, path, not_permitted)
    message = r"of a higher number must be removed.*Operation not permitted.*by hand"
    with pytest.raises(PermissionError, match=message) as raised:
        checkpoints.save(2, model)
    assert raised.value.filename == str(path)


# The files of the example.


def test_a_result_on_a_full_disk(tmp_path):
    from experiments.files import write_whole

    path = tmp_path / "result.json"
    write_whole(path, lambda part: part.write_text("the first"))
    full(tmp_path / "result.json.part")
    with pytest.raises(OSError, match=r"result.json could not be written: .*No space"):
        write_whole(path, lambda part: part.write_text("the second"))
    assert path.read_text() == "the first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_folder_that_is_read_only(read_only):
    from translation.train import main

    with without_privileges(), pytest.raises(PermissionError, match=str(read_only)):
        main([f"--out={read_only / 'run'}"])
    assert not (read_only / "run").exists()
