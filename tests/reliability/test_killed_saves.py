"""A save that is killed before each access to the disk and after each byte.

This file is also a script, for the reason that test_killed_runs.py gives.
"""

import os
import resource
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mp

pytestmark = pytest.mark.slow

# What Python tells its audit hooks of, where a save touches the disk.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove")
NEVER = 10**9


class State:
    """Variables that all hold the number of the checkpoint they belong to."""

    built = True

    def __init__(self):
        self.variables = [
            keras.Variable(np.zeros(24), dtype="float16", name="weight"),
            keras.Variable(np.zeros(24), dtype="float32", name="master"),
        ]

    def hold(self, number):
        for variable in self.variables:
            variable.assign(np.full(24, number))

    def check(self, number):
        for variable in self.variables:
            if not np.all(keras.ops.convert_to_numpy(variable) == number):
                sys.exit(f"Checkpoint {number} holds {variable}.")


def kill_at_event(count, events=EVENTS, path=""):
    """Kills this process before it touches the disk once more than `count` times."""
    seen = []

    def hook(event, arguments):
        if event in events and path in str(arguments[0]):
            seen.append(event)
            if len(seen) > count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kill_at_byte(count):
    """Has the kernel kill this process when a file gets more than `count` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))


KILLS = {"event": kill_at_event, "byte": kill_at_byte}


def is_killed(act, *arguments):
    """Acts in a process of its own; returns whether that was killed."""
    pid = os.fork()
    if pid == 0:
        act(*arguments)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and status:
        sys.exit("The process failed.")
    return os.WIFSIGNALED(status)


def save_the_next(folder, kill, count):
    """Checks what the last process left, and saves once more."""
    warnings.simplefilter("error", UserWarning)
    checkpoints, state = keras_mp.Checkpoints(folder), State()
    number = checkpoints.restore(state)
    state.check(number)
    state.hold(number + 1)
    kill(count)
    checkpoints.save(number + 1, state)


def main(folder, kill, step):
    """Kills saves later and later until one ends by itself; prints their number."""
    # Then the next has something to remove.
    for _ in range(2):
        is_killed(save_the_next, folder, kill, NEVER)
    kills = 0
    while is_killed(save_the_next, folder, kill, kills * step):
        kills += 1
    print(kills)


def killed_saves(folder, kill, step):
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, __file__, str(folder), kill, str(step)],
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=1200,
    )
    return int(done.stdout)


def test_killed_before_each_access_to_the_disk(tmp_path):
    """Each leaves the checkpoint before or the new one, which the next process sees."""
    # To make the file, to write it, to read its checksum, to rename it, to have its
    # name on the disk and to remove an older one.
    assert killed_saves(tmp_path, "event", 1) >= 5
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.xslow
def test_killed_after_each_byte(tmp_path):
    kills = killed_saves(tmp_path, "byte", 1)
    first, second = sorted(tmp_path.iterdir())
    assert kills == first.stat().st_size == second.stat().st_size


if __name__ == "__main__":
    main(Path(sys.argv[1]), KILLS[sys.argv[2]], int(sys.argv[3]))
