"""The examples of one file each: in 16 bits they train as in FP32, a few steps long."""

import importlib
import re

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs scikit-learn")

# The example: its flags; a bound of its first number, a loss or a distance, that a
# model without training does not reach; and how far its numbers may be from FP32's,
# relative to them. Generative models depend on what is drawn in each precision.
CASES = {
    "custom_training_loop": (["--steps=10"], 64, 0.02),
    "diffusion": (["--steps=80"], 0.8, 0.1),
    "gan": (["--epochs=3"], 35, 0.3),
    "image_classifier_tf_data": (["--steps=40"], np.log(10), 0.1),
    "transfer_learning": ([], 0.7, 0.2),
    "vision_transformer": (["--epochs=1"], np.log(10), 0.05),
}


@pytest.mark.xslow_except("image_*")
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_16_bits_train_as_fp32(name, capsys):
    flags, bound, tolerance = CASES[name]
    importlib.import_module(name).main(flags)
    out = capsys.readouterr().out
    rows = re.findall(r"^([a-z]\S*(?:, \S+)?)  +([\d. ]+)$", out, re.MULTILINE)
    numbers = {name: np.array(told.split(), float) for name, told in rows}
    expected = numbers.pop("float32")
    assert expected[0] < bound
    assert numbers
    for found in numbers.values():
        assert found[0] < bound
        np.testing.assert_allclose(found, expected, rtol=tolerance)
