"""The pages speak the language of the field: no phrases of the house's own dialect."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A pattern, and what to write instead.
DIALECT = {
    r"(layers?|optimizers?|ops) of (Keras|ours)\b": "Keras layers, our layers",
    r"\bof (your|one's|a user's) own\b": "your own",
    r"\b(inside|outside) of\b": "in, during, without, outside",
    r"\b(is|are) (not )?told\b": "gets, reports, differs",
    r"\bfrom outside alone\b": "only from the outside",
    r"\bunless told otherwise\b": "by default",
    r"\bmade of the files\b": "generated from the files",
    r"\bslots?\b": "optimizer state",
    r"\bbut for\b": "except",
    r"\bto the bit\b": "bit for bit, bit-identical",
    r"\b[Mm]end(s|ed|ing)?\b": "fix",
    r"(?<!atrix[ -])(?<!dot )\bproducts?\b": "matrix products",
    r"\b(of|than|and) ours\b": "those of keras_mp",
    r"\bun-scaled gradients that they are given\b": "their un-scaled gradients",
}
# The one place that explains the word.
ALLOWED = {("how_it_works.md", r"\bslots?\b")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_dialect(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = " ".join(text.split())
    found = [
        (match[0], instead)
        for pattern, instead in DIALECT.items()
        if (page.name, pattern) not in ALLOWED
        for match in re.finditer(pattern, text)
    ]
    assert not found
