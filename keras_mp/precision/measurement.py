"""`Measurement`: runs of a model on some batches, in FP32 and with layers in modes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_mp.diagnostics.numerics import scale_below_overflow
from keras_mp.diagnostics.statistics import TensorStatistics, total
from keras_mp.diagnostics.updates import Difference
from keras_mp.precision.batch import fp32_value, master_values
from keras_mp.precision.convert import converted_in_modes
from keras_mp.precision.decide import fp32_weights
from keras_mp.precision.layer_table import layer_table
from keras_mp.precision.modes import FLOAT32
from keras_mp.precision.run import Trace, run_batch

# The smallest that DynamicLossScale falls to by default.
MIN_LOSS_SCALE = 2.0**-14


class Measurement:
    """Runs a model on batches. Nothing of the model is changed.

    Args:
        model: `keras.Model`, built and compiled.
        data: sequence of batches.
        margin: float, by how much later weights may be larger.

    Attributes:
        model: `keras.Model`.
        references: list of the `Trace` of each batch in FP32.
        numbers: dict from path to `LayerRow`.
        fp32_weights: list of the paths of layers with weights that FP16 does not hold;
            in modes they have FP32 weights.
        smallest_loss_scale: float, from 2**-14 to 1.
        loss_scale: float, at which `runs` differentiates.
    """

    def __init__(self, model: Any, data: Sequence[Any], margin: float) -> None:
        self.model = model
        self._data, self._masters = data, master_values(model)
        with converted_in_modes(model, {}):  # whose classes tell which have products
            self.references = [self._run(batch, dtype="float32") for batch in data]
            self.numbers = layer_table(model, self.references, self._masters)
        self.fp32_weights = fp32_weights(self.numbers.values(), margin)
        gradients = gradient_statistics(self.references)
        self.smallest_loss_scale = smallest_loss_scale(gradients)
        self.loss_scale = largest_loss_scale(gradients)

    def runs(self, modes: Mapping[str, str]) -> list[Trace]:
        """Returns a run of each batch with layers in these modes, by their paths."""
        with converted_in_modes(self.model, modes, self.fp32_weights):
            return [self._run(batch, self.loss_scale) for batch in self._data]

    def errors(self, runs: Sequence[Trace]) -> list[float]:
        """Returns the relative error of all weight gradients, for each batch."""
        pairs = zip(runs, self.references, strict=True)
        return [relative_error(*pair) for pair in pairs]

    def lower_loss_scale(self, modes: Mapping[str, str]) -> bool:
        """Sets the largest loss scale at which all gradients are finite.

        It is divided by 4 until they are, down to the smallest. Returns False, and
        leaves it, if they are not finite there either.
        """
        before, self.loss_scale = self.loss_scale, self.smallest_loss_scale
        if not self._is_finite(modes):
            self.loss_scale = before
            return False
        scale = before / 4
        while scale > self.smallest_loss_scale:
            self.loss_scale = scale
            if self._is_finite(modes):
                return True
            scale /= 4
        self.loss_scale = self.smallest_loss_scale
        return True

    def error_alone(self, modes: Mapping[str, str], batch: int) -> float:
        """Returns the error that layers bring into the gradients of FP32 layers.

        Args:
            modes: dict from path to mode, of layers; all others compute in FP32.
            batch: int, the number of the batch.
        """
        return relative_error(
            self._in_fp32_but(modes, batch), self._in_fp32_but({}, batch)
        )

    def error_of_stored_weights(self, batch: int) -> float:
        """Returns the error with all layers in FP32, from weights stored in FP16."""
        return relative_error(self._in_fp32_but({}, batch), self.references[batch])

    def fp32_noise(self, batch: int) -> float:
        """Returns the relative error of the gradients that FP32 itself has.

        It is the difference to a run in which every weight is multiplied by 1 + 2**-24
        or 1 - 2**-24, as FP32 may have rounded it.
        """
        generator = np.random.default_rng(0)
        moved = {}
        for variable in self.model.trainable_variables:
            value = ops.convert_to_numpy(fp32_value(variable, self._masters))
            signs = generator.choice([-1.0, 1.0], value.shape)
            exact = value.astype(np.float64) * (1.0 + signs * 2.0**-24)
            moved[id(variable)] = exact.astype(np.float32)
        with converted_in_modes(self.model, {}):
            found = run_batch(
                self.model, self._data[batch], dtype="float32", masters=moved
            )
        return relative_error(found, self.references[batch])

    def _is_finite(self, modes: Mapping[str, str]) -> bool:
        return all(map(math.isfinite, self.errors(self.runs(modes))))

    def _in_fp32_but(self, modes: Mapping[str, str], batch: int) -> Trace:
        modes = dict.fromkeys(self.numbers, FLOAT32) | dict(modes)
        with converted_in_modes(self.model, modes, self.fp32_weights):
            return self._run(self._data[batch], self.loss_scale)

    def _run(self, batch: Any, scale: float = 1.0, dtype: str | None = None) -> Trace:
        return run_batch(self.model, batch, scale, dtype, self._masters)


def relative_error(found: Trace, reference: Trace) -> float:
    """Returns the relative error of all weight gradients of a run, as one vector."""
    difference = Difference.between(gradients_of(found), gradients_of(reference))
    return difference.relative_error


def gradient_statistics(runs: Sequence[Trace]) -> TensorStatistics | None:
    """Returns the statistics of all gradients of runs; None if there are none."""
    return total(
        TensorStatistics.of(gradient)
        for each in runs
        for _, gradient in [*each.activation_gradients, *each.weight_gradients]
    )


def smallest_loss_scale(gradients: TensorStatistics | None) -> float:
    """Returns the smallest loss scale with which FP16 keeps gradients.

    It is a power of two from 2**-14 to 1: with it at most 1% of the gradients become 0
    that do not with 1. One layer with large gradients is not to cost the gradients of
    all others.
    """
    if gradients is None:
        return 1.0
    allowed = 0.01 * (gradients.elements - gradients.zeros)
    for exponent in range(int(math.log2(MIN_LOSS_SCALE)), 0):
        if gradients.lost_at(exponent) - gradients.lost_at(0) <= allowed:
            return 2.0**exponent
    return 1.0


def largest_loss_scale(gradients: TensorStatistics | None) -> float:
    """Returns the largest loss scale that gradients in FP32 allow in FP16.

    The one that `keras_mp.suggest_loss_scale` would choose, at least the smallest; and
    1 if a gradient is not finite, or all are 0.
    """
    if gradients is None or gradients.largest is None:
        return 1.0
    if gradients.infinities or gradients.nans:
        return 1.0
    scale = scale_below_overflow(2.0 * gradients.largest)
    return max(smallest_loss_scale(gradients), scale)


@dataclass(frozen=True)
class Comparison:
    """How far one run is from the one in FP32.

    Attributes:
        loss: float.
        gradient_error: float, the relative error of all weight gradients as one vector;
            inf if one is not finite.
        cosine: float or None, of the angle between the two; None if one is not
            finite.
    """

    loss: float
    gradient_error: float
    cosine: float | None

    @classmethod
    def of(cls, run: Trace, reference: Trace) -> "Comparison":
        """Returns it for a run of a model and its run in FP32."""
        difference = Difference.between(gradients_of(run), gradients_of(reference))
        return cls(float(run.loss), difference.relative_error, difference.cosine)

    def __str__(self) -> str:
        cosine = "-" if self.cosine is None else f"{self.cosine:.6f}"
        return (
            f"loss {self.loss:.6g}, gradient error {self.gradient_error:.2%}, "
            f"cosine {cosine}"
        )


@dataclass(frozen=True)
class Verification:
    """What `PrecisionPlan.verify` returns.

    Attributes:
        loss: float, in FP32.
        before: `Comparison` of the model in FP16 throughout.
        after: `Comparison` of the model with the plan.
    """

    loss: float
    before: Comparison
    after: Comparison

    @classmethod
    def of(cls, fp32: Trace, fp16: Trace, planned: Trace) -> "Verification":
        """Returns it for three runs on one batch."""
        before, after = (Comparison.of(each, fp32) for each in (fp16, planned))
        return cls(float(fp32.loss), before, after)

    def __str__(self) -> str:
        return (
            f"FP32:      loss {self.loss:.6g}\n"
            f"FP16:      {self.before}\n"
            f"with plan: {self.after}"
        )


def gradients_of(run: Trace) -> Any:
    """Returns all weight gradients of a run as one float64 vector."""
    found = [gradient for _, gradient in run.weight_gradients]
    vectors = [np.ravel(ops.convert_to_numpy(each)) for each in found]
    return np.concatenate([*vectors, np.zeros(0)])
