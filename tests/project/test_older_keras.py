import older_keras
import pytest

MISSING = "AttributeError: module 'keras_mp.layers' has no attribute '{}'"


@pytest.mark.parametrize(
    ("error", "keras", "expected"),
    [
        (MISSING.format("ReversibleEmbedding"), (3, 11), (3, 12)),
        (MISSING.format("ReversibleEmbedding"), (3, 12), None),
        (MISSING.format("Dense"), (3, 8), None),
        ("assert 1 == 2", (3, 8), None),
    ],
    ids=["older", "has-it", "every-keras-has-it", "another-failure"],
)
def test_what_a_failure_needs(error, keras, expected):
    assert older_keras.needs_newer(error, keras) == expected


def test_a_failure_for_want_of_a_newer_keras_is_a_skip(pytester, monkeypatch):
    monkeypatch.setenv("CI", "")
    monkeypatch.setattr(older_keras.keras_internals, "KERAS", (3, 11))
    pytester.makepyfile(
        "def test_it(): raise AttributeError("
        "\"module 'keras.layers' has no attribute 'ReversibleEmbedding'\")\n"
        "def test_other(): assert False\n"
    )
    result = pytester.runpytest_inprocess("-p", "older_keras", "-rs")
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*needs Keras 3.12*"])
