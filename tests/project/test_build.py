"""setup.py: when the native library is built, and what is said when it is not."""

import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import keras_mp

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    *("setup.py", "setup.cfg", "README.md", "LICENSE", "keras_mp/__init__.py"),
    "build_backend.py",
    "keras_mp_cli.py",
    "custom_ops/cmake/find_tensorflow.py",
)
# In place of the kernels, which take minutes to compile.
CMAKE = """
cmake_minimum_required(VERSION 3.22)
project(keras_mp LANGUAGES CXX)
option(KERAS_MP_CUDA "As CMakeLists.txt has it where there is nvcc" ON)
file(WRITE ${CMAKE_SOURCE_DIR}/cuda.txt ${KERAS_MP_CUDA})
add_library(keras_mp_ops MODULE kernel.cc)
set_target_properties(keras_mp_ops PROPERTIES PREFIX "" OUTPUT_NAME _keras_mp_ops)
"""


class Tree:
    """The sources in a folder, and an environment of their own to build them in."""

    def __init__(self, folder):
        self.sources, self.environment = folder / "sources", folder / "environment"
        self.packages = folder / "packages"
        self.library = (
            self.sources / "keras_mp" / "ops" / "kernels" / "_keras_mp_ops.so"
        )
        self.library.parent.mkdir(parents=True)
        for name in FILES:
            (self.sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.sources / name)
        self.write("CMakeLists.txt", CMAKE)
        self.write("kernel.cc", "int kernel() { return 0; }\n")
        venv.create(self.environment)
        self.add("cmake")
        self.add("ninja")
        self.packages.mkdir()
        for name in ("setuptools", "_distutils_hack", "tensorflow"):
            self.link_package(name)

    def write(self, name, text):
        (self.sources / "custom_ops" / name).write_text(text)

    def add(self, tool, folder=None):
        """Has a tool of the tests' own environment found in another folder."""
        folder = folder or self.environment / "bin"
        folder.mkdir(exist_ok=True)
        found = Path(sys.executable).with_name(tool)
        (folder / tool).symlink_to(found if found.exists() else shutil.which(tool))

    def remove(self, tool):
        (self.environment / "bin" / tool).unlink()

    def link_package(self, name):
        for folder in site.getsitepackages():
            for path in Path(folder).glob(f"{name}*"):
                if path.name == name or path.name.startswith(f"{name}-"):
                    (self.packages / path.name).symlink_to(path)

    def build(self, **settings):
        """Runs setup.py as `make` does."""
        return self.run("setup.py", "--quiet", "build_ext", "--inplace", **settings)

    def run(self, *arguments, **settings):
        """Runs Python in the sources, with the tools of the environment alone."""
        hidden = (
            *("CXX", "PYTHONHOME", "KERAS_MP_CUDA", "KERAS_MP_TENSORFLOWS"),
            "KERAS_MP_VERSION_LABEL",
        )
        base = {k: v for k, v in os.environ.items() if k not in hidden}
        python = self.environment / "bin" / "python"
        return subprocess.run(
            [python, *arguments],
            cwd=self.sources,
            env=base | {"PYTHONPATH": str(self.packages)} | settings,
            capture_output=True,
            text=True,
            timeout=200,
        )

    def builds(self, **settings):
        """Builds, and checks that there is a library, and not that of another build."""
        for path in self.sources.rglob("keras_mp/ops/**/*.so"):
            path.unlink()
        result = self.build(**settings)
        assert result.returncode == 0, result.stdout + result.stderr
        assert self.library.is_file(), result.stdout + result.stderr


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.mark.slow
def test_builds_again_after_its_ninja_was_deleted(tree, tmp_path):
    """As that of the environment in which `pip install .` built."""
    tree.builds()
    tree.remove("ninja")
    tree.add("ninja", tmp_path / "another")
    path = os.pathsep.join([str(tmp_path / "another"), os.environ["PATH"]])
    tree.builds(PATH=path)


@pytest.mark.slow
def test_a_setting_of_an_earlier_build_is_not_kept(tree):
    """Where `make` said OFF, `pip install .` builds what CMake finds."""
    for settings, expected in (({"KERAS_MP_CUDA": "OFF"}, "OFF"), ({}, "ON")):
        tree.builds(**settings)
        assert (tree.sources / "custom_ops" / "cuda.txt").read_text() == expected


@pytest.mark.slow
def test_only_what_changed_is_compiled_again(tree):
    tree.write("other.cc", "int other() { return 0; }\n")
    tree.write("CMakeLists.txt", CMAKE.replace("kernel.cc", "kernel.cc other.cc"))

    def times():
        objects = (tree.sources / "build").rglob("*.o")
        return {path.name: path.stat().st_mtime_ns for path in objects}

    tree.builds()
    before = times()
    tree.write("other.cc", "int other() { return 1; }\n")
    tree.builds()
    changed = [name for name, time in times().items() if time != before[name]]
    assert changed == ["other.cc.o"]


# What is not there: how it is taken away, and what the message says of it.
MISSING = {
    "compiler": (lambda tree: None, "no C++ compiler", "apt install g++"),
    "cmake": (lambda tree: tree.remove("cmake"), "no CMake", "pip install cmake"),
    "tensorflow": (
        lambda tree: (tree.packages / "tensorflow").unlink(),
        "no TensorFlow",
        "pip install 'tensorflow",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_without_what_it_needs_the_package_has_no_library(name, tree, tmp_path):
    take_away, reason, fix = MISSING[name]
    take_away(tree)
    compiler = tmp_path / "tools" / "c++"
    compiler.parent.mkdir()
    if name != "compiler":
        compiler.touch(mode=0o755)
    result = tree.build(PATH=str(compiler.parent))
    assert result.returncode == 0, result.stderr
    assert not tree.library.exists()
    for part in ("without its native library", f"Received: {reason}", fix):
        assert part in " ".join(result.stderr.split())


def other_tensorflow(tree, version):
    """Has the environment of the build hold an empty TensorFlow of some version."""
    for path in tree.packages.glob("tensorflow*"):
        path.unlink()
    folder = tree.packages.parent / f"tensorflow-{version}"
    (folder / "tensorflow").mkdir(parents=True)
    (folder / "tensorflow" / "__init__.py").touch()
    info = folder / f"tensorflow-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n"
    )
    return folder


def test_an_older_tensorflow_gets_no_library(tree):
    folder = other_tensorflow(tree, "2.19.1")
    path = os.pathsep.join(map(str, (tree.packages, folder)))
    result = tree.build(PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    assert not tree.library.exists()
    told = " ".join(result.stderr.split())
    assert "Received: TensorFlow 2.19.1: pip install 'tensorflow>=2.20'" in told


def test_a_build_that_fails_for_a_newer_tensorflow_is_a_warning(tree):
    tree.write("kernel.cc", "#error of the kernel\n")
    folder = other_tensorflow(tree, "2.99.0")
    path = os.pathsep.join(map(str, (tree.packages, folder)))
    result = tree.build(PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    assert not tree.library.exists()
    assert "#error of the kernel" in result.stdout + result.stderr


def test_a_library_for_each_tensorflow_that_is_named(tree):
    folders = [other_tensorflow(tree, version) for version in ("2.20.0", "2.21.3")]
    result = tree.build(KERAS_MP_TENSORFLOWS=os.pathsep.join(map(str, folders)))
    assert result.returncode == 0, result.stderr
    names = sorted(path.name for path in tree.library.parent.glob("*.so"))
    assert names == ["_keras_mp_ops_tf2_20.so", "_keras_mp_ops_tf2_21.so"]


@pytest.mark.parametrize("label", ["", "+cuda13"])
def test_a_label_ends_the_version(label, tree):
    for _ in range(2):  # once, also where a source distribution has it already
        result = tree.run(
            "setup.py", "--quiet", "egg_info", KERAS_MP_VERSION_LABEL=label
        )
        assert result.returncode == 0, result.stderr
        metadata = (tree.sources / "keras_mp.egg-info" / "PKG-INFO").read_text()
        (version,) = re.findall("^Version: (.*)$", metadata, re.MULTILINE)
        assert version == keras_mp.__version__ + label


# Runs setup.py, or the build's backend, as another system would.
ELSEWHERE = """
import sys, sysconfig, runpy
import setuptools, setuptools.command.build_ext, setuptools.command.bdist_wheel
sys.path.insert(0, ".")
import build_backend
sys.platform = {platform!r}
print(build_backend.tensorflow())
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py")
"""


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_build_and_link_nothing(platform, tree):
    tree.write("CMakeLists.txt", "message(FATAL_ERROR)")
    result = tree.run("-c", ELSEWHERE.format(platform=platform))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "[]"
    assert "CMake" not in result.stdout + result.stderr
    assert not tree.library.exists()


@pytest.mark.parametrize(
    ("is_there", "expected"), [(True, []), (False, ["tensorflow"])]
)
def test_a_build_asks_for_tensorflow_only_where_there_is_none(is_there, expected, tree):
    if not is_there:
        (tree.packages / "tensorflow").unlink()
    code = "import build_backend; print(build_backend.get_requires_for_build_wheel())"
    result = tree.run("-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == str(expected)


@pytest.mark.slow
def test_a_library_of_an_earlier_build_is_not_installed(tree, tmp_path):
    tree.builds()
    tree.library.unlink()
    result = tree.build(PATH=str(tmp_path))
    assert "Received: no C++ compiler" in result.stderr
    assert not tree.library.exists()


def broken_source(tree):
    tree.write("kernel.cc", "#error of the kernel\n")
    return {}, "#error of the kernel"


def broken_compiler(tree):
    compiler = tree.sources / "broken"
    compiler.write_text("#!/bin/sh\necho of the compiler >&2; exit 1\n")
    compiler.chmod(0o755)
    return {"CXX": str(compiler)}, "of the compiler"


def compiler_that_is_not_there(tree):
    return {"CXX": "/none/c++"}, "/none/c++"


@pytest.mark.parametrize(
    "spoil", [broken_source, broken_compiler, compiler_that_is_not_there]
)
def test_a_build_that_fails_is_an_error(spoil, tree):
    settings, reason = spoil(tree)
    result = tree.build(**settings)
    assert result.returncode != 0
    assert not tree.library.exists()
    assert reason in result.stdout + result.stderr
    message = result.stderr.partition("error: The native library")[2]
    for part in ("must build", "Received: ", "CXX", "KERAS_MP_CUDA=OFF"):
        assert part in message, result.stderr
