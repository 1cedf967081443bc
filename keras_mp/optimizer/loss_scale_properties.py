"""What an optimizer shows of its loss scale, and of the rule that moves it."""

from typing import Any

import keras

from keras_mp.arguments import shown
from keras_mp.loss_scale import LossScale, as_loss_scale
from keras_mp.optimizer.loss_scaler import LossScaler


class RuledOptimizer(keras.optimizers.LossScaleOptimizer):
    """A `LossScaleOptimizer` whose scale is moved by a `LossScale`, not by itself."""

    _scaler: LossScaler

    @property
    def loss_scale(self) -> Any:
        """The current scale: a scalar float32 variable.

        Assign a number, `"dynamic"` or a `LossScale` to start anew with that rule.
        A train function that was traced before keeps the rule that it was traced
        with; `LossScaleCallback(loss_scale=...)` has it traced again.
        """
        return self._scaler.state.scale

    @loss_scale.setter
    def loss_scale(self, value: Any) -> None:
        self._scaler.restart(as_loss_scale(value))

    @property
    def loss_scale_rule(self) -> LossScale:
        """The `LossScale` that chooses the scale."""
        return self._scaler.rule

    @property
    def skipped_steps(self) -> Any:
        """How many steps were skipped for an overflow: a scalar int variable."""
        return self._scaler.state.skipped_steps

    @property
    def consecutive_skips(self) -> Any:
        """How many of them came last, in a row: a scalar int variable."""
        return self._scaler.state.consecutive_skips

    @property
    def skips_at_minimum(self) -> Any:
        """How many of those began at the smallest scale: a scalar int variable."""
        return self._scaler.state.skips_at_minimum

    @property
    def dynamic_scale(self) -> Any:
        """The current scale, under the name that the base class gave it."""
        return self._scaler.state.scale

    @property
    def step_counter(self) -> Any:
        """Finite steps since the last overflow, under the base class's name."""
        return self._scaler.state.finite_steps

    @property
    def initial_scale(self) -> float:
        """The scale that the rule starts at, under the base class's name."""
        return self._scaler.rule.initial_scale

    @initial_scale.setter
    def initial_scale(self, value: Any) -> None:
        self._leave_it_to_the_rule("initial_scale", value)

    @property
    def dynamic_growth_steps(self) -> int | None:
        """The growth interval of the rule, or None, under the base class's name."""
        return getattr(self._scaler.rule, "growth_interval", None)

    @dynamic_growth_steps.setter
    def dynamic_growth_steps(self, value: Any) -> None:
        self._leave_it_to_the_rule("dynamic_growth_steps", value)

    def _leave_it_to_the_rule(self, name: str, value: Any) -> None:
        # The base class sets both, before there is a rule.
        if hasattr(self, "_scaler"):
            raise AttributeError(
                f"`{name}` is read from the rule of the loss scale. Received: "
                f"{name}={shown(value)}. Assign another rule: optimizer.loss_scale = "
                "keras_mp.DynamicLossScale(initial_scale=..., growth_interval=...)."
            )
