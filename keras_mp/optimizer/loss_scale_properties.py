"""The loss scale of an optimizer, under all names that Keras and tf.keras gave it."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.arguments import short_repr
from keras_mp.loss_scale import LossScale, as_loss_scale
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.gradients import GradientNorm
from keras_mp.optimizer.loss_scaler import LossScaler
from keras_mp.optimizer.masters import path_of


class LossScaleProperties(keras.optimizers.LossScaleOptimizer):
    """The part of `FP32MasterOptimizer` that gives access to its `LossScaler`.

    The base class has a scale and a fixed rule of its own; here both are the scaler's.
    """

    _scaler: LossScaler
    _norm: GradientNorm
    _last_overflow: Any

    @property
    def loss_scale(self) -> keras.Variable:
        """The current scale: a scalar float32 variable.

        Assign a number, `"dynamic"` or a `LossScale` to start again with that rule.
        A train function that was traced before keeps the rule that it was traced
        with; `LossScaleCallback(loss_scale=...)` has it traced again.
        """
        return self._scaler.state.scale

    @loss_scale.setter
    def loss_scale(self, value: LossScale | float | str) -> None:
        self._scaler.restart(as_loss_scale(value))

    @property
    def loss_scale_rule(self) -> LossScale:
        """The `LossScale` that chooses the scale."""
        return self._scaler.rule

    @property
    def gradient_norm(self) -> keras.Variable | None:
        """The norm of all unscaled gradients of the last step, before any clipping.

        A scalar float32 variable, which is not saved; None before `keep_gradient_norm`.
        Inf or NaN after an overflow.
        """
        return self._norm.variable

    def keep_gradient_norm(self) -> bool:
        """Has the following steps keep the norm of their gradients.

        If replicas do not sum their gradients before the step, they do so once more
        for the norm. A train function that was traced before does not keep it.

        Returns:
            bool, whether it was not kept before.

        Raises:
            RuntimeError: Keras's backend is not TensorFlow.
        """
        is_new = self._norm.variable is None
        if is_new:
            self._norm.keep(backend.strategy_of(self))
        return is_new

    @property
    def skipped_steps(self) -> keras.Variable:
        """How many steps were skipped for an overflow: a scalar int variable."""
        return self._scaler.state.skipped_steps

    @property
    def consecutive_skips(self) -> keras.Variable:
        """How many of the last steps in a row were skipped: a scalar int variable."""
        return self._scaler.state.consecutive_skips

    @property
    def skips_at_minimum(self) -> keras.Variable:
        """How many of these began at the smallest scale: a scalar int variable."""
        return self._scaler.state.skips_at_minimum

    @property
    def last_overflow(self) -> str | None:
        """The path of the first variable that was not finite in the last overflow.

        None before the first overflow. Reading it waits for the device.
        """
        index = int(ops.convert_to_numpy(self._last_overflow))
        if index < 0:
            return None
        return path_of(keras_internals.trainable_variables(self)[index])

    @property
    def dynamic_scale(self) -> keras.Variable:
        """The current scale, under the name that the base class gave it."""
        return self._scaler.state.scale

    @property
    def step_counter(self) -> keras.Variable:
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
                f"{name}={short_repr(value)}. Assign another rule: "
                "optimizer.loss_scale = keras_mp.DynamicLossScale(initial_scale=..., "
                "growth_interval=...)."
            )

    def get_scaled_loss(self, loss: Any) -> Any:
        """`scale_loss`, under the name it had in tf.keras."""
        return self.scale_loss(loss)

    def get_unscaled_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """`unscale_gradients`, under the name it had in tf.keras."""
        return self.unscale_gradients(gradients)

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Returns what `apply` makes of variables that are given as tensors.

        For the JAX backend: its `fit` and functions under `jax.jit` call it. The
        TensorFlow backend has no stateless optimizers.

        Args:
            optimizer_variables: list of tensors, the values of `variables`.
            grads: list of tensors or None, as for `apply`.
            trainable_variables: list of tensors, the values of the variables that the
                optimizer was built with.

        Returns:
            Two lists of tensors, the new `trainable_variables` and
            `optimizer_variables`.
        """
        # Past the parent, whose `stateless_apply` moves the scale by its own rule.
        return super(keras.optimizers.LossScaleOptimizer, self).stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
