"""In CI a test that is skipped fails, unless CI cannot run it.

A skip is how a broken build or a missing package passes unseen. With CI=true in the
environment, the only reasons for a skip are those of `ALLOWED`.
"""

import os

import pytest

# How the reason of a skip may start: what a machine of CI does not have, and what the
# older versions of .github/workflows/versions.yml do not (tests/older_versions.py).
ALLOWED = ("needs a GPU", "needs Chromium", "needs Keras 3.", "needs TensorFlow 2.")


def forbid_skip(report):
    """Turns the report of a skip that is not allowed into that of a failure."""
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if not is_skip or os.environ.get("CI") != "true":
        return report
    path, line, message = report.longrepr
    reason = message.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED):
        report.outcome = "failed"
        report.longrepr = (
            f"{path}:{line}: a test may not be skipped in CI.\n"
            f"Received: reason={reason!r}.\n"
            "Make the test run, or add the reason to ALLOWED in tests/skip_policy.py."
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return forbid_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return forbid_skip((yield))
