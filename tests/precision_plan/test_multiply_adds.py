"""The multiply-adds of a model, counted by hand."""

import keras
import numpy as np
import pytest

from keras_mp import layers
from keras_mp.precision_plan.multiply_adds import float16_share


@pytest.mark.parametrize("one_pass", [True, False])
def test_those_of_an_attention(one_pass, monkeypatch):
    if not one_pass:
        monkeypatch.setattr("keras_mp.ops.attention.has_cpu_kernels", lambda: False)
    x = keras.Input((5, 4), dtype="float16")
    wide = keras.Input((5, 4), dtype="float32")
    y = layers.MultiHeadAttention(1, 3, dtype="float16")(x, x)
    model = keras.Model([x, wide], [y, keras.layers.Dense(2)(wide)])
    numbers = np.ones((1, 5, 4))
    projections, scores, values = 4 * 5 * 4 * 3, 5 * 5 * 3, 5 * 5 * 3
    in_fp16 = projections + scores + values
    expected = in_fp16 / (in_fp16 + 5 * 4 * 2)
    found = float16_share(model, [numbers.astype("float16"), numbers.astype("float32")])
    assert found == pytest.approx(expected)
