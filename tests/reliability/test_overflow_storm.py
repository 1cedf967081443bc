"""inf, -inf and NaN at random steps and places: as if those steps had never been.

Weights start with 11 significant bits; gradients have 5, and come in pairs that differ
in sign, so that the momentum returns to 0. A weight that drifts up to 2**11 is a
multiple of 2**-12 and has 24 bits at most: in every mode, whatever the order of the
operations, each step equals that of float64 to the bit.
"""

from dataclasses import dataclass, field

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf

import keras_mp

pytestmark = pytest.mark.slow

RATE = 2.0**-3
BAD_VALUES = (np.inf, -np.inf, np.nan)
RULE = {"growth_interval": 2, "hysteresis": 2, "min_scale": 2.0**4, "max_scale": 2.0**9}


def make_weights():
    """Two in FP16, which have masters, and one in FP32, which is its own."""
    halves = oracle.make_weights("float16", [("kernel", (2, 3)), ("bias", (3,))])
    (scale,) = oracle.make_weights("float32", [("scale", ())], seed=1)
    scale.assign(keras.ops.cast(keras.ops.cast(scale, "float16"), "float32"))
    return [*halves, scale]


@dataclass
class Reference:
    """SGD with momentum 1 in float64, which skips, and the rule in plain Python."""

    weights: list
    scaler: oracle.PlainDynamicLossScale
    momenta: list = field(init=False)
    steps: int = 0

    def __post_init__(self):
        self.weights = [oracle.value(w).astype("float64") for w in self.weights]
        self.momenta = [np.zeros_like(weight) for weight in self.weights]

    def gradients(self):
        """Those of the next step that is not skipped."""
        sign = (-1) ** self.steps
        base = oracle.make_gradients(self.weights, seed=self.steps // 2)
        return [sign * gradient for gradient in base]

    def step(self, finite):
        self.scaler.step(finite)
        if not finite:
            return
        for i, gradient in enumerate(self.gradients()):
            self.momenta[i] = self.momenta[i] - RATE * gradient
            self.weights[i] = self.weights[i] + self.momenta[i]
        self.steps += 1

    def assert_equal(self, optimizer, weights):
        momenta = optimizer.inner_optimizer.variables[2:]
        for found, expected in zip(
            [*optimizer.master_weights, *momenta],
            [*self.weights, *self.momenta],
            strict=True,
        ):
            assert np.all(np.isfinite(expected))
            oracle.assert_same_bits(
                oracle.value(found) + 0.0, expected.astype("float32") + 0.0, found.path
            )
        oracle.assert_weights_are_masters(optimizer, weights)
        assert oracle.value(optimizer.iterations) == self.steps
        self.scaler.assert_equal(optimizer)


def bad_places(generator, replicas, shapes):
    """Which entries of which replica's gradients to spoil, and how: at least one."""
    count = generator.integers(1, 4)
    return [
        (
            generator.integers(replicas),
            variable := generator.integers(len(shapes)),
            generator.integers(int(np.prod(shapes[variable]))),
            generator.choice(BAD_VALUES),
        )
        for _ in range(count)
    ]


def storm(make_step, replicas, steps):
    """Runs both and compares every step; the weather changes every 20.

    Args:
        make_step: of the weights and the optimizer, built in the right scope.
        replicas: how many.
    """
    weights = make_weights()
    inner = keras.optimizers.SGD(RATE, momentum=1.0)
    optimizer = keras_mp.wrap(inner, keras_mp.DynamicLossScale(2.0**7, **RULE))
    optimizer.scale_loss(0.0)
    optimizer.build(weights)
    step = make_step(weights, optimizer)
    scaler = oracle.PlainDynamicLossScale(2.0**7, **RULE)
    reference = Reference(weights, scaler)
    dtypes = [keras.backend.standardize_dtype(weight.dtype) for weight in weights]
    generator, scales = np.random.default_rng(replicas), set()
    for i in range(steps):
        chance = (0.02, 0.95, 0.4)[i // 20 % 3]
        # Of each replica its share, on a first axis.
        given = [
            np.stack([g * (scaler.scale / replicas)] * replicas)
            for g in reference.gradients()
        ]
        bad = generator.random() < chance
        if bad:
            shapes = [weight.shape for weight in weights]
            for replica, variable, entry, value in bad_places(
                generator, replicas, shapes
            ):
                given[variable].reshape(replicas, -1)[replica, entry] = value
        step([tf.constant(g, dtype) for g, dtype in zip(given, dtypes, strict=True)])
        reference.step(finite=not bad)
        reference.assert_equal(optimizer, weights)
        scales.add(scaler.scale)
    # Or the run has not been at the bounds and between them.
    assert scales == {2.0**k for k in range(4, 10)}
    assert steps / 5 < reference.steps < steps * 4 / 5


def assert_equal_on_all_replicas(strategy, variables):
    for variable in variables:
        first, second = strategy.experimental_local_results(variable.value)
        oracle.assert_same_bits(first.numpy(), second.numpy(), variable.path)


def on_one_device(mode):
    def make_step(weights, optimizer):
        def step(gradients):
            optimizer.apply([gradient[0] for gradient in gradients], weights)

        return step if mode == "eager" else tf.function(step, jit_compile=mode == "xla")

    return make_step


def on_replicas(strategy):
    def make_step(weights, optimizer):
        def on_each(gradients):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([gradient[replica] for gradient in gradients], weights)

        run = tf.function(lambda gradients: strategy.run(on_each, (gradients,)))

        def step(gradients):
            run(gradients)
            assert_equal_on_all_replicas(strategy, [*weights, *optimizer.variables])

        return step

    return make_step


MODES = ["eager", "graph", "xla"]


@pytest.mark.xslow_except("graph", "xla")
@pytest.mark.parametrize("mode", MODES)
def test_a_short_storm(mode):
    storm(on_one_device(mode), 1, steps=100)


def test_a_short_storm_on_two_replicas(strategy):
    with strategy.scope():
        storm(on_replicas(strategy), 2, steps=100)


@pytest.mark.xslow
@pytest.mark.parametrize("mode", MODES)
def test_ten_thousand_steps(mode):
    storm(on_one_device(mode), 1, steps=10_000)


@pytest.mark.xslow
def test_ten_thousand_steps_on_two_replicas(strategy):
    with strategy.scope():
        storm(on_replicas(strategy), 2, steps=10_000)
