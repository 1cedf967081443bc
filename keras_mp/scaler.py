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
    """

    def __init__(self, rule: LossScale, add_variable: Callable[..., Any]) -> None:
        self.rule = rule
        self.state = LossScaleState(
            *(
                add_scalar(add_variable, name, value)
                for name, value in rule.initial_state()._asdict().items()
            )
        )

    def restart(self, rule: LossScale) -> None:
        """Starts anew with another rule."""
        self.rule = rule
        for variable, value in zip(self.state, rule.initial_state(), strict=True):
            variable.assign(value)

    def advance(self, finite: Any) -> None:
        """Moves to the state after a step.

        Args:
            finite: scalar bool tensor. Whether every gradient was finite.
        """
        state = LossScaleState(*(ops.copy(v) for v in self.state))
        new_state = self.rule.update(state, finite)
        for variable, value in zip(self.state, new_state, strict=True):
            variable.assign(value)


def add_scalar(add_variable: Callable[..., Any], name: str, value: float) -> Any:
    """Returns a new scalar variable, the same on all replicas.

    Args:
        add_variable: the `add_variable` of an optimizer.
        name: str.
        value: the first value; a float makes it float32, an int makes it int.
    """
    return add_variable(
        shape=(),
        initializer=keras.initializers.Constant(value),
        dtype="float32" if isinstance(value, float) else "int",
        aggregation="only_first_replica",
        name=name,
    )
