"""Rules that choose the loss scale: pure functions of the scale and its counters.

A rule has no variables. `FP32MasterOptimizer` holds the state and gets the next one
from the rule after every step, so that a rule can be compared, serialized and tested
without a model.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_mp.arguments import positive_number, short_repr, whole_number
from keras_mp.serialization import deserialize


class LossScaleState(NamedTuple):
    """The state of a loss scale between two steps: five scalars, and its rule's own.

    Attributes:
        scale: float32. The factor that multiplies the loss.
        finite_steps: int. Number of finite steps since the last overflow.
        consecutive_skips: int. Number of overflows since the last finite step.
        skipped_steps: int. Number of all overflows.
        skips_at_minimum: int. Number of overflows in a row at which the scale had the
            smallest value that its rule allows.
        statistics: dict of scalars by name, what the rule has learned of the gradients;
            empty for most rules.

    Example:

    >>> keras_mp.ConstantLossScale(128).initial_state()
    LossScaleState(scale=128.0, finite_steps=0, consecutive_skips=0, skipped_steps=0, \
skips_at_minimum=0, statistics={})
    """

    scale: Any
    finite_steps: Any
    consecutive_skips: Any
    skipped_steps: Any
    skips_at_minimum: Any
    statistics: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it


class LossScale:
    """A rule for the loss scale: maps `(state, finite)` to the next state.

    A subclass implements `next_scale` and `get_config`; the counters are the same for
    every rule. One that chooses the scale by the size of the gradients also implements
    `initial_statistics` and `next_statistics`.

    Args:
        initial_scale: float > 0. The scale of the first step.
        min_scale: float > 0. The smallest scale that the rule can choose.

    Example:

    >>> class Halving(keras_mp.LossScale):
    ...     def next_scale(self, state, finite):
    ...         return keras.ops.where(finite, state.scale, state.scale / 2)
    >>> rule = Halving(initial_scale=8.0, min_scale=2.0**-14)
    >>> float(rule.update(rule.initial_state(), finite=False).scale)
    4.0

    Reference: Mixed Precision Training, section 3.2.
    """

    def __init__(self, initial_scale: float, min_scale: float) -> None:
        self.initial_scale = float(initial_scale)
        self.min_scale = float(min_scale)

    def initial_state(self) -> LossScaleState:
        """Returns the state before the first step, as Python numbers."""
        return LossScaleState(self.initial_scale, 0, 0, 0, 0, self.initial_statistics())

    def initial_statistics(self) -> dict[str, float]:
        """Returns the statistics before the first step, by name: none.

        A rule that returns some is told the largest gradient of every step. The
        optimizer saves them: a float as float32, an int as an int.
        """
        return {}

    def next_statistics(
        self, state: LossScaleState, finite: Any, largest: Any
    ) -> dict[str, Any]:
        """Returns the statistics after a step: those in `state`, unchanged.

        Args:
            state: `LossScaleState` as in `next_scale`, with the old statistics.
            finite: scalar bool tensor. Whether every gradient was finite.
            largest: scalar float32 tensor, the largest absolute unscaled gradient of
                the step, if that was finite; else any number, inf or NaN.

        Returns:
            Dict as from `initial_statistics`, of scalar tensors.
        """
        return state.statistics

    def next_scale(self, state: LossScaleState, finite: Any) -> Any:
        """Returns the scale of the next step.

        Args:
            state: `LossScaleState` of scalar tensors. `scale` is still the old one;
                the counters and the statistics already count this step.
            finite: scalar bool tensor. Whether every gradient was finite.

        Returns:
            Scalar float32 tensor.
        """
        raise NotImplementedError(
            "A LossScale must implement `next_scale(state, finite)`. "
            f"Received: {type(self).__name__}, which does not."
        )

    def update(
        self, state: LossScaleState, finite: Any, largest: Any = None
    ) -> LossScaleState:
        """Returns the state after a step.

        Args:
            state: `LossScaleState` of scalars, tensors or Python numbers.
            finite: scalar bool, tensor or Python. Whether every gradient of the
                step was finite.
            largest: scalar float32, tensor or Python, as for `next_statistics`. Only a
                rule that has statistics needs it. Defaults to None.

        Returns:
            `LossScaleState` of scalar tensors, `scale` float32.

        Raises:
            ValueError: the rule has statistics, and `largest` is None.
        """
        if largest is None and self.initial_statistics():
            raise ValueError(
                "A rule that has statistics must be told the largest gradient of the "
                f"step. Received: largest=None for {self!r}. Write "
                "rule.update(state, finite, largest)."
            )
        scale = ops.cast(state.scale, "float32")
        finite = ops.cast(finite, "bool")
        stuck = ops.logical_and(ops.logical_not(finite), scale <= self.min_scale)
        counted = LossScaleState(
            scale,
            ops.where(finite, state.finite_steps + 1, 0),
            ops.where(finite, 0, state.consecutive_skips + 1),
            ops.where(finite, state.skipped_steps, state.skipped_steps + 1),
            ops.where(stuck, state.skips_at_minimum + 1, 0),
            state.statistics,
        )
        if largest is not None:
            largest = ops.cast(largest, "float32")
            statistics = self.next_statistics(counted, finite, largest)
            counted = counted._replace(statistics=statistics)
        return counted._replace(scale=self.next_scale(counted, finite))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"initial_scale": self.initial_scale, "min_scale": self.min_scale}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LossScale":
        """Returns the rule that `get_config` described."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LossScale)
            and type(self) is type(other)
            and self.get_config() == other.get_config()
        )

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(self.get_config().items()))))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


@keras.saving.register_keras_serializable(package="keras_mp")
class ConstantLossScale(LossScale):
    """A loss scale that never changes; overflowing steps are still skipped.

    The paper used constants from 8 to 32,768; the product of the scale and the
    largest gradient must stay below 65,504.

    Args:
        value: int or float > 0. The scale.

    Raises:
        TypeError: `value` is not a number.
        ValueError: `value` is not positive and finite in float32.

    Example:

    >>> optimizer = keras_mp.wrap("sgd", loss_scale=keras_mp.ConstantLossScale(128))
    >>> float(optimizer.loss_scale)
    128.0

    Reference: Mixed Precision Training, section 3.2.
    """

    def __init__(self, value: float) -> None:
        value = positive_number("value", value, "A power of two such as 128 is usual.")
        super().__init__(initial_scale=value, min_scale=value)

    def next_scale(self, state: LossScaleState, finite: Any) -> Any:
        """Returns the constant, whatever happened."""
        return ops.cast(self.initial_scale, "float32")

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"value": self.initial_scale}


@keras.saving.register_keras_serializable(package="keras_mp")
class DynamicLossScale(LossScale):
    """A loss scale that falls at overflows and grows while there are none.

    The scale is multiplied by `growth_factor` after every `growth_interval` finite
    steps in a row, and by `backoff_factor` at every overflow from the
    `hysteresis`-th in a row on. It never leaves `[min_scale, max_scale]`, so it is
    never 0, inf or NaN and can always recover.

    Args:
        initial_scale: float in `[min_scale, max_scale]`. Defaults to `2**15`.
        growth_factor: float > 1. Defaults to 2.
        backoff_factor: float in (0, 1). Defaults to 0.5.
        growth_interval: int >= 1, in steps. Defaults to 2000.
        hysteresis: int >= 1, in overflowing steps in a row: 1 backs off at every
            overflow, 2 forgives an isolated one. Defaults to 1.
        min_scale: float > 0. Defaults to `2**-14`.
        max_scale: float. Defaults to `2**24`.

    Raises:
        TypeError: a value is not a number of the stated kind.
        ValueError: a value is outside its range.

    Example:

    >>> rule = keras_mp.DynamicLossScale(initial_scale=8, growth_interval=2)
    >>> state = rule.initial_state()
    >>> for finite in (True, True, False):
    ...     state = rule.update(state, finite)
    ...     print(float(state.scale))
    8.0
    16.0
    8.0

    Reference: Mixed Precision Training, section 5 ("automating loss-scaling").
    """

    def __init__(
        self,
        initial_scale: float = 2.0**15,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        hysteresis: int = 1,
        min_scale: float = 2.0**-14,
        max_scale: float = 2.0**24,
    ) -> None:
        initial_scale = positive_number("initial_scale", initial_scale, "Try 2**15.")
        min_scale = positive_number("min_scale", min_scale, "Try 2**-14.")
        self.max_scale = positive_number("max_scale", max_scale, "Try 2**24.")
        if not min_scale <= initial_scale <= self.max_scale:
            raise ValueError(
                "`initial_scale` must lie in [min_scale, max_scale]. "
                f"Received: initial_scale={initial_scale}, min_scale={min_scale}, "
                f"max_scale={self.max_scale}. Widen the bounds or move the start."
            )
        super().__init__(initial_scale=initial_scale, min_scale=min_scale)
        self.growth_factor = positive_number("growth_factor", growth_factor, "Try 2.")
        if self.growth_factor <= 1:
            raise ValueError(
                "`growth_factor` must be greater than 1, or the scale never grows. "
                f"Received: growth_factor={growth_factor}. Try 2, or use "
                "ConstantLossScale for a scale that never changes."
            )
        self.backoff_factor = positive_number(
            "backoff_factor", backoff_factor, "Try 0.5."
        )
        if self.backoff_factor >= 1:
            raise ValueError(
                "`backoff_factor` must lie in (0, 1), or the scale never falls. "
                f"Received: backoff_factor={backoff_factor}. Try 0.5."
            )
        self.growth_interval = whole_number(
            "growth_interval", growth_interval, "Try 2000."
        )
        self.hysteresis = whole_number("hysteresis", hysteresis, "Try 1.")

    def next_scale(self, state: LossScaleState, finite: Any) -> Any:
        """Returns the scale grown, backed off or unchanged, within its bounds."""
        grow = ops.logical_and(finite, state.finite_steps % self.growth_interval == 0)
        back_off = state.consecutive_skips >= self.hysteresis
        factor = ops.where(
            grow, self.growth_factor, ops.where(back_off, self.backoff_factor, 1.0)
        )
        scale = ops.minimum(state.scale * ops.cast(factor, "float32"), self.max_scale)
        # Not `maximum`: a NaN, which only a damaged checkpoint can bring, must
        # leave through this comparison too.
        return ops.where(scale > self.min_scale, scale, self.min_scale)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "initial_scale": self.initial_scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "hysteresis": self.hysteresis,
            "min_scale": self.min_scale,
            "max_scale": self.max_scale,
        }


def as_loss_scale(loss_scale: Any, custom_objects: Any = None) -> LossScale:
    """Returns the rule that `loss_scale` names.

    Args:
        loss_scale: `"dynamic"`, a positive number, a `LossScale` or its serialized
            form.
        custom_objects: dict, classes that a serialized form may name.

    Returns:
        A `LossScale`.

    Raises:
        TypeError: anything else.
        ValueError: another string, a number out of range, or a malformed config.
    """
    if isinstance(loss_scale, dict) and "class_name" in loss_scale:
        loss_scale = deserialize(
            "loss_scale", loss_scale, LossScale, custom_objects=custom_objects
        )
    if isinstance(loss_scale, LossScale):
        return loss_scale
    if isinstance(loss_scale, str) and loss_scale == "dynamic":
        return DynamicLossScale()
    if isinstance(loss_scale, str):
        raise ValueError(
            '`loss_scale` must be "dynamic", a positive number or a LossScale. '
            f"Received: loss_scale={short_repr(loss_scale)}. Spell it "
            'keras_mp.wrap(optimizer, loss_scale="dynamic").'
        )
    fix = 'Try loss_scale="dynamic", or a constant such as 128.'
    return ConstantLossScale(positive_number("loss_scale", loss_scale, fix))
