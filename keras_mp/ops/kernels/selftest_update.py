"""The known step of the self-test: a device gives the bits of the CPU."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.ops.kernels import native, update

# More than a chunk of 4096 has, and less than a block of 256 threads.
SIZES = (5000, 33)
SCALE = 1000.0
HYPERPARAMETERS = {
    "scale": SCALE,
    "clip_value": 0.5,
    "clip_factor": 0.7,
    "weight_decay": 0.01,
    "learning_rate": 0.1,
    "momentum": 0.9,
    "alpha": 0.03,
    "beta_1": 0.9,
    "one_minus_beta_1": 0.1,
    "beta_2": 0.999,
    "one_minus_beta_2": 0.001,
    "epsilon": 1e-7,
    "m_factor": 0.7,
    "m_divisor": 0.6,
    "g_factor": 0.3,
    "g_divisor": 0.4,
    "v_divisor": 0.01,
    "l1": 0.3,
    "l2": 0.2,
    "l2_shrinkage": 0.05,
    "epsilon_2": 0.001,
    "threshold": 1.0,
    "noise_low": 7.0,
}
Tensors = Sequence[Any]


@dataclass(frozen=True)
class Codes:
    """A slot stored as codes."""

    codes: tf.Variable
    exponents: tf.Variable
    bits: int


def update_problem(device: str) -> str:
    """Returns what is wrong with the kernels of the step on a device, or nothing.

    Args:
        device: str, its name in TensorFlow.
    """
    for name, run in cases().items():
        on_cpu, found = (_results(run, place) for place in ("CPU:0", device))
        for expected, result in zip(on_cpu, found, strict=True):
            if expected.tobytes() != result.tobytes():
                return f"A step differs from that on the CPU in {name}."
    return ""


def _results(run: Callable[[Any], Tensors], device: str) -> list[np.ndarray]:
    with tf.device(device):
        return [tensor.numpy() for tensor in run(np.random.default_rng(0))]


def _numbers(random: Any, factor: float = 1.0) -> list[np.ndarray]:
    return [(factor * random.standard_normal(s)).astype("float32") for s in SIZES]


def _variables(arrays: Sequence[np.ndarray], dtype: str = "float32") -> Tensors:
    return [tf.Variable(tf.cast(array, dtype)) for array in arrays]


def _gradients(random: Any) -> Tensors:
    return [tf.cast(x, "float16") for x in _numbers(random, SCALE)]


def _check(random: Any) -> Tensors:
    """The largest gradients, and the gradients divided by the scale."""
    gradients, scale = _gradients(random), tf.constant(SCALE)
    # Devices add up the squares in another order.
    largest, _ = update.check_gradients(gradients, scale, True)
    unscaled, again, _ = update.unscale_gradients(gradients, scale, True)
    return [largest, *unscaled, again]


def _synchronized(random: Any) -> Tensors:
    masters = _variables(_numbers(random))
    weights = _variables(_numbers(random), "float16")
    update.sync_masters_from_weights(masters[:1], weights[:1], "nearest")
    update.cast_masters(masters[1:], weights[1:], [])
    return [*masters, *weights]


def _step(rule: str, slots: int) -> Callable[[Any], Tensors]:
    """A step on a 16-bit weight with its master, and on an FP32 weight."""

    def run(random: Any) -> Tensors:
        numbers = _numbers(random)
        masters = _variables(numbers)
        weights = _variables(numbers[:1], "float16")
        of_slots: list[Any] = []
        for k in range(
            slots
        ):  # second moments are positive, and no variance is negative
            least = 30 if k == 0 else 0
            of_slots += _variables([np.abs(x) + least for x in _numbers(random)])
        update.update_variables(
            tf.constant(True),
            _gradients(random),
            masters,
            of_slots,
            [*weights, None],
            [],
            [True, False],
            rule=rule,
            hyperparameters=HYPERPARAMETERS,
        )
        return [*masters, *weights, *of_slots]

    return run


def _compressed_step(bits: int) -> Callable[[Any], Tensors]:
    """A step of Adam with masters as remainders of both sizes and coded slots."""

    def run(random: Any) -> Tensors:
        weights = _variables(_numbers(random), "float16")
        remainders = [
            tf.Variable(random.integers(-9, 9, size).astype(dtype))
            for size, dtype in zip(SIZES, ("int8", "int16"), strict=True)
        ]
        slots = [_coded_slot(random, size, bits) for size in (*SIZES, *SIZES)]
        update.update_variables(
            tf.constant(True),
            _gradients(random),
            remainders,
            slots,
            weights,
            [],
            [False, False],
            rule="adam",
            hyperparameters=HYPERPARAMETERS,
        )
        of_slots = [x for slot in slots for x in (slot.codes, slot.exponents)]
        return [*weights, *remainders, *of_slots]

    return run


def _coded_slot(random: Any, size: int, bits: int) -> Codes:
    groups = -(-size // 32)
    codes = random.integers(0, 100, size if bits == 8 else 16 * groups)
    exponents = np.full(groups, 125, "uint8")
    return Codes(tf.Variable(codes.astype("uint8")), tf.Variable(exponents), bits)


@functools.cache
def cases() -> dict[str, Callable[[Any], Tensors]]:
    """Returns what is computed on both devices, by name."""
    return {
        "the check of gradients": _check,
        "masters and their weights": _synchronized,
        **{
            f"the rule {name!r}": _step(name, len(rule.slots))
            for name, rule in native.update_rules().items()
            if not rule.needs_norms
        },
        "masters and slots in fewer bytes": _compressed_step(8),
        "slots in 4 bits": _compressed_step(4),
    }
