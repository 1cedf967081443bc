"""The state of a loss scale, as variables, and the rule that moves it."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_mp.loss_scale import LossScale, LossScaleState


class LossScaler:
    """Holds a `LossScaleState` in variables and asks a rule for the next one.

    Args:
        rule: `LossScale`.
        add_variable: the `add_variable` of the optimizer that saves the state.

    Attributes:
        rule: `LossScale`.
        state: `LossScaleState` of scalar variables.
        last_overflow: scalar int variable, the position of the first variable whose
            gradient was not finite in the last overflowing step; -1 before that.
    """

    def __init__(self, rule: LossScale, add_variable: Callable[..., Any]) -> None:
        def scalar(name: str, value: float) -> Any:
            return add_variable(
                shape=(),
                initializer=keras.initializers.Constant(value),
                dtype="float32" if name == "scale" else "int",
                aggregation="only_first_replica",
                name=name,
            )

        self.rule = rule
        initial = rule.initial_state()._asdict().items()
        self.state = LossScaleState(*(scalar(name, x) for name, x in initial))
        self.last_overflow = scalar("last_overflow", -1)

    @property
    def variables(self) -> list[Any]:
        """All variables of the state."""
        return [*self.state, self.last_overflow]

    def restart(self, rule: LossScale) -> None:
        """Starts anew with another rule."""
        self.rule = rule
        for variable, value in zip(self.state, rule.initial_state(), strict=True):
            variable.assign(value)

    def advance(self, finite: Any, first_overflow: Any) -> None:
        """Moves to the state after a step.

        Args:
            finite: scalar bool tensor. Whether every gradient was finite.
            first_overflow: scalar int tensor. The position of the first that was not.
        """
        state = LossScaleState(*(ops.convert_to_tensor(v) for v in self.state))
        new_state = self.rule.update(state, finite)
        for variable, value in zip(self.state, new_state, strict=True):
            variable.assign(value)
        self.last_overflow.assign(ops.where(finite, self.last_overflow, first_overflow))
