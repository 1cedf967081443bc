"""Makefile: whether the CUDA kernels are built."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HIDDEN = ("CUDACXX", "CUDA_PATH", "KERAS_MP_CUDA", "MAKEFLAGS", "MAKEOVERRIDES")
# What the Makefile calls, and not what else is in the same folders: an nvcc.
COMMANDS = ("echo", "find", "rm", "sed", "sh", "test")


@pytest.fixture
def make(tmp_path):
    """Runs make where only what is in `tmp_path/bin` is found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in COMMANDS:
        (folder / name).symlink_to(shutil.which(name))
    environment = {k: v for k, v in os.environ.items() if k not in HIDDEN}

    def run(*arguments, **variables):
        return subprocess.run(
            [shutil.which("make"), "--no-print-directory", *arguments],
            cwd=ROOT,
            env=environment | {"PATH": str(folder)} | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def program(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_times_of_the_tests_stand_in_one_place(make):
    """In the table of CONTRIBUTING.md, with the machine on which they were taken."""
    lines = make("help").stdout.splitlines()
    told = [line for line in lines if line.startswith("make test")]
    assert len(told) > 3
    assert [line for line in told if re.search(r"\d+ minutes", line)] == []
    assert "CONTRIBUTING.md" in told[0]
    table = re.findall(r"^\| `make (test\S*)`.*\d+ minutes", CONTRIBUTING, re.M)
    assert table == ["test", "test-all", "test-slow"]


SHOW = ("--eval", "show: ; @echo $$KERAS_MP_CUDA", "show")
GPU = "GPU=/dev/nvidia0"


@pytest.mark.parametrize(
    ("gpu", "nvcc", "given", "expected"),
    [
        ("GPU=", "bin/nvcc", None, "OFF"),
        (GPU, None, None, "OFF"),
        (GPU, "bin/nvcc", None, "ON"),
        (GPU, "CUDACXX", None, "ON"),
        (GPU, "CUDA_PATH", None, "ON"),
        (GPU, "bin/nvcc", "OFF", "OFF"),
        ("GPU=", None, "ON", "ON"),
    ],
)
def test_cuda_is_on_where_there_are_a_gpu_and_nvcc(
    gpu, nvcc, given, expected, make, tmp_path
):
    variables = {} if given is None else {"KERAS_MP_CUDA": given}
    if nvcc == "bin/nvcc":
        program(tmp_path / nvcc)
    elif nvcc == "CUDACXX":
        variables[nvcc] = program(tmp_path / "nvcc-13")
    elif nvcc == "CUDA_PATH":
        program(tmp_path / "cuda" / "bin" / "nvcc")
        variables[nvcc] = str(tmp_path / "cuda")
    assert make(*SHOW, gpu, **variables).stdout == f"{expected}\n"


def build(make, tmp_path, setup, *arguments):
    """Runs the rule of the native library, with another program for setup.py."""
    library = tmp_path / "library.so"
    python = program(tmp_path / "python", setup)
    variables = (f"NATIVE={library}", f"RUN={python}", "SOURCES=")
    return make(str(library), *variables, *arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([GPU], True),
        (["GPU="], False),
        ([GPU, "CUDACXX=/opt/nvcc"], False),
        ([GPU, "KERAS_MP_CUDA=OFF"], False),
    ],
    ids=["no-nvcc", "no-gpu", "nvcc", "asked-for"],
)
def test_a_gpu_without_nvcc_is_told_of_once(arguments, told, make, tmp_path):
    result = build(make, tmp_path, f"echo > {tmp_path}/library.so", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("a GPU but no nvcc") == told


@pytest.mark.parametrize(
    "setup",
    ["echo 'Received: no CMake' >&2", "echo 'Received: CUDA 11' >&2; exit 1"],
    ids=["missing", "failed"],
)
def test_a_missing_library_is_an_error_that_names_no_other_reason(
    setup, make, tmp_path
):
    result = build(make, tmp_path, setup)
    assert result.returncode != 0
    assert "Received: " in result.stderr
    assert "g++" not in result.stdout + result.stderr


def test_ninja_is_told_of_no_job_server(make, tmp_path):
    seen = tmp_path / "seen"
    setup = f'echo "MAKEFLAGS=$MAKEFLAGS" > {seen}; echo > {tmp_path}/library.so'
    assert build(make, tmp_path, setup, "--jobs=2").returncode == 0
    assert seen.read_text() == "MAKEFLAGS=\n"


@pytest.mark.parametrize("place", ["PATH", "CUDACXX"])
def test_the_cuda_wheel_is_for_the_cuda_of_nvcc(place, make, tmp_path):
    nvcc = program(
        tmp_path / ("bin/nvcc" if place == "PATH" else "nvcc-12"),
        "echo Cuda compilation tools, release 12.4, V12.4.131",
    )
    for stamp in (".created", ".installed-wheel"):
        (tmp_path / stamp).touch()
    variables = {"CUDACXX": nvcc} if place == "CUDACXX" else {}
    # A make that says what it was asked for.
    told = make("wheel-cuda", "MAKE=echo", f"VENV={tmp_path}", **variables)
    assert told.returncode == 0, told.stderr
    _, goal, *given = told.stdout.split()
    assert goal == "wheel"
    assert dict(each.split("=") for each in given) == {
        "DIST": "dist-cuda",
        "KERAS_MP_CUDA": "ON",
        "KERAS_MP_VERSION_LABEL": "+cuda12",
        "CUDACXX": nvcc,
    }


def test_without_nvcc_the_cuda_wheel_is_built_by_that_of_pip(make, tmp_path):
    pip_nvcc = tmp_path / "of_pip"
    told = make("--dry-run", "wheel-cuda", f"PIP_NVCC={pip_nvcc}").stdout
    assert "'nvidia-cuda-nvcc==13.0.*'" in told
    assert f"CUDACXX='{pip_nvcc}'" in told


def test_the_cuda_wheel_leaves_the_other_alone(make):
    told = make("--dry-run", "wheel", "DIST=dist-cuda").stdout
    assert "--wheel-dir dist-cuda" in told
    assert not re.search(r"dist(?!-)\b[^-]", told.replace("--dist", ""))
