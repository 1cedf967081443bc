"""The commands as a user calls them: what they print, and their exit codes."""

import configparser
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from older_versions import needs

import keras_mp
from keras_mp.ops.kernels import native
from keras_mp_cli import main

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("info", "inspect", "benchmark", "gpu")


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
        (["--version"], 0, f"keras_mp {keras_mp.__version__}"),
        (["info"], 2, "error: imported"),
    ],
    ids=["help", "benchmark", "inspect", "none", "wrong", "number", "version", "info"],
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


def run(*arguments, **settings):
    """Runs `keras-mp` as a user does, who has set nothing."""
    theirs = ("TF_CPP_MIN_LOG_LEVEL", "KERAS_MP_OPS", "PYTHONWARNINGS")
    environment = {k: v for k, v in os.environ.items() if k not in theirs}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "keras_mp_cli", *arguments],
        cwd=ROOT,
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
@needs("TensorFlow", 2, 20)
def test_info_is_quiet():
    done = run("info")
    assert done.stderr == ""
    assert done.returncode == 0
    info = dict(
        re.fullmatch(r"([a-z_]+): +(\S.*)", s).groups()
        for s in done.stdout.splitlines()
    )
    assert info["keras_mp"] == keras_mp.__version__
    assert info["tensorflow"] == tf.__version__
    assert info["route"] == "native"
    named = {"python", "keras", "machine", "processor", "library"}
    assert named | {"compiler", "cpu", "cuda"} <= set(info)


@pytest.mark.slow
def test_logs_of_tensorflow_are_there_for_those_who_ask():
    done = run("info", TF_CPP_MIN_LOG_LEVEL="0")
    assert done.stderr  # which is empty where nobody asks, as above
    assert done.returncode == 0


WRONG_SETTINGS = {
    "ops": {"KERAS_MP_OPS": "cuda"},
    "isa": {"KERAS_MP_CPU_ISA": "sse"},
    "backend": {"KERAS_BACKEND": "theano"},
}


@pytest.mark.slow_except("backend")
@pytest.mark.xslow_except("backend", "ops")
@pytest.mark.parametrize("setting", WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_a_wrong_setting_is_one_line(setting):
    done = run("info", **setting)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    (value,) = setting.values()
    assert line.startswith("error: ") and value in line
    assert done.stdout == ""


def test_a_library_that_is_missing_is_a_finding(tmp_path, monkeypatch, capsys):
    facts = native.build_facts
    monkeypatch.setattr(native, "build_facts", lambda: facts(tmp_path / "none.so"))
    assert main(["info"]) == 1
    assert re.search(r"^missing: .*is missing", capsys.readouterr().out, re.M)


# On import: what C++ writes, what Python prints and warns, and a logger that stays.
NOISY = """
import logging, os, sys, warnings
os.write(2, b"from C++\\n")
print("from Python", file=sys.stderr)
warnings.warn("take care")
logger = logging.getLogger("noisy")
logger.addHandler(logging.StreamHandler())
"""
LATER = """
import sys
from keras_mp_cli import import_quietly
import os
import_quietly("noisy").logger.error("logged later")
os.write(2, b"C++ later")
"""


def test_python_is_heard_while_a_command_is_imported(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    hidden = ("TF_CPP_MIN_LOG_LEVEL", "PYTHONWARNINGS")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", LATER],
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stderr.splitlines()
    assert said[0] == "from Python"
    assert "UserWarning: take care" in said[1]
    assert said[-2:] == ["logged later", "C++ later"]
    assert "from C++" not in said
    assert done.returncode == 0


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
