"""A loss scale that is chosen from the largest gradients seen."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.arguments import positive_number, whole_number
from keras_mp.loss_scale import DynamicLossScale, LossScaleState

_LOG2_LARGEST = math.log2(65504)
# What is assumed before any gradient is seen: a standard deviation of 2 octaves, with
# the weight of 10 steps.
_PRIOR_VARIANCE = 4.0
_PRIOR_STEPS = 10


@keras.saving.register_keras_serializable(package="keras_mp")
class StatisticalLossScale(DynamicLossScale):
    """A loss scale that is chosen from the largest gradients seen.

    The largest absolute unscaled gradients of the steps are taken to be distributed
    log-normally. With `mean` and `std` of their log2, the next scale is the largest
    power of two such that

        log2(scale) + mean + max(n_sigma * std, margin) <= log2(65504)

    So it follows the gradients, up and down, while `DynamicLossScale` doubles every
    `growth_interval` steps until one overflows. `mean` and `std` are over all steps,
    and after `window` steps running ones; `std` starts at 2 octaves (factors of two)
    with the weight of 10 steps. A step with only zero gradients teaches nothing. Until
    there is another one, the scale is `DynamicLossScale`'s.

    An overflow halves the scale, and does not tell how large the gradients were. From
    it `margin` learns, which becomes an octave more than the distance between `mean`
    and `log2(65504 / scale)`. In `growth_interval` finite steps it falls by an octave.
    It keeps steps from being skipped if the gradients of activations, which the
    optimizer does not see, are larger than the gradients of the weights, or if a few
    batches have much larger gradients than the others.

    Args:
        initial_scale: float in `[min_scale, max_scale]`. Defaults to `2**15`.
        n_sigma: float > 0, in standard deviations. Defaults to 4.
        window: int >= 1, in steps. Defaults to 100.
        growth_interval: int >= 1, in steps. Defaults to 2000.
        min_scale: float > 0. Defaults to `2**-14`.
        max_scale: float. Defaults to `2**24`.

    Raises:
        TypeError: a value is not a number of the stated kind.
        ValueError: a value is outside its range.

    Example:

    >>> rule = keras_mp.StatisticalLossScale(n_sigma=3)
    >>> state = rule.initial_state()
    >>> for largest in (0.25, 0.5, 0.25, 0.5):
    ...     state = rule.update(state, finite=True, largest=largest)
    ...     print(float(state.scale))
    4096.0
    2048.0
    4096.0
    4096.0

    Reference: Mixed Precision Training, section 5 ("automating loss-scaling"). The rule
    is LogMax of Kuchaiev et al., Mixed-Precision Training for NLP and Speech
    Recognition with OpenSeq2Seq (2018), with a prior and a margin.
    """

    def __init__(
        self,
        initial_scale: float = 2.0**15,
        n_sigma: float = 4.0,
        window: int = 100,
        growth_interval: int = 2000,
        min_scale: float = 2.0**-14,
        max_scale: float = 2.0**24,
    ) -> None:
        super().__init__(
            initial_scale=initial_scale,
            growth_interval=growth_interval,
            min_scale=min_scale,
            max_scale=max_scale,
        )
        self.n_sigma = positive_number("n_sigma", n_sigma, "Try 4.")
        self.window = whole_number("window", window, "Try 100.")

    def initial_statistics(self) -> dict[str, float]:
        """Returns the statistics before the first step; lengths are in octaves."""
        return {"mean": 0.0, "variance": _PRIOR_VARIANCE, "count": 0, "margin": 0.0}

    def next_statistics(
        self, state: LossScaleState, finite: Any, largest: Any
    ) -> dict[str, Any]:
        """Returns the statistics with a step's added."""
        old = self._repaired(state.statistics)
        mean, variance, count = old["mean"], old["variance"], old["count"]
        # Subnormal numbers are left out: a device may take them for zero.
        is_number = ops.logical_and(largest >= 2.0**-126, ops.isfinite(largest))
        learns = ops.logical_and(finite, is_number)
        x = ops.log2(ops.where(learns, largest, 1.0))
        new_mean = mean + (x - mean) / self._steps(count + 1)
        deviation = (x - mean) * (x - new_mean) - variance
        new_variance = variance + deviation / self._steps(count + 1 + _PRIOR_STEPS)
        return {
            "mean": ops.where(learns, new_mean, mean),
            "variance": ops.where(learns, new_variance, variance),
            "count": ops.where(learns, count + 1, count),
            "margin": self._next_margin(old, state.scale, finite),
        }

    def next_scale(self, state: LossScaleState, finite: Any) -> Any:
        """Returns the scale that the statistics allow, within its bounds."""
        learned = state.statistics
        spread = self.n_sigma * ops.sqrt(learned["variance"])
        limit = _LOG2_LARGEST - learned["mean"] - ops.maximum(spread, learned["margin"])
        # From a table, since not every device computes powers of two exactly.
        least, most = math.log2(self.min_scale), math.log2(self.max_scale)
        exponents = np.arange(math.ceil(least), math.floor(most) + 1).astype("float32")
        allowed = ops.where(ops.less_equal(exponents, limit), 2.0**exponents, 0.0)
        by_statistics = ops.max(allowed, initial=self.min_scale)
        has_learned = ops.logical_and(finite, learned["count"] > 0)
        return ops.where(has_learned, by_statistics, super().next_scale(state, finite))

    def _next_margin(self, old: dict[str, Any], scale: Any, finite: Any) -> Any:
        narrower = old["margin"] - 1 / self.growth_interval
        wider = ops.maximum(
            old["margin"], _LOG2_LARGEST - ops.log2(scale) - old["mean"]
        )
        # Wide enough for the smallest scale: what is never finite cannot widen it more.
        widest = _LOG2_LARGEST - math.log2(self.min_scale) - old["mean"]
        margin = ops.where(finite, narrower, ops.minimum(wider + 1, widest))
        return ops.where(old["count"] > 0, ops.maximum(margin, 0.0), 0.0)

    def _steps(self, count: Any) -> Any:
        """Returns of how many steps a running mean is, as float32."""
        return ops.cast(ops.minimum(count, self.window), "float32")

    def _repaired(self, statistics: dict[str, Any]) -> dict[str, Any]:
        """Returns the statistics, or the first ones if a file was damaged."""
        first = self.initial_statistics()
        # The numbers of float32 lie between 2^-149 and 2^128. NaN fails a comparison.
        bounds = {
            "mean": (-149, 128),
            "variance": (0, 277**2),
            "count": (0, 2**31 - 1),
            "margin": (0, 2 * 277),
        }
        sound = ops.convert_to_tensor(True)
        for name, (least, most) in bounds.items():
            for holds in (statistics[name] >= least, statistics[name] <= most):
                sound = ops.logical_and(sound, holds)
        return {name: ops.where(sound, statistics[name], first[name]) for name in first}

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "initial_scale": self.initial_scale,
            "n_sigma": self.n_sigma,
            "window": self.window,
            "growth_interval": self.growth_interval,
            "min_scale": self.min_scale,
            "max_scale": self.max_scale,
        }
