import older_versions
import pytest

MISSING = "AttributeError: module 'keras_mp.layers' has no attribute '{}'"
LIBRARY = "The native library of keras_mp for TensorFlow 2.18.1 is missing."


@pytest.mark.parametrize(
    ("error", "keras", "tensorflow", "expected"),
    [
        (MISSING.format("ReversibleEmbedding"), (3, 11), (2, 21), ("Keras", (3, 12))),
        (MISSING.format("ReversibleEmbedding"), (3, 12), (2, 19), None),
        (MISSING.format("Dense"), (3, 8), (2, 18), None),
        (LIBRARY, (3, 15), (2, 19), ("TensorFlow", (2, 20))),
        (LIBRARY, (3, 8), (2, 20), None),
        ("assert 1 == 2", (3, 8), (2, 18), None),
    ],
    ids=["older", "has-it", "all-have-it", "no-library", "library", "another-failure"],
)
def test_what_a_failure_needs(error, keras, tensorflow, expected):
    installed = {"Keras": keras, "TensorFlow": tensorflow}
    assert older_versions.needs_newer(error, installed) == expected


def test_a_failure_for_want_of_a_newer_version_is_a_skip(pytester, monkeypatch):
    monkeypatch.setitem(older_versions.INSTALLED, "Keras", (3, 11))
    pytester.makepyfile(
        "def test_it(): raise AttributeError("
        "\"module 'keras.layers' has no attribute 'ReversibleEmbedding'\")\n"
        "def test_other(): assert False\n"
    )
    result = pytester.runpytest_inprocess("-p", "older_versions", "-rs")
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*needs Keras 3.12*"])


def test_so_is_a_file_that_cannot_be_collected(pytester, monkeypatch):
    monkeypatch.setitem(older_versions.INSTALLED, "TensorFlow", (2, 19))
    pytester.makepyfile(
        f"raise ImportError('{LIBRARY}')",
        test_other="raise ImportError('another')",
    )
    result = pytester.runpytest_inprocess("-p", "older_versions", "-rs")
    result.assert_outcomes(skipped=1, errors=1)
    result.stdout.fnmatch_lines(["*needs TensorFlow 2.20*"])


@pytest.mark.parametrize("host", ["Keras", "TensorFlow"])
def test_a_mark_skips_on_an_older_version_alone(host, monkeypatch):
    monkeypatch.setitem(older_versions.INSTALLED, host, (3, 9))
    older, newer = (older_versions.needs(host, 3, minor) for minor in (9, 10))
    assert older.args == (False,)
    assert newer.args == (True,)
    assert newer.kwargs == {"reason": f"needs {host} 3.10"}
