"""Pages and pictures that mkdocs makes while it builds the site, by its hooks.

The notebook becomes the page tour.md, and a long table of benchmarks/results becomes a
chart, with the table folded below it.
"""

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads a hook by its path
from charts import CHARTS, chart
from growth_charts import growth_charts

ROOT = Path(__file__).resolve().parents[1]
RESULTS = re.compile(r'^--8<-- "(benchmarks/results/\w+/(\w+)\.md)"$', re.MULTILINE)
TOUR = ROOT / "examples" / "tour.ipynb"
# What draws the tables of a benchmark.
DRAWN_BY = dict.fromkeys(CHARTS, chart) | {"growth": growth_charts}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the notebook as a page, and what it has drawn."""
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    pictures: dict[str, bytes] = {}
    text = "\n\n".join(_markdown(cell, pictures) for cell in notebook["cells"])
    files.append(File.generated(config, "tour.md", content=text))
    for path, content in pictures.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Puts a chart before each long table of measurements, and folds the table."""

    def with_chart(match: re.Match[str]) -> str:
        if match[2] not in DRAWN_BY:
            return match[0]
        folded = (
            f'??? note "All numbers, as the benchmark wrote them"\n\n    {match[0]}'
        )
        return f"{DRAWN_BY[match[2]](ROOT / match[1])}\n\n{folded}"

    return RESULTS.sub(with_chart, markdown)


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
