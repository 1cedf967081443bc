"""The site: its pages, and the names that its API reference has."""

import configparser
import re
from pathlib import Path

import pytest

import keras_mp

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_reference_has_every_public_name():
    text = "".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    found = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    packages = keras_mp.layers, keras_mp.losses, keras_mp.metrics, keras_mp.ops
    public = {f"keras_mp.{name}" for name in keras_mp.__all__}
    public -= {package.__name__ for package in packages}
    for package in packages:
        names = set(package.__all__) - set(keras_mp.__all__)
        public |= {f"{package.__name__}.{name}" for name in names}
    assert found == public


@pytest.mark.parametrize("page", ["layers", "ops"])
def test_long_pages_are_in_alphabetical_order(page):
    text = (DOCS / "api" / f"{page}.md").read_text()
    names = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(names) > 9
    assert names == sorted(names)


def test_links_do_not_leave_the_site():
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            path = (page.parent / target).resolve()
            if path == DOCS / "tour.md":  # made of the notebook by the build
                continue
            assert path.is_file() and DOCS in path.parents, f"{page}: {target}"


def test_the_tests_that_a_page_names_exist():
    tests = [str(path) for path in (ROOT / "tests").rglob("test_*.py")]
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for name in re.findall(r"`([\w/]*test_\w+\.py)`", page.read_text()):
            assert any(path.endswith(f"/{name}") for path in tests), f"{page}: {name}"


def test_versions_are_those_of_the_package():
    required = configparser.ConfigParser()
    required.read(ROOT / "setup.cfg")
    options = required["options"]
    assert options["python_requires"] == ">=3.10,<3.14"
    required_by_users = options["install_requires"].split()
    assert required_by_users == ["keras>=3.8,<4", "numpy>=1.26", "packaging>=23"]
    extras = required["options.extras_require"]
    assert extras["tensorflow"].split() == ["tensorflow>=2.18"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    for supported in (
        "Python 3.10 to 3.13",
        "TensorFlow 2.18 to 2.21",
        "Keras 3.8 to 3.15",
    ):
        assert supported in readme
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        ranges = re.findall(r"Python 3\.\d+ to 3\.\d+", page.read_text())
        assert set(ranges) <= {"Python 3.10 to 3.13"}, page
    version = f"version: {keras_mp.__version__}\n"
    assert version in (ROOT / "CITATION.cff").read_text()


def test_results_of_benchmarks_have_pages():
    results = ROOT / "benchmarks" / "results"
    pages = "".join(page.read_text() for page in (DOCS / "performance").glob("*.md"))
    for table in results.rglob("*.md"):
        assert f'--8<-- "{table.relative_to(ROOT)}"' in pages, table
