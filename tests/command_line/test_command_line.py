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
from keras_mp_cli import main

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("info", "inspect", "benchmark", "gpu")


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


# What pip writes, and the module itself.
STARTS = {"script": ["bin/keras-mp"], "module": ["-m", "keras_mp_cli"]}
SCRIPT = "import sys\nfrom keras_mp_cli import main\nsys.exit(main())\n"


@pytest.fixture
def without_keras(tmp_path, monkeypatch):
    """A folder with the script, and an environment where Keras cannot be imported."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "keras-mp").write_text(SCRIPT)
    for host in ("keras", "numpy", "tensorflow"):
        (tmp_path / f"{host}.py").write_text("raise ImportError('imported')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [
        (["--help"], 0, "usage: keras-mp "),
        (["benchmark", "--help"], 0, "usage: keras-mp benchmark "),
        (["inspect", "--help"], 0, "usage: keras-mp inspect "),
        ([], 2, "required: COMMAND"),
        (["--no-such-option"], 2, "usage: keras-mp "),
        (["inspect", "a", "--data", "b", "--loss-scale", "0"], 2, "Received: '0'."),
        (["info"], 1, "error: imported"),
    ],
    ids=["help", "benchmark", "inspect", "none", "wrong", "number", "info"],
)
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_help_and_mistakes_are_answered_without_keras(
    start, arguments, code, printed, without_keras
):
    done = subprocess.run(
        [sys.executable, *start, *arguments], capture_output=True, text=True, timeout=60
    )
    assert printed in done.stdout + done.stderr
    assert done.returncode == code


@pytest.mark.slow
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
        (
            ["inspect", "model.keras", "--data", "a.npz", "--loss-scale", "inf"],
            "--loss-scale: it must be a positive number. Received: 'inf'.",
        ),
        (["benchmark", "--fast"], "unrecognized arguments: --fast"),
    ],
    ids=["none", "unknown", "no-data", "negative", "power", "infinite", "option"],
)
def test_a_wrong_command_line_ends_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2
    assert message in capsys.readouterr().err
