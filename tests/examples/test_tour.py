"""examples/tour.ipynb: it runs, and shows what its text says."""

import re
import shutil

import nbformat
import pytest
from execute_tour import TOUR, execute


def printed(notebook):
    """The texts that the cells print, in one."""
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def pictures(notebook):
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def check(notebook):
    text = printed(notebook)
    assert pictures(notebook) == 3
    ratios = {
        name: float(end) / float(begin)
        for name, begin, end in re.findall(r"^(.*): loss (\S+) to (\S+)$", text, re.M)
    }
    assert ratios.pop("FP16, no loss scale") > 0.99
    assert set(ratios) == {"FP32", "FP16, wrapped", "FP16, suggested scale"}
    assert all(ratio < 0.2 for ratio in ratios.values())
    assert "weights: float16, masters: float32" in text
    assert "loss scaling needed? yes" in text
    assert "with the loss scale at its minimum" in text
    assert "weights as before: True" in text
    assert "The output of 'hidden_1' is not finite" in text


@pytest.mark.xslow
def test_every_cell_runs_and_says_what_the_text_says(tmp_path):
    check(execute(shutil.copy(TOUR, tmp_path)))


def test_the_outputs_in_the_repository_are_whole_and_small():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    check(notebook)
    counts = [c.execution_count for c in notebook.cells if c.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert TOUR.stat().st_size < 300_000
