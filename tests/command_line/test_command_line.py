"""The commands as a user calls them: what they print, and their exit codes."""

import configparser
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_mp
from keras_mp.command_line import main

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("info", "inspect", "benchmark")


def test_python_m_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "keras_mp", "info"],
        env=os.environ | {"KERAS_MP_OPS": "reference"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"keras_mp:     {keras_mp.__version__}\n" in done.stdout
    assert re.search(r"^processor: +\w", done.stdout, re.M)


def test_the_console_script_is_main():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    script = setup["options.entry_points"]["console_scripts"].strip()
    name, _, target = script.partition(" = ")
    module, _, function = target.partition(":")
    assert name == "keras-mp"
    assert getattr(importlib.import_module(module), function) is main


def test_importing_the_package_imports_no_command():
    code = "import sys, keras_mp; print('keras_mp.command_line' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_teaches(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        main([*arguments, "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 88 for line in text.splitlines())
    if not arguments:
        assert all(re.search(rf"^ +{name}\b", text, re.M) for name in COMMANDS)
    if arguments != ["info"]:
        assert "examples:\n  keras-mp " in text and "Exit codes: 0, " in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["train"], "invalid choice: 'train'"),
        (["inspect", "model.keras"], "required: --data"),
        (
            ["inspect", "model.keras", "--data", "a.npz", "--loss-scale", "-1"],
            "--loss-scale: it must be a positive number. Received: '-1'. Try 32768.",
        ),
        (
            ["inspect", "model.keras", "--data", "a.npz", "--loss-scale", "2^15"],
            "--loss-scale: it must be a positive number. Received: '2^15'.",
        ),
        (["benchmark", "--fast"], "unrecognized arguments: --fast"),
    ],
    ids=["none", "unknown", "no-data", "negative", "power", "option"],
)
def test_a_wrong_command_line_ends_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2
    assert message in capsys.readouterr().err
