"""A loss without logits trains as Keras's does in FP32, on the library's source."""

import re

import large_vocabulary
import numpy as np
import pytest

# The loss, the logarithm of the perplexity, after training: that of FP32.
TOLERANCE = 2e-3
FILES = 5


def perplexities(capsys, *flags):
    large_vocabulary.main([f"--files={FILES}", "--steps=6", *flags])
    told, _, *rows = capsys.readouterr().out.splitlines()
    words = int(re.match(r"([\d,]+) words", told)[1].replace(",", ""))
    return words, [float(row.split()[-2]) for row in rows]


@pytest.mark.slow
@pytest.mark.xslow_except("mixed_bfloat16")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_all_settings_learn_alike(policy, capsys):
    words, found = perplexities(capsys, f"--policy={policy}")
    assert len(found) == 3 and found[0] < words  # better than equal probabilities
    np.testing.assert_allclose(np.log(found), np.log(found[0]), rtol=TOLERANCE)


def test_rows_are_of_the_text():
    rows, held_out, words = large_vocabulary.read_data(files=FILES)
    text = large_vocabulary.read_words(files=FILES)
    assert words == len(set(text))
    assert rows.shape[1] == held_out.shape[1] == large_vocabulary.LENGTH + 1
    assert len(rows) + len(held_out) == len(text) // (large_vocabulary.LENGTH + 1)
