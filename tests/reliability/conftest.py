"""What the tests of several faults use."""

import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nmt_seq2seq"


@pytest.fixture
def example(monkeypatch):
    """Has the modules of the example imported, and leaves none behind."""
    monkeypatch.syspath_prepend(EXAMPLE)
    yield
    for path in EXAMPLE.glob("*.py"):
        sys.modules.pop(path.stem, None)
