"""Pages and pictures that are made while the site is built, by mkdocs's hooks.

The notebook becomes the page tour.md; of the notebook's files none is in docs/.
"""

import base64
import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
TOUR = ROOT / "examples" / "tour.ipynb"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the notebook as a page, and what it has drawn."""
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    pictures: dict[str, bytes] = {}
    text = "\n\n".join(_markdown(cell, pictures) for cell in notebook["cells"])
    files.append(File.generated(config, "tour.md", content=text))
    for path, content in pictures.items():
        files.append(File.generated(config, path, content=content))
    return files


def _markdown(cell: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """Returns a cell as Markdown, and adds what it has drawn to `pictures`."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    blocks = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        if "text" in output:
            blocks.append(f"```text\n{''.join(output['text'])}\n```")
        elif "image/png" in output["data"]:
            path = f"figures/tour/{len(pictures) + 1}.png"
            pictures[path] = base64.b64decode(output["data"]["image/png"])
            blocks.append(f"![What the cell above draws]({path})")
    return "\n\n".join(blocks)
