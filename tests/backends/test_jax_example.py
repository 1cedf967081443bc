"""examples/on_jax.py: in 16 bits it trains as in FP32."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs scikit-learn")

import on_jax


def test_16_bits_train_as_fp32(capsys):
    on_jax.main(["--epochs=3"])
    title, *rows = map(str.split, capsys.readouterr().out.splitlines())
    assert title[:2] == ["on", "jax"]
    numbers = {row[0]: np.array(row[1:], float) for row in rows}
    expected = numbers.pop("float32")
    assert expected[0] < np.log(10)  # equal probabilities
    # FP16 rounds by 2^-11 and bfloat16 by 2^-8; the accuracy moves by 1 / 357.
    np.testing.assert_allclose(numbers["float16"], expected, rtol=0.01)
    np.testing.assert_allclose(numbers["bfloat16"], expected, rtol=0.03)
