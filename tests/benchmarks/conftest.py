"""The modules of benchmarks/, which import one another as scripts do."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Imports one of them by its name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module
