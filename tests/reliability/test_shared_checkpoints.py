"""Two processes, or a process and a person, in one folder of checkpoints."""

import os
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_mp import Checkpoints


class State:
    """A variable that holds the number of the checkpoint it belongs to."""

    built = True

    def __init__(self, number=0):
        variable = keras.Variable(np.full(16, number), dtype="float16", name="weight")
        self.variables = [variable]

    @property
    def number(self):
        (number,) = set(keras.ops.convert_to_numpy(self.variables[0]))
        return number


@pytest.fixture
def once(monkeypatch):
    """Has something happen before or after a method is called for the first time."""

    def arrange(owner, name, act, when=lambda *arguments: True, before=True):
        function = getattr(owner, name)

        def called(*arguments, **options):
            if not when(*arguments):
                return function(*arguments, **options)
            monkeypatch.setattr(owner, name, function)
            if before:
                act()
            result = function(*arguments, **options)
            if not before:
                act()
            return result

        monkeypatch.setattr(owner, name, called)

    return arrange


def is_npz(path, *_):
    return path.suffix == ".npz"


def is_unfinished(path, *_):
    return path.name == "unfinished"


def test_a_checkpoint_that_vanishes_before_it_is_read(tmp_path, once):
    Checkpoints(tmp_path).save(7, State(7))
    (path,) = tmp_path.iterdir()
    state = State()
    once(Path, "open", path.unlink, is_npz)
    message = (
        f"Received: {re.escape(path.name)}, removed after `restore` had begun, by "
        "another process that saves into this directory, or by hand. Nothing was "
        "restored. Call `restore` again"
    )
    with pytest.raises(FileNotFoundError, match=message) as raised:
        Checkpoints(tmp_path).restore(state)
    assert raised.value.filename == str(tmp_path)
    assert state.number == 0
    assert Checkpoints(tmp_path).restore(state) == 0


def test_a_checkpoint_that_vanishes_while_it_is_read(tmp_path, once):
    Checkpoints(tmp_path).save(7, State(7))
    (path,) = tmp_path.iterdir()
    state = State()
    once(Path, "open", path.unlink, is_npz, before=False)
    assert Checkpoints(tmp_path).restore(state) == 7
    assert state.number == 7 and not path.exists()


def test_a_checkpoint_that_is_replaced_while_it_is_read(tmp_path, once):
    """What is restored is what the checksum was taken of."""
    Checkpoints(tmp_path).save(7, State(7))
    (path,) = tmp_path.iterdir()

    def replace():
        path.unlink()
        path.write_bytes(b"of another run")

    state = State()
    once(np, "load", replace)
    assert Checkpoints(tmp_path).restore(state) == 7
    assert state.number == 7


def test_a_folder_that_vanishes_before_it_is_read(tmp_path):
    assert Checkpoints(tmp_path / "gone").restore(State()) == 0


def begin(unfinished):
    """Another process begins a checkpoint."""
    unfinished.unlink(missing_ok=True)
    unfinished.write_bytes(b"half of another one")


def finish(unfinished):
    """Another process writes a whole checkpoint."""
    Checkpoints(unfinished.parent, keep=9).save(1, State(1))


# The moment, and what another process does then.
SECOND_WRITERS = {
    "begins-before": (Path, "open", is_unfinished, begin),
    "begins": (os, "fsync", lambda _: True, begin),
    "ends": (os, "fsync", lambda _: True, finish),
    "ends-before-the-name": (os, "replace", lambda *_: True, finish),
}


@pytest.mark.parametrize(
    ("owner", "name", "when", "act"), SECOND_WRITERS.values(), ids=SECOND_WRITERS
)
def test_a_second_writer_is_named(owner, name, when, act, tmp_path, once):
    unfinished = tmp_path / "unfinished"
    once(owner, name, lambda: act(unfinished), when)
    message = (
        "Checkpoint 2 could not be written: another process saves into this directory. "
        "Give each run its own directory; where several processes train one model, let "
        "one of them save"
    )
    with pytest.raises(OSError, match=message) as raised:
        Checkpoints(tmp_path, keep=9).save(2, State(2))
    assert raised.value.filename == str(tmp_path)
    assert "make room" not in str(raised.value)
    # What the other one wrote is as it was.
    if act is begin:
        assert unfinished.read_bytes() == b"half of another one"
    else:
        state = State()
        assert Checkpoints(tmp_path).restore(state) == state.number == 1


def test_a_folder_that_is_removed_meanwhile(tmp_path, once):
    folder = tmp_path / "run"

    def remove():
        (folder / "unfinished").unlink()
        folder.rmdir()

    once(os, "fsync", remove)
    message = "Checkpoint 2 could not be written: the directory was removed meanwhile"
    with pytest.raises(FileNotFoundError, match=message) as raised:
        Checkpoints(folder).save(2, State(2))
    assert raised.value.filename == str(folder)
