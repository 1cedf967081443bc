"""The state of a loss scale, as variables, and the rule that updates it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import ops, tree

from keras_mp import keras_internals
from keras_mp.loss_scale import (
    ConstantLossScale,
    LossScale,
    LossScaleState,
    as_loss_scale,
)
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.gradients import ScalingState
from keras_mp.typing import Tensor


class ScalarVariable(keras.Variable):
    """A scalar that `float` and `int` also read on several replicas.

    Keras asks the variable of the backend, and on replicas that has neither.
    """

    def __float__(self) -> float:
        return float(ops.convert_to_numpy(self))

    def __int__(self) -> int:
        return int(ops.convert_to_numpy(self))


def add_scalar(optimizer: keras.Optimizer, name: str, value: float) -> ScalarVariable:
    """Returns a new scalar variable of an optimizer, the same on all replicas.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        name: str.
        value: the first value; a float makes it float32, an int makes it int.
    """
    with keras.name_scope(optimizer.name, caller=optimizer):
        variable = ScalarVariable(
            initializer=keras.initializers.Constant(value),
            shape=(),
            dtype="float32" if isinstance(value, float) else "int",
            trainable=False,
            aggregation="only_first_replica",
            name=name,
        )
    keras_internals.add_to_variables(optimizer, variable)
    return variable


@keras.saving.register_keras_serializable(package="keras_mp")
class LossScaler:
    """Holds a `LossScaleState` in variables and asks a rule for the next one.

    The steps of optimizers that share a scaler are counted in rounds: a round ends when
    an optimizer that has applied in it applies again. The scale changes once a round,
    from its value before the round, which counts as finite if all of its steps were;
    its largest gradient is the largest of all of them. With one optimizer each step is
    a round, and none are counted.

    Args:
        rule: `LossScale`.

    Attributes:
        rule: `LossScale`.
        state: `LossScaleState` of scalar variables, created with the first user.
        variables: list of all its variables.
        scaling_states: list of the `ScalingState` of its users.
        has_scaled: bool, whether any of them has scaled a loss.
    """

    def __init__(self, rule: LossScale) -> None:
        self.rule = rule
        self.state: LossScaleState
        self.variables: list[Any] = []
        self.scaling_states: list[ScalingState] = []
        self.has_scaled = False

    @property
    def is_shared(self) -> bool:
        """Whether more than one optimizer uses it."""
        return len(self.scaling_states) > 1

    def add_user(
        self,
        scaling_state: ScalingState,
        add_scalar: Callable[[str, float], Any],
        track_variable: Callable[[Any], None],
    ) -> Any:
        """Adds an optimizer: the first creates the variables, all of them save them.

        Args:
            scaling_state: `ScalingState` of the optimizer.
            add_scalar: makes a variable of the optimizer, given its name and value.
            track_variable: appends a variable of another optimizer to its own.

        Returns:
            The variable that it passes to `advance`: the number of its last round.
        """
        self.scaling_states.append(scaling_state)
        if not self.variables:
            self._create_variables(add_scalar)
            return add_scalar("last_round", 0)
        for variable in self.variables:
            track_variable(variable)
        # The number of the current round, so that its first step begins another one.
        return add_scalar("last_round", int(self._round))

    def record_scaled_loss(self, scale: Tensor, scaling_state: ScalingState) -> None:
        """Tells all users the scale of a loss, which may be for several of them.

        Args:
            scale: scalar tensor.
            scaling_state: `ScalingState` of the optimizer that scaled the loss.
        """
        self.has_scaled = True
        for each in self.scaling_states:
            each.record_shared(scale)
        scaling_state.record(scale)

    def check_a_loss_was_scaled(self) -> None:
        """Refuses gradients before any user has scaled a loss.

        Gradients do not tell whether their loss was scaled. To divide gradients of an
        unscaled loss would stop training, and not to divide gradients of a loss that
        was scaled, by hand or by a function of another program, would destroy the
        model: so neither is done.

        One user may scale for another, one `tf.function` or thread for another, and one
        loss for many `apply`; the first call of `scale_loss`, traced or executed, is
        therefore enough for all that follow.

        Raises:
            RuntimeError: no user has, and the rule is not a constant 1.
        """
        if self.has_scaled or self.rule == ConstantLossScale(1):
            return
        raise RuntimeError(
            "Gradients that `apply` divides by the loss scale must have been scaled. "
            "Received: gradients before any call of `scale_loss`, and a loss scale of "
            f"{self.rule!r}. Inside the tape add the line `scaled = "
            "optimizer.scale_loss(loss)`, and take the gradients of `scaled`; or train "
            "without loss scaling: keras_mp.wrap(optimizer, loss_scale=1)."
        )

    def _create_variables(self, add_scalar: Callable[[str, float], Any]) -> None:
        first = self.rule.initial_state()
        names: dict[str, Any] = {name: name for name in first._asdict()}
        names["statistics"] = {name: name for name in first.statistics}
        self.state, self._before = (
            tree.map_structure(
                lambda name, value, prefix=prefix: add_scalar(prefix + name, value),
                LossScaleState(**names),
                first,
            )
            for prefix in ("", "before_")
        )
        self._round = add_scalar("round", 0)
        self.variables = [*tree.flatten([self.state, self._before]), self._round]
        if self.needs_largest:
            self._largest = add_scalar("largest_of_round", 0.0)
            self.variables.append(self._largest)

    @property
    def needs_largest(self) -> bool:
        """Whether the rule has to know the largest gradient of a step."""
        return bool(self.rule.initial_statistics())

    def restart(self, rule: LossScale) -> None:
        """Replaces the rule, and starts with its initial state.

        Raises:
            ValueError: the rule has other statistics, for which there are no variables.
        """
        old, new = (sorted(each.initial_statistics()) for each in (self.rule, rule))
        if old != new:
            raise ValueError(
                "A rule that has statistics of the gradients must be given to the "
                "optimizer when it is made, which saves them with its variables, and "
                f"can only be replaced by a rule with the same. Received: {rule!r} "
                f"for an optimizer with {self.rule!r}. Write "
                "keras_mp.wrap(optimizer, loss_scale=rule)."
            )
        self.rule = rule
        for state in (self.state, self._before):
            _assign(state, rule.initial_state())

    def advance(self, finite: Tensor, largest: Tensor, last_round: Any) -> None:
        """Updates the state after a step.

        Args:
            finite: scalar bool tensor. Whether every gradient was finite.
            largest: scalar float32 tensor, the largest absolute unscaled gradient of
                this replica; or None if the rule does not need it.
            last_round: the variable that `add_user` returned to the optimizer.
        """
        if largest is not None:
            largest = backend.max_over_replicas(largest)
        state = tree.map_structure(ops.copy, self.state)
        if not self.is_shared:
            _assign(self.state, self._update(state, finite, largest))
            return
        begins = ops.equal(ops.copy(self._round), ops.copy(last_round))
        before = _where(begins, state, tree.map_structure(ops.copy, self._before))
        if largest is not None:
            of_round = ops.where(begins, 0.0, ops.copy(self._largest))
            largest = ops.maximum(largest, of_round)
            self._largest.assign(largest)
        # An overflow undoes the update by the finite steps of its round, and stays.
        moves = ops.logical_or(begins, ops.equal(state.consecutive_skips, 0))
        new = self._update(before, finite, largest)
        _assign(self.state, _where(moves, new, state))
        _assign(self._before, before)
        self._round.assign_add(ops.cast(begins, self._round.dtype))
        last_round.assign(ops.copy(self._round))

    def _update(self, state: LossScaleState, finite: Tensor, largest: Tensor) -> Any:
        # Rules of users may implement `update(state, finite)`.
        told = () if largest is None else (largest,)
        return self.rule.update(state, finite, *told)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, serialized."""
        return {"rule": keras.saving.serialize_keras_object(self.rule)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "LossScaler":
        """Returns a scaler with the rule that `get_config` described, without users."""
        return cls(as_loss_scale(config["rule"], custom_objects))


def _where(condition: Any, x: LossScaleState, y: LossScaleState) -> Any:
    return tree.map_structure(partial(ops.where, condition), x, y)


def _assign(variables: LossScaleState, values: LossScaleState) -> None:
    pairs = zip(tree.flatten(variables), tree.flatten(values), strict=True)
    for variable, value in pairs:
        variable.assign(value)
