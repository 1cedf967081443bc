"""No argument ends the process: an op raises an error for invalid ones.

A SavedModel calls the ops with whatever its author wrote into it, so the functions in
Python are not there to check.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


# A program and its arguments, and the fewest cases.
RUNS = {
    "eager": (["misuse.py", "eager"], 1800),
    "graph": (["misuse.py", "graph"], 1000),
    "xla": (["misuse.py", "xla"], 1000),
    "calls": (["misuse_of_calls.py"], 400),
}


@pytest.mark.xslow_except("eager", "calls")
@pytest.mark.parametrize(("arguments", "fewest"), RUNS.values(), ids=RUNS)
def test_what_does_not_fit_is_told_and_nothing_crashes(arguments, fewest):
    program, *modes = arguments
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(program), *modes],
        env=os.environ | {"KERAS_MP_OPS": "native"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = done.stdout.splitlines()
    wrong = [line for line in lines if line.startswith("wrong: ")]
    assert not wrong, "\n".join(wrong)
    assert done.returncode == 0, f"{lines[-1:]} ended it: {done.stderr[-2000:]}"
    assert lines[-1] == "all done"
    assert lines.count("done") >= fewest


def test_each_call_that_is_registered_is_made():
    root = Path(__file__).parents[2]
    headers = (root / "custom_ops" / "tensorflow").rglob("*_op*.h")
    declared = [
        re.findall(r'kCall\[\] = "keras_mp\.(\w+)"', h.read_text()) for h in headers
    ]
    made = Path(__file__).with_name("misuse_of_calls.py").read_text()
    missing = [name for names in declared for name in names if f'"{name}"' not in made]
    assert sum(map(len, declared)) > 10
    assert missing == []
