"""The update that a step would make, in FP32 and in FP16 without master weights."""

import warnings
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.optimizer.checkpoint import Saved, inner_state
from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.masters import variable_like
from keras_mp.optimizer.properties import OptimizerProperties
from keras_mp.precision.model_index import numbered

# What rounds to infinity.
_BEYOND_FP16 = 65520.0


@dataclass(frozen=True)
class Difference:
    """How far numbers are from those computed in FP32, as vectors.

    Attributes:
        relative_error: float, `|x - reference| / |reference|`; 0 if both are 0, inf if
            a number is not finite.
        cosine: float, of the angle between them; None if one of them is 0, or a number
            is not finite.
    """

    relative_error: float
    cosine: float | None

    @classmethod
    def between(cls, x: Any, reference: Any) -> "Difference":
        """Returns the difference of `x` from `reference`, computed in float64."""
        x, reference = (np.asarray(each, np.float64).ravel() for each in (x, reference))
        if not (np.all(np.isfinite(x)) and np.all(np.isfinite(reference))):
            return cls(float("inf"), None)
        size, error = np.linalg.norm(reference), np.linalg.norm(x - reference)
        product = size * np.linalg.norm(x)
        return cls(
            float(error / size) if size else 0.0 if error == 0 else float("inf"),
            float(np.dot(x, reference) / product) if product else None,
        )


@dataclass(frozen=True)
class Update:
    """What FP16 without a master would make of the update of a weight.

    Attributes:
        values: float32 array, the update in FP32.
        too_small: int, updates that are not zero, and zero in FP16.
        absorbed: int, updates that FP16 holds, and that do not change the FP16 weight
            when they are added.
        difference: `Difference` of the change of the FP16 weight from the update.
        rounding_noise: float, the standard deviation of the change, rounded
            stochastically, over the length of the update. Its mean is the update.
    """

    values: Any
    too_small: int
    absorbed: int
    difference: Difference
    rounding_noise: float

    @classmethod
    def of(cls, weight: Any, update: Any) -> "Update":
        """Returns it for a weight and its update, both float32 arrays."""
        # FP32 has 24 digits, 2 more than twice the 11 of FP16, so that the sum is
        # rounded as if once (Figueroa, "When is double rounding innocuous?").
        with np.errstate(over="ignore", invalid="ignore"):
            half_weight, half_update = _in_fp16(weight), _in_fp16(update)
            after = _in_fp16(half_weight + half_update)
            change = after.astype(np.float64) - half_weight
        too_small = (update != 0) & (half_update == 0)
        absorbed = (half_update != 0) & (after == half_weight)
        return cls(
            update,
            int(np.count_nonzero(too_small)),
            int(np.count_nonzero(absorbed)),
            Difference.between(change, update),
            _rounding_noise(half_weight, update),
        )


def _rounding_noise(half_weight: Any, update: Any) -> float:
    """Returns `sqrt(sum(s**2 f (1 - f))) / |update|`, of the spacing s of FP16.

    A number that lies the fraction f of the spacing above its lower neighbor is rounded
    up with the probability f. Infinite where FP16 cannot hold the new weight.
    """
    size = np.linalg.norm(update.astype(np.float64))
    if size == 0:
        return 0.0
    new = half_weight.astype(np.float64) + update
    if not np.all(np.abs(new) < _BEYOND_FP16):  # NaN, too
        return float("inf")
    _, exponent = np.frexp(new)
    spacing = np.ldexp(1.0, np.maximum(exponent - 1, -14) - 10)
    steps = new / spacing
    fraction = steps - np.floor(steps)
    return float(np.linalg.norm(spacing * np.sqrt(fraction * (1 - fraction))) / size)


def _in_fp16(x: Any) -> Any:
    """Returns numbers rounded to FP16, as float32: NumPy computes slowly in FP16."""
    return x.astype(np.float16).astype(np.float32)


def updates_of(
    optimizer: keras.Optimizer,
    weights: list[Any],
    values: list[Any],
    gradients: list[Any],
) -> list[Update]:
    """Returns the update of each weight in one step of a copy of an optimizer.

    Args:
        optimizer: `keras.optimizers.Optimizer`, wrapped or not; nothing of it changes.
        weights: list of variables.
        values: list of their float32 values.
        gradients: list of float32 tensors, or None.
    """
    masters = [variable_like(weight, "float32") for weight in weights]
    for master, value in zip(masters, values, strict=True):
        master.assign(value)
    copy = _copy_of(optimizer, weights, masters)
    before = [keras.ops.convert_to_numpy(master) for master in masters]
    if any(gradient is not None for gradient in gradients):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights without a gradient
            copy.apply(gradients, masters)
    after = [keras.ops.convert_to_numpy(master) for master in masters]
    return [Update.of(w, new - w) for w, new in zip(before, after, strict=True)]


def _copy_of(
    optimizer: keras.Optimizer, weights: list[Any], masters: list[Any]
) -> keras.Optimizer:
    """Returns an optimizer for masters, in the state of the weights' optimizer.

    It does not accumulate: each batch makes an update, not only every n-th.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    config = inner.get_config()
    if "learning_rate" in config:
        # A schedule counts batches, and the copy counts steps.
        rate = keras.ops.convert_to_numpy(inner.learning_rate)
        config["learning_rate"] = float(rate)
    copy = type(inner).from_config(config)
    references = _references(optimizer) if inner.built else {}
    pairs = list(zip(leaves(inner), leaves(copy), strict=True))
    for leaf, own in pairs:
        own.gradient_accumulation_steps = None
        excluded = [
            master
            for weight, master in zip(weights, masters, strict=True)
            if not keras_internals.uses_weight_decay(
                leaf, references.get(id(weight), weight)
            )
        ]
        if excluded:
            own.exclude_from_weight_decay(excluded)
    copy.build(masters)
    if inner.built:
        state = _state_of(optimizer)
        for name, entry in _state_of(copy).items():
            entry.assign(state[name].read())
        for leaf, own in pairs:
            keras_internals.applied_steps(own).assign(leaf.iterations)
    return copy


def _references(optimizer: keras.Optimizer) -> dict[int, Any]:
    """Returns what a wrapped optimizer knows weights by, by the `id` of the weight."""
    if not isinstance(optimizer, OptimizerProperties):
        return {}
    masters = optimizer._master_weights.all
    return {id(master.weight): master.reference for master in masters}


def _state_of(optimizer: keras.Optimizer) -> dict[str, Saved]:
    """Returns what an optimizer keeps, by path without the optimizers' names.

    Without learning rates: a config has them, and a schedule has no variable.
    """
    entries = [
        entry
        for entry in inner_state(optimizer)
        if not entry.path.endswith("learning_rate")
    ]
    paths = [entry.path.rpartition("/")[2] for entry in entries]
    return dict(zip(numbered(paths), entries, strict=True))
