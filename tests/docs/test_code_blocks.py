"""Every Python block of README and site runs, page by page, from top to bottom.

A page begins with nothing, so that a reader can paste its first block.
Of the shell blocks the commands of keras_mp are parsed.
"""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import tensorflow as tf

from keras_mp_cli import main, parser

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ALL_PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# `print(x)  # 8.0`, or `8.0: and why`; more than two spaces make it a comment.
PRINTED = re.compile(r"^print\(.*\)  # ([^:\n]+)", re.MULTILINE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


def blocks_of(page):
    """Yields the first line and the code of each Python block."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        indentation = match[1]
        lines = [line.removeprefix(indentation) for line in match[2].splitlines()]
        yield text.count("\n", 0, match.start()) + 2, "\n".join(lines) + "\n"


PAGES = [page for page in ALL_PAGES if any(blocks_of(page))]


def test_pages_have_code():
    assert len(PAGES) > 10


def name_of(page):
    return str(page.relative_to(ROOT))


class OfAllTests(type):
    """A class with one instance: the replicas of all other tests."""

    def __call__(cls, *_):
        return cls.strategy

    def __instancecheck__(cls, instance):
        return isinstance(instance, type(cls.strategy))


# These run on the page that has them first.
OF_README = {code for _, code in blocks_of(ROOT / "README.md")}


@pytest.mark.slow_except("README.md", "docs/quickstart.md")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_blocks(page, strategy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    replicas = OfAllTests("MirroredStrategy", (), {"strategy": strategy})
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", replicas)
    names = {"__name__": "__main__"}
    for first, code in blocks_of(page):
        if code in OF_README and page.name != "README.md":
            continue
        # An error of the code is told with the line of the page.
        source = compile("\n" * (first - 1) + code, str(page), "exec")
        exec(source, names)
        printed = capsys.readouterr().out
        for shown in PRINTED.findall(code):
            assert shown in printed, f"{shown!r} is not in {printed!r}"


# What needs a package that neither keras_mp nor TensorFlow brings, and how to get it.
NEEDS = {
    r"callbacks\.TensorBoard\(|LossScaleCallback\(log_dir": "pip install tensorboard",
    r"\.plot\(": "pip install '.[plots]'",
}


@pytest.mark.parametrize("call", NEEDS)
def test_a_package_is_named_before_the_block_that_needs_it(call):
    pages = [p for p in PAGES if any(re.search(call, code) for _, code in blocks_of(p))]
    assert pages
    for page in pages:
        before = re.split(call, page.read_text(encoding="utf-8"))[0]
        assert NEEDS[call] in before, page


def test_the_recipe_of_inspect_warns_of_nothing(tmp_path, monkeypatch, capsys):
    """A warning is an error here; Keras has one for an optimizer without state."""
    monkeypatch.chdir(tmp_path)
    for _, code in blocks_of(DOCS / "command_line.md"):
        exec(code, {"__name__": "__main__"})
    assert main(["inspect", "model.keras", "--data", "batch.npz"]) == 0
    assert "loss scaling needed?" in capsys.readouterr().out


COMMAND = re.compile(r"^(?:keras-mp|python -m keras_mp) (.*)$", re.MULTILINE)
COMMANDS = [
    (page, arguments)
    for page in ALL_PAGES
    for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.M)
    for arguments in COMMAND.findall(block)
]


def test_pages_have_commands():
    assert len({page for page, _ in COMMANDS}) > 1


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=lambda case: str(case))
def test_commands_are_parsed(page, arguments):
    options = parser().parse_args(shlex.split(arguments, comments=True))
    assert callable(importlib.import_module(options.module).run)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_code_fit_the_page(page):
    lines = [line for _, code in blocks_of(page) for line in code.splitlines()]
    assert [line for line in lines if len(line) > 88] == []
