"""The programs of docs/diagnosing.md, at toy size."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mp

FOLDER = Path(__file__).parents[2] / "examples" / "diagnosing"


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("images", "no_learning", "fine_tuning", "attention", "watching")
    for name in names:  # there is a folder examples/fine_tuning, too
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.xslow
def test_gradients_of_a_mean_over_many_numbers_are_lost():
    import no_learning

    model, noisy, clean, losses = no_learning.train("mixed_float16", 1, 3, 128)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
    report = keras_mp.inspect(model, noisy, clean)
    assert report.needs_scaling() and report.recovered(2.0**24) > 0.999


@pytest.mark.slow
def test_weights_without_masters_do_not_move():
    import fine_tuning
    from images import denoiser

    weights = denoiser().get_weights()
    adam = keras.optimizers.Adam
    bare = keras.optimizers.LossScaleOptimizer(adam(1e-6))
    _, moved, _ = fine_tuning.fine_tune("float16", bare, weights, 1, 32)
    wrapped = keras_mp.wrap(adam(1e-6))
    _, _, (model, noisy, clean) = fine_tuning.fine_tune(
        "float16", wrapped, weights, 1, 32
    )
    assert moved < 0.1
    assert keras_mp.inspect(model, noisy, clean).needs_masters()


def test_attention_is_named():
    import attention

    tokens, labels = attention.data(64)
    keras.config.set_dtype_policy("mixed_float16")
    for layers, found in ((keras.layers, "attention"), (keras_mp.layers, None)):
        model = attention.model_of(layers)
        model.compile(optimizer=keras_mp.wrap("adam", loss_scale=1.0), loss="mse")
        overflow = keras_mp.find_overflow(model, tokens, labels)
        assert (overflow and overflow.path) == found
        if found is None:
            assert np.isfinite(model.evaluate(tokens, labels, verbose=0))
