"""What the pages say of the installation, and the README as from a fresh clone."""

import os
import re
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    *(README, ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
URL = "https://example.org/keras_mp"
# All that is found, and so no compiler: without one the package installs in seconds.
COMMANDS = ("bash", "cat", "find", "git", "make", "sh")


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_is_installed_from_an_index(page):
    """No index has keras_mp, whoever else may register the name."""
    commands = re.findall(r"pip install ([^`\n]*)", page.read_text())
    named = [command for command in commands if "keras_mp" in command]
    from_git = re.compile(r"'keras_mp(\[\w+\])? @ git\+URL'")
    assert [each for each in named if not from_git.match(each)] == []


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "index.md"], ids=name_of)
def test_an_address_has_a_host(page):
    """pip 23 refuses `keras_mp @ git+file:///PATH`, where the URL names no host."""
    sentence = re.search(r"`URL` is .*?[.:]\s", page.read_text(), re.DOTALL)[0]
    addresses = re.findall(r"`(\w+://[^`]*)`", sentence)
    assert len(addresses) > 1
    assert [each for each in addresses if not urlsplit(each).hostname] == []


def blocks(language):
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.xslow
def test_every_block_of_the_readme_runs_as_from_a_fresh_clone(tmp_path):
    """The packages are those of the tests; what `make` would run is only printed."""
    environment, commands = tmp_path / "environment", tmp_path / "commands"
    venv.create(environment)
    packages = sysconfig.get_paths()["purelib"]
    for path in environment.glob("lib/python*/site-packages"):
        (path / "packages.pth").write_text(f"{packages}\n")
    pip = environment / "bin" / "pip"
    pip.write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    pip.chmod(0o755)
    commands.mkdir()
    for name in COMMANDS:
        (commands / name).symlink_to(shutil.which(name))
    variables = {
        "PATH": os.pathsep.join([str(environment / "bin"), str(commands)]),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": URL,
        "MAKEFLAGS": "--dry-run",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # as pip reads it: no isolation
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    given = {"KERAS_MP_OPS", "KERAS_MP_CPU_ISA", "KERAS_MP_CUDA", "PYTHONPATH"}
    base = {k: v for k, v in os.environ.items() if k not in given}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*arguments, folder=elsewhere):
        done = subprocess.run(
            arguments,
            cwd=folder,
            env=base | variables,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    for block in blocks("sh"):
        run("bash", "-e", "-c", re.sub(r"\bURL\b", URL, block))
    code = "\n".join(blocks("python"))
    where = "print(keras_mp.__file__)\n"
    *_, weight, place = run("python", "-c", code + where).splitlines()
    assert weight == "[0.9]"
    assert Path(place).is_relative_to(environment)
    text = README.read_text()
    assert "`python examples/quickstart.py`" in text
    clone = elsewhere / "keras_mp"
    assert "with a master in float32" in run(
        "python", "examples/quickstart.py", folder=clone
    )
