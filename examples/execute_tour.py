"""Runs the cells of tour.ipynb and writes what they print and draw into it.

`make notebook` calls it. What TensorFlow logs on standard error is left out: it differs
from machine to machine.
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

TOUR = Path(__file__).with_name("tour.ipynb")


def execute(path):
    """Returns the notebook at `path` with new outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=180, record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    nbformat.write(execute(TOUR), TOUR)
