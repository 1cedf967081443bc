"""What `LossScaleCallback(log_dir=...)` writes, on gradients that are known by hand.

The gradient of the one weight is the mean of the batch, and so is its norm.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import fit, one_weight
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mp
from keras_mp import DynamicLossScale, LossScaleCallback


def logged(folder, name):
    """Steps and values of a scalar."""
    events = EventAccumulator(str(folder)).Reload().Tensors(name)
    return {e.step: tf.make_ndarray(e.tensor_proto).item() for e in events}


# 2, an overflow at the scale 2**12, 3 and 4.
ROWS = [[2.0], [2.0**10], [3.0], [4.0]]
SCALES = {1: 2.0**12, 2: 2.0**11, 3: 2.0**11, 4: 2.0**11}


def model_of(inner=None, **arguments):
    model = one_weight(loss_scale=DynamicLossScale(2.0**12))
    inner = inner or keras.optimizers.SGD(0.25)
    optimizer = keras_mp.wrap(inner, DynamicLossScale(2.0**12))
    model.compile(optimizer, model.loss, **{"jit_compile": False, **arguments})
    return model


INNER = {
    "fused": lambda: keras.optimizers.SGD(0.25),
    "clipped": lambda: keras.optimizers.SGD(0.25, global_clipnorm=1e-3),
    "unscaled-by-kernel": lambda: keras.optimizers.Adafactor(0.25),
    "accumulating": lambda: keras.optimizers.SGD(0.25, gradient_accumulation_steps=2),
}


@pytest.mark.xslow_except("*-graph", "fused-xla", "accumulating-xla")
@pytest.mark.slow_except("fused-*", "accumulating-graph")
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("inner", INNER)
def test_every_step_is_written(inner, jit_compile, tmp_path):
    model = model_of(INNER[inner](), jit_compile=jit_compile)
    fit(model, ROWS, 1, LossScaleCallback(log_dir=tmp_path))
    assert logged(tmp_path, "loss_scale") == SCALES
    assert logged(tmp_path, "skipped_steps") == {1: 0, 2: 1, 3: 1, 4: 1}
    norms = logged(tmp_path, "gradient_norm")
    assert not np.isfinite(norms.pop(2))
    assert norms == {1: 2.0, 3: 3.0, 4: 4.0}


def test_steps_that_are_executed_together_are_written_together(tmp_path):
    model = model_of(steps_per_execution=3)
    fit(model, ROWS, 1, LossScaleCallback(log_dir=tmp_path))
    assert logged(tmp_path, "loss_scale") == {3: SCALES[3], 4: SCALES[4]}
    assert logged(tmp_path, "gradient_norm") == {3: 3.0, 4: 4.0}


def test_a_resumed_run_goes_on_at_its_step(tmp_path):
    model = model_of()
    fit(model, ROWS, 1, LossScaleCallback(log_dir=tmp_path / "first"))
    keras_mp.Checkpoints(tmp_path / "saved").save(1, model)
    again = model_of()
    keras_mp.Checkpoints(tmp_path / "saved").restore(again)
    fit(again, ROWS[2:], 1, LossScaleCallback(log_dir=tmp_path / "second"))
    assert list(logged(tmp_path / "second", "loss_scale")) == [5, 6]


def test_a_model_that_was_trained_before_is_traced_again(tmp_path):
    model = model_of()
    fit(model, ROWS[2:], 1)
    callback = LossScaleCallback(log_dir=tmp_path)
    fit(model, ROWS[2:], 1, callback)
    traced = model.train_function
    fit(model, ROWS[2:], 1, callback)
    assert model.train_function is traced
    norms = {3: 3.0, 4: 4.0, 5: 3.0, 6: 4.0}
    assert logged(tmp_path, "gradient_norm") == norms


@pytest.mark.slow
@pytest.mark.parametrize("clipnorm", [None, 1e6])
def test_the_norm_is_that_of_the_sum_over_replicas(clipnorm, strategy, tmp_path):
    with strategy.scope():
        model = model_of(keras.optimizers.SGD(0.25, clipnorm=clipnorm))
    fit(model, [[1.0], [5.0], [-2.0], [4.0]], 2, LossScaleCallback(log_dir=tmp_path))
    assert logged(tmp_path, "gradient_norm") == {1: 3.0, 2: 1.0}


def test_saved_files_do_not_have_the_norm(tmp_path):
    plain, watched = model_of(), model_of()
    fit(plain, ROWS[2:], 1)
    fit(watched, ROWS[2:], 1, LossScaleCallback(log_dir=tmp_path))
    paths = [[v.path for v in m.optimizer.variables] for m in (plain, watched)]
    assert len(paths[0]) == len(paths[1])
    graphs = [
        tf.train.Checkpoint(optimizer=m.optimizer).save(str(tmp_path / name))
        for m, name in ((plain, "plain"), (watched, "watched"))
    ]
    names = [[name for name, _ in tf.train.list_variables(graph)] for graph in graphs]
    assert names[0] == names[1]


@pytest.mark.parametrize("log_dir", [5, True, ["logs"]])
def test_a_log_dir_that_is_no_path_is_refused(log_dir):
    with pytest.raises(TypeError, match="`log_dir` must be a str or a path"):
        LossScaleCallback(log_dir=log_dir)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="Received: backend='jax'"):
        LossScaleCallback(log_dir="logs")
