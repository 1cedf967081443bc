import pytest

SKIPPED_TEST = """
    import pytest
    @pytest.mark.skip(reason={reason!r})
    def test_it(): pass
"""
SKIPPED_MODULE = """
    import pytest
    pytest.skip({reason!r}, allow_module_level=True)
"""
EXPECTED_FAILURE = """
    import pytest
    @pytest.mark.xfail(reason={reason!r})
    def test_it(): assert False
"""


@pytest.mark.parametrize(
    ("source", "ci", "reason", "outcome"),
    [
        (SKIPPED_TEST, "true", "no compiler", {"errors": 1}),
        (SKIPPED_TEST, "true", "needs a GPU with 16 GB", {"skipped": 1}),
        (SKIPPED_TEST, "", "no compiler", {"skipped": 1}),
        (SKIPPED_MODULE, "true", "no compiler", {"errors": 1}),
        (SKIPPED_MODULE, "true", "needs a GPU", {"skipped": 1}),
        (EXPECTED_FAILURE, "true", "known bug", {"xfailed": 1}),
    ],
    ids=[
        "ci-test",
        "ci-test-allowed",
        "local-test",
        "ci-module",
        "ci-module-allowed",
        "ci-xfail",
    ],
)
def test_skip_fails_in_ci(pytester, monkeypatch, source, ci, reason, outcome):
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(source.format(reason=reason))
    result = pytester.runpytest_inprocess("-p", "skip_policy")
    result.assert_outcomes(**outcome)


def test_failure_names_the_fix(pytester, monkeypatch):
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(SKIPPED_TEST.format(reason="no compiler"))
    result = pytester.runpytest_inprocess("-p", "skip_policy")
    result.stdout.fnmatch_lines(["*Received: reason='no compiler'.", "*ALLOWED*"])
