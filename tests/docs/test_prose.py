"""The pages speak the language of the field: none of our own turns of phrase.

`make lint` runs this file.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_PAGES = [
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "examples").rglob("*.md")),
]
MODULES = [*sorted((ROOT / "keras_mp").rglob("*.py")), ROOT / "keras_mp_cli.py"]

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
    r"\b(of|than|and) ours\b": "keras_mp's",
}
# In pages, docstrings and messages.
TICS = {
    r"\b(that|those) of\b": "the noun again, or its possessive",
    r"\bwhose\b|\bof which\b": "a second sentence",
    r"\balone\b": "only",
    r"\bg(o|oes|oing|one) on\b|\bwent on\b": "continue, resume",
    r"\bstands? (in|below|above|beside|between|after|before)\b": "is in, is below",
    r"\bsa(y|ys|id|ying) so\b": "what it says, or that it warns",
    r"\bin (its |their |the )?place of\b|\bin (its|their) place\b": "instead of",
    r"\blikewise\b": "the same again, in words",
    r"\banew\b": "again",
    r"\bby (itself|themselves)\b": "automatically, separately",
    r"\bas (it|they) (is|are|was|were)\b": "unchanged",
    r"\bbeside\b": "next to, compared with",
    r", too\b": "also, before the verb",
    r"\b[Ww]here (there is|there are|no|none)\b": "if, without",
    r"\b[Uu]n-scal(e|es|ed|ing)\b": "unscale",
    r"\b[Hh]yper-parameters?\b": "hyperparameters",
    r"\b[Bb]ack-propagat\w+": "backpropagation",
}
ALLOWED = {
    ("how_it_works.md", r"\bslots?\b"),  # explains the word
    ("where_it_breaks.md", r"\balone\b"),  # the name of a run
}


def found_in(text, patterns):
    text = " ".join(text.split())
    return [
        (text[max(0, match.start() - 40) : match.end()], instead)
        for pattern, instead in patterns.items()
        for match in re.finditer(pattern, text)
    ]


def path_of(path):
    return str(path.relative_to(ROOT))


def without_code(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=path_of)
def test_pages(page):
    patterns = {
        pattern: instead
        for pattern, instead in (DIALECT | TICS).items()
        if (page.name, pattern) not in ALLOWED
    }
    assert not found_in(without_code(page), patterns)


@pytest.mark.parametrize("page", OTHER_PAGES, ids=path_of)
def test_other_pages(page):
    assert not found_in(without_code(page), TICS)


@pytest.mark.parametrize("module", MODULES, ids=path_of)
def test_docstrings(module):
    documented = ast.Module, ast.ClassDef, ast.FunctionDef
    nodes = ast.walk(ast.parse(module.read_text()))
    docstrings = [ast.get_docstring(n) for n in nodes if isinstance(n, documented)]
    assert not found_in("\n".join(filter(None, docstrings)), TICS)


@pytest.mark.parametrize("module", MODULES, ids=path_of)
def test_messages(module):
    """Of errors, warnings and reports: the other strings of more than a word."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert not found_in("\n".join(s for s in strings if " " in s), TICS)


def test_the_opening_of_the_readme_has_few_numbers():
    opening = (ROOT / "README.md").read_text().partition("```")[0]
    opening = re.sub(r"<!--.*?-->|\]\(.*?\)", "", opening)
    assert len(re.findall(r"\b\d+(?:[.,]\d+)*", opening)) <= 12
