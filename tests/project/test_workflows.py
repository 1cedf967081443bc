"""The files for the project's home: workflows, templates and the citation."""

import re
from pathlib import Path

import pytest
import yaml
from versions import matrix

import keras_mp

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
EACH = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"].values()


def steps(path):
    return [step for job in jobs(path) for step in job.get("steps", ())]


@EACH
def test_what_runs_is_a_target_of_the_makefile(path):
    """So that each can be run, and was, without the service."""
    targets = re.findall("^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for step in steps(path):
        if "run" in step:
            make, *goals = step["run"].split()
            assert make == "make", step
            assert goals and set(goals) <= set(targets), step


@EACH
def test_an_action_has_a_major_version(path):
    for step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", step["uses"]), step


@EACH
def test_a_job_may_read_the_sources_and_no_more_unless_it_publishes(path):
    text = path.read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    for job in jobs(path):
        granted = job.get("permissions", {})
        assert set(granted) <= {"id-token", "pages"}
        assert not granted or "environment" in job  # which a maintainer protects


def test_the_tests_run_on_each_python_that_is_stated():
    setup = (ROOT / "setup.cfg").read_text()
    stated = re.findall(r"Programming Language :: Python :: (3\.\d+)", setup)
    ci, versions = (
        yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
        for name in ("ci", "versions")
    )
    in_ci = ci["jobs"]["test"]["strategy"]["matrix"]["python"]
    pairs = versions["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert sorted({*in_ci, *(pair["python"] for pair in pairs)}) == sorted(stated)


def test_the_workflow_has_the_pairs_of_the_table():
    path = ROOT / ".github/workflows/versions.yml"
    pairs = yaml.safe_load(path.read_text())["jobs"]["test"]["strategy"]["matrix"]
    expected = [{"python": p.python, "versions": p.name} for p in matrix.PAIRS]
    assert pairs["include"] == expected


def test_a_report_asks_for_the_versions():
    assert [path.stem for path in TEMPLATES] == ["bug_report", "feature_request"]
    for path in TEMPLATES:
        fields = {item["id"]: item for item in yaml.safe_load(path.read_text())["body"]}
        assert "python -m keras_mp info" in fields["info"]["attributes"]["label"]


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["title"] == "keras_mp"
    assert citation["version"] == keras_mp.__version__
    (paper,) = citation["references"]
    assert paper["title"] == "Mixed Precision Training"
    assert paper["url"].endswith("1710.03740")


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("..\n342 passed in 45.96s\n", {"passed": 342}),
        (
            "== 1 failed, 341 passed, 1 skipped, 2 errors in 61.72s (0:01:01) ==\n"
            "E0000 00:00:1795529111.494733   25577 cuda_platform.cc:52] failed call\n",
            {"failed": 1, "passed": 341, "skipped": 1, "error": 2},
        ),
        (
            "1 passed in 1.00s\n341 passed, 1 skipped in 41.72s\n",
            {"passed": 341, "skipped": 1},
        ),
    ],
    ids=["plain", "lines of TensorFlow after it", "the last of two"],
)
def test_what_the_matrix_counts(output, counts):
    assert matrix.counts_in(output) == counts
