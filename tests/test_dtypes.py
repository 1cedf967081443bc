"""The two 16-bit formats."""

import pytest

from keras_mp.dtypes import is_half


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float16", True),
        ("bfloat16", True),
        ("float32", False),
        ("float64", False),
        ("int16", False),
        ("float8_e4m3fn", False),
    ],
)
def test_is_half(dtype, expected):
    assert is_half(dtype) is expected
