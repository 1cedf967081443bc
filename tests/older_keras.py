"""A test of what only a newer Keras has is skipped on an older one.

The tests are written for the newest Keras. On an older one some of their cases name a
layer, an argument or a behaviour that it does not have. Where such a case fails, the
error says what is missing; the rows below say since which version Keras has it.
"""

import re

import pytest

from keras_mp import keras_internals

# The first version of Keras with something, and the error where it is missing.
SINCE = [
    *(
        (version, rf"has no attribute '{name}'")
        for name, version in keras_internals.ADDED.items()
    ),
    ((3, 9), r"has no attribute 'RematScope'"),
    ((3, 13), r"`strides > 1` not supported in conjunction with `dilation_rate > 1`"),
    ((3, 14), r"passed to BatchNormalization: \{'renorm': True"),
    ((3, 15), r"got an unexpected keyword argument 'use_causal_mask'"),
]


def needs_newer(error, keras):
    """Returns the version of Keras that an error asks for, or None."""
    for version, pattern in SINCE:
        if keras < version and re.search(pattern, error):
            return version
    return None


def skip_for(report):
    """Turns the report of a failure for want of a newer Keras into that of a skip."""
    version = (
        needs_newer(str(report.longrepr), keras_internals.KERAS)
        if report.failed
        else None
    )
    if version is not None:
        report.outcome = "skipped"
        path, line, _ = report.location
        report.longrepr = (
            path,
            line,
            f"Skipped: needs Keras {version[0]}.{version[1]}",
        )
    return report


def needs(*version):
    """Returns the mark of a case that needs a version of Keras."""
    reason = "needs Keras {}.{}".format(*version)
    return pytest.mark.skipif(version > keras_internals.KERAS, reason=reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return skip_for((yield))
