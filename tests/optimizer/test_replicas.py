"""Two replicas, and four, against one process: to the bit where nothing is rounded.

The last test runs others of this file again, in a process with four logical CPUs.
"""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras.optimizers import SGD, Adam, AdamW, Nadam
from replicas import assert_equal_on_all_replicas, copies, fit, linear, one_weight

import keras_mp
from keras_mp import DynamicLossScale

PATTERNS = {"first": [0], "last": [-1], "two": [0, -1], "all": slice(None)}


@pytest.mark.slow
def test_all_replicas_skip_whichever_overflows(strategy):
    with strategy.scope():
        model = one_weight(momentum=0.5)
    good = np.ones((strategy.num_replicas_in_sync, 1), "float32")
    batches = []
    for where in PATTERNS.values():
        bad = good.copy()
        bad[where] = np.inf
        batches += [good, bad]
    optimizer = model.optimizer
    found = []

    def record(batch, logs):
        slot = optimizer.inner_optimizer.variables[-1]
        watched = [model.weights[0], optimizer.master_weights[0], slot]
        watched += [optimizer.loss_scale, optimizer.skipped_steps]
        each = zip(*(copies(strategy, v) for v in watched), strict=True)
        found.append([tuple(float(v.item()) for v in replica) for replica in each])

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=record)
    fit(model, np.concatenate(batches), len(good), callback)

    # After a good batch, and after the bad one that follows it.
    weight, velocity, scale, expected = 1.0, 0.0, 8.0, []
    for skipped in range(len(PATTERNS)):
        velocity = velocity / 2 - 0.25
        weight += velocity
        expected.append((weight, weight, velocity, scale, skipped))
        scale /= 2
        expected.append((weight, weight, velocity, scale, skipped + 1))
    assert found == [[state] * len(good) for state in expected]


# Against one process on the joint batch.

HALVING = keras.optimizers.schedules.ExponentialDecay(0.25, 2, 0.5)
OPTIMIZERS = {
    "float16-momentum": lambda: SGD(0.125, momentum=0.5),
    "float16-adamw": lambda: AdamW(0.1, weight_decay=0.25),
    # The gradient of the bias has 8 entries of 1/8, so the joint gradient is clipped in
    # every step, and no replica's share of it would be.
    "float16-global-clipnorm": lambda: SGD(0.125, global_clipnorm=0.25),
    "mixed_float16-clipnorm": lambda: Adam(0.1, clipnorm=0.25),
    "mixed_float16-overwriting": lambda: SGD(
        0.125, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "float16-accumulation": lambda: Nadam(
        HALVING,
        clipvalue=0.1,
        weight_decay=0.25,
        gradient_accumulation_steps=2,
        use_ema=True,
        ema_overwrite_frequency=2,
    ),
}


@pytest.mark.xslow_except("float16-accumulation", "mixed_float16-overwriting")
@pytest.mark.slow
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_training_equals_that_of_one_process(strategy, case):
    policy, optimizer = case.partition("-")[0], OPTIMIZERS[case]
    # Small integers, batches of 8, 8 outputs: every gradient is a sum of integers
    # below 2**11 times a power of two, and exact in float16 and float32, in whatever
    # order it is summed. Hence what the optimizer makes of it is the same, too.
    x = np.random.default_rng(0).integers(-4, 5, (48, 3)).astype("float32")
    x[21, 1] = np.nan  # the third batch, in its second half
    constraint = keras.constraints.UnitNorm() if "overwriting" in case else None
    single = linear(policy, optimizer(), constraint=constraint)
    fit(single, x, 8)
    with strategy.scope():
        mirrored = linear(policy, optimizer(), constraint=constraint)
    fit(mirrored, x, 8)

    assert_equal_on_all_replicas(strategy, mirrored)
    for one, two in zip(
        single.optimizer.variables + single.variables,
        mirrored.optimizer.variables + mirrored.variables,
        strict=True,
    ):
        np.testing.assert_array_equal(two.numpy(), one.numpy(), err_msg=one.path)
    assert mirrored.optimizer.skipped_steps.numpy() == 1
    updates = 2 if single.optimizer.inner_optimizer.gradient_accumulation_steps else 5
    assert keras.ops.convert_to_numpy(mirrored.optimizer.iterations) == updates
    changed = [np.any(w != np.round(w)) for w in mirrored.get_weights()]
    assert all(changed)


def perceptron():
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = keras_mp.wrap(SGD(0.0625), DynamicLossScale(64.0))
    model.compile(optimizer, "mse", jit_compile=False)
    return model


@pytest.mark.slow
def test_training_on_real_numbers_equals_that_of_one_process(strategy):
    # An entry of a gradient is a sum of 8 products, below `size` in all. The two runs
    # differ in the order of the sum, 8 roundings of float32 of that size. A step moves
    # a weight by the gradient divided by 16, so after 10 steps the weights differ by
    # 10 / 16 of that, and twice that for the later gradients that differ with them.
    size, steps = 4.0, 10
    tolerance = 2 * (steps / 16) * 8 * 2.0**-23 * size
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (8 * steps, 4)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    single = perceptron()
    start = single.get_weights()
    with strategy.scope():
        mirrored = perceptron()
    for model in (single, mirrored):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert_equal_on_all_replicas(strategy, mirrored)
    assert mirrored.optimizer.iterations.numpy() == steps
    for one, two, before in zip(
        single.get_weights(), mirrored.get_weights(), start, strict=True
    ):
        np.testing.assert_allclose(two, one, rtol=0, atol=tolerance)
        # Far less than what training changed.
        assert np.max(np.abs(one - before)) > 100 * tolerance


WITH_FOUR = ["whichever", "accumulation", "overwriting", "real_numbers"]


@pytest.mark.xslow
def test_four_replicas():
    """In a process of its own: how many devices there are is set once."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, __file__, "-k", " or ".join(WITH_FOUR)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"KERAS_MP_TEST_REPLICAS": "4"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert f"{len(WITH_FOUR)} passed" in run.stdout
