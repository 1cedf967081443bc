"""A test of what only newer versions have is skipped on older ones.

The tests are written for the newest Keras and TensorFlow. On older ones some of their
cases name a layer, an argument, a behaviour or a native library that is not there.
Where such a case fails, the error says what is missing; the rows below say since which
version there is one.
"""

import re

import pytest
import tensorflow as tf

from keras_mp import keras_internals

INSTALLED = {
    "Keras": keras_internals.KERAS,
    "TensorFlow": tuple(int(part) for part in tf.__version__.split(".")[:2]),
}
# The first version of a host with something, and the error where it is missing.
SINCE = [
    *(
        ("Keras", version, rf"has no attribute '{name}'")
        for name, version in keras_internals.ADDED.items()
    ),
    ("Keras", (3, 9), r"has no attribute 'RematScope'"),
    ("Keras", (3, 9), r"has no attribute 'rms_normalization'"),
    ("Keras", (3, 11), r"has no attribute 'layer_normalization'"),
    ("Keras", (3, 13), r"has no attribute 'adaptive_average_pool'"),
    ("Keras", (3, 14), r"has no attribute 'nan(mean|sum)'"),
    ("Keras", (3, 9), r"module 'keras' has no attribute 'remat'"),
    ("Keras", (3, 9), r"unexpected keyword argument 'return_attention_scores'"),
    ("Keras", (3, 10), r"got an unexpected keyword argument 'lora_alpha'"),
    ("Keras", (3, 11), r"Invalid quantization mode.*Received: mode=int4"),
    (
        *("Keras", (3, 13)),
        r"`strides > 1` not supported in conjunction with `dilation_rate > 1`",
    ),
    ("Keras", (3, 14), r"passed to BatchNormalization: \{'renorm': True"),
    ("Keras", (3, 15), r"got an unexpected keyword argument 'use_causal_mask'"),
    # What a file has that the newest Keras saved.
    ("Keras", (3, 15), r"got an unexpected keyword argument 'input_axes'"),
    # That of setup.py: older ones get no library.
    ("TensorFlow", (2, 20), r"native library of keras_mp for TensorFlow .* is missing"),
    (
        *("TensorFlow", (2, 20)),
        r"(No such file or directory|does not exist\.): .*_keras_mp_ops\.so",
    ),
]


def needs_newer(error, installed):
    """Returns the host that an error asks for a newer version of, and this, or None."""
    for host, version, pattern in SINCE:
        if installed[host] < version and re.search(pattern, error):
            return host, version
    return None


def reason(host, version):
    """Returns why a test is skipped; tests/skip_policy.py knows how this starts."""
    return "needs {} {}.{}".format(host, *version)


def skip_for(report):
    """Turns the report of a failure for want of a newer version into that of a skip."""
    wanted = needs_newer(str(report.longrepr), INSTALLED) if report.failed else None
    if wanted is not None:
        report.outcome = "skipped"
        path, line, _ = report.location
        report.longrepr = (path, line, f"Skipped: {reason(*wanted)}")
    return report


def needs(host, *version):
    """Returns the mark of a case that needs a version of Keras or TensorFlow."""
    return pytest.mark.skipif(version > INSTALLED[host], reason=reason(host, version))


def until(host, *version):
    """Returns the mark of a case of this version of a host and of older ones."""
    return pytest.mark.skipif(
        version < INSTALLED[host], reason=f"{reason(host, version)} or older"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return skip_for((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return skip_for((yield))
