"""What users, callbacks and Keras read and change of an optimizer, and its masters."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp import keras_internals
from keras_mp.arguments import short_repr
from keras_mp.loss_scale import LossScale, as_loss_scale
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.gradients import GradientNorm, find_nonfinite, nonfinite_of
from keras_mp.optimizer.inner_optimizer import (
    Replicas,
    exclude_masters_from_weight_decay,
    leaves,
)
from keras_mp.optimizer.loss_scaler import LossScaler
from keras_mp.optimizer.master_weights import (
    MasterWeights,
    OutsideWrites,
    keeps_average,
    overwrite_with_average,
)
from keras_mp.optimizer.masters import Master, needs_master, path_of
from keras_mp.typing import Gradient, Tensor, Variable


class OptimizerProperties(keras.optimizers.LossScaleOptimizer):
    """The part of `FP32MasterOptimizer` that gives access to its scale and masters.

    The base class has a scale and a fixed rule of its own; here a `LossScaler` has
    both, under the names of Keras and of tf.keras as well.
    """

    _scaler: LossScaler
    _norm: GradientNorm
    _last_overflow: Any
    _master_weights: MasterWeights
    _outside_writes: OutsideWrites
    _replicas: Replicas
    # What `NumericsCallback` has `apply` show its gradients to.
    gradient_sampler: Any = None

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

    def get_scaled_loss(self, loss: Tensor) -> Any:
        """`scale_loss`, under the name it had in tf.keras."""
        return self.scale_loss(loss)

    def get_unscaled_gradients(self, gradients: Sequence[Gradient]) -> list[Any]:
        """`unscale_gradients`, under the name it had in tf.keras."""
        return self.unscale_gradients(gradients)

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Gradient],
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

    @property
    def iterations(self) -> Any:
        """The variable that counts the steps of the inner optimizer.

        That of the parent counts none before Keras 3.9.
        """
        return self.inner_optimizer.iterations

    @property
    def optimizers(self) -> list[keras.Optimizer]:
        """The optimizers in a wrapped `MultiOptimizer`, each with a learning rate.

        Another optimizer has no such attribute, as Keras's callbacks expect.
        """
        return self.inner_optimizer.optimizers

    @property
    def master_weights(self) -> list[keras.Variable]:
        """The FP32 variables that are updated, in the order of the weights.

        Each has the name and path of its weight; a weight stored in FP32 is listed
        itself. Empty before `build`. With `shard_state=True` on several replicas each
        is a variable with one copy, also for a weight stored in FP32, and is read
        outside `strategy.run`.

        Raises:
            RuntimeError: masters are on one replica each, and all of them ask.
        """
        self._check_can_read()
        return [master.variable for master in self._master_weights.all]

    def _masters_of(self, weights: Sequence[Variable]) -> list[Master]:
        masters = self._master_weights.all
        return [masters[keras_internals.variable_index(self, w)] for w in weights]

    def current_masters(self) -> dict[int, Any]:
        """Returns the FP32 value of every weight that has a master of its own.

        A weight that was written to after the last step counts with the value that was
        written; its master takes it over in the next step.

        Returns:
            Dict from the `id` of a weight to a float32 tensor.
        """
        self._check_can_read()
        return self._master_weights.values()

    @contextlib.contextmanager
    def fp32_weights(
        self, variables: keras.Layer | Sequence[keras.Variable] | None = None
    ) -> Iterator[list[Any]]:
        """Returns a context in which weights are read and written in FP32.

        For code that changes weights by less than 16 bits hold, or averages them:
        sharpness-aware minimization, averages and target networks of your own. On
        entry the masters take over what was written to their weights. On exit, after
        an exception too, each weight stored in 16 bits becomes its FP32 value, rounded.
        Compute with the model before or after, not inside.

        With `masters=None` there are no FP32 values: what is read is the weight, and
        what is written is rounded to it at once.

        Args:
            variables: model or other layer, for its `weights`; or list of variables.
                Defaults to those that the optimizer was built with.

        Yields:
            List with the FP32 variable of each, in their order: the master of a weight
            stored in 16 bits, and other variables themselves.

        Raises:
            RuntimeError: the optimizer is not built, or as for `master_weights`.
            ValueError: a variable is stored in 16 bits, and is none of the optimizer's.

        Example:

        >>> weight = keras.Variable([1.0], dtype="float16")
        >>> optimizer = keras_mp.wrap("sgd")
        >>> optimizer.build([weight])
        >>> for _ in range(1000):
        ...     with optimizer.fp32_weights([weight]) as [fp32]:
        ...         _ = fp32.assign_sub([1e-4])
        >>> print(f"{weight.numpy()[0]:.4f}")
        0.8999
        """
        self._check_can_read()
        fp32 = self._fp32_of(variables)
        self._master_weights.sync_masters_from_weights()
        try:
            yield fp32
        finally:
            self._master_weights.sync_weights_from_masters()
            self._outside_writes.take_note()

    def _check_can_read(self) -> None:
        if self._replicas.owners is not None:
            backend.check_can_read_state()

    def _fp32_of(
        self, variables: keras.Layer | Sequence[keras.Variable] | None
    ) -> list[Any]:
        if not self.built:
            raise RuntimeError(
                "`fp32_weights` reads the masters, which an optimizer has once it is "
                "built. Received: an optimizer that is not built. Call "
                "optimizer.build(model.trainable_variables)."
            )
        known = keras_internals.trainable_variables(self)
        if variables is None:
            variables = known
        elif isinstance(variables, keras.Layer):
            variables = variables.weights
        both = zip(known, self._master_weights.all, strict=True)
        masters = {id(weight): master.variable for weight, master in both}
        for variable in variables:
            if id(variable) not in masters and needs_master(variable):
                raise ValueError(
                    "A variable stored in 16 bits has an FP32 value only in the "
                    "optimizer that trains it. Received: "
                    f"{path_of(variable)!r}, {variable.dtype}, which this optimizer "
                    "was not built with. Store it in FP32, for a second network by "
                    "the policy 'mixed_float16' or 'mixed_bfloat16', and for the "
                    "statistics of a normalization by keras_mp.convert(model); or "
                    "pass model.trainable_variables."
                )
        return [masters.get(id(variable), variable) for variable in variables]

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Overwrites weights with their moving average, if the optimizer keeps one.

        Args:
            var_list: list of the weights.
        """
        if not keeps_average(self.inner_optimizer):
            return
        with self.fp32_weights():
            overwrite_with_average(
                self.inner_optimizer, self._master_weights, self._masters_of(var_list)
            )

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[keras.Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Excludes variables from the inner optimizer's weight decay.

        Args:
            var_list: list of weights.
            var_names: list of str, patterns searched for in the names.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)
        exclude_masters_from_weight_decay(
            self.inner_optimizer, self._master_weights.separate
        )

    def check_finite(self, grads: Sequence[Gradient]) -> Tensor:
        """Tells whether all gradients of all replicas are finite.

        Args:
            grads: list of tensors, `tf.IndexedSlices` or None, for the variables
                that the optimizer was built with.

        Returns:
            Scalar bool tensor.
        """
        given = zip(grads, self._master_weights.all, strict=True)
        positions = [i for i, (gradient, _) in enumerate(given) if gradient is not None]
        return find_nonfinite(nonfinite_of(grads), positions)[0]

    def bytes_per_parameter(self) -> dict[str, float]:
        """Returns how many bytes training holds for each parameter, by kind.

        Read from the variables. Gradients are counted in the dtype of their weights.
        A variable counts once and whole, on however many devices it is; with
        `shard_state=True` each of N holds about 1/N of masters and state.

        Returns:
            Dict with the floats `"weights"`, `"masters"` (FP32 masters, remainders and
            the copies of FP32 weights that their owners have),
            `"state"` (the optimizer's other variables), `"gradients"` and `"total"`.

        Raises:
            RuntimeError: the optimizer is not built.

        Example:

        >>> weight = keras.Variable(keras.ops.zeros((64, 64)), dtype="float16")
        >>> optimizer = keras_mp.wrap("adam", masters="remainders", state="int8")
        >>> optimizer.build([weight])
        >>> optimizer.bytes_per_parameter()
        {'weights': 2.0, 'masters': 2.0, 'state': 2.0625, 'gradients': 2.0, \
'total': 8.0625}
        """
        if not self.built:
            raise RuntimeError(
                "An optimizer holds nothing for its variables before it is built. "
                "Received: an optimizer that is not built. Call "
                "optimizer.build(model.trainable_variables)."
            )
        weights = keras_internals.trainable_variables(self)
        parameters = sum(math.prod(weight.shape) for weight in weights)
        masters, state = masters_and_state(self)
        held = {
            "weights": total_bytes(weights),
            "masters": total_bytes(masters),
            "state": total_bytes(state),
            "gradients": total_bytes(weights),
        }
        held["total"] = sum(held.values())
        return {name: size / max(parameters, 1) for name, size in held.items()}


def masters_and_state(optimizer: keras.Optimizer) -> tuple[list[Any], list[Any]]:
    """Returns the variables of an optimizer, without numbers such as its step.

    Args:
        optimizer: `keras.optimizers.Optimizer`, wrapped or not, built.

    Returns:
        Tuple of two lists: FP32 masters, also those that are copies of FP32 weights,
        and remainders; all others.
    """
    if not isinstance(optimizer, OptimizerProperties):
        return [], [v for v in optimizer.variables if len(v.shape) > 0]
    masters = [
        variable
        for master in optimizer._master_weights.separate
        for variable in (
            master.own_variables if master.is_compressed else master.variables
        )
    ]
    parts = optimizer._master_weights.slot_variables
    variables = (*optimizer.inner_optimizer.variables, *parts)
    return masters, [v for v in variables if len(v.shape) > 0]


def total_bytes(variables: Iterable[Variable]) -> int:
    """Returns the bytes of variables."""
    return sum(math.prod(v.shape) * _size(v) for v in variables)


def _size(variable: Variable) -> int:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def can_exchange_weights(optimizer: keras.Optimizer) -> bool:
    """Tells whether an optimizer is a wrapped one, on one replica."""
    if not isinstance(optimizer, OptimizerProperties):
        return False
    return backend.replicas_in(backend.strategy_of(optimizer)) == 1


def exchange_weights(
    optimizer: OptimizerProperties, new: Mapping[int, keras.Variable]
) -> None:
    """Has FP32 variables take the place of weights that are stored in 16 bits.

    Each takes the value and the slots of its weight's master, and is its own master. A
    function that was traced before updates the weights of before.

    Args:
        optimizer: built, on one replica.
        new: dict from the `id` of a weight to the float32 variable.
    """
    values = optimizer.current_masters()
    weights = list(keras_internals.trainable_variables(optimizer))
    masters = optimizer._master_weights
    of_masters = {}
    for weight, master in zip(weights, masters.all, strict=True):
        if id(weight) not in new or id(weight) not in values:
            continue
        variable = of_masters[id(master)] = new[id(weight)]
        variable.assign(values[id(weight)])
        keras_internals.exchange_variable(optimizer, weight, variable)
        for leaf in leaves(optimizer.inner_optimizer):
            keras_internals.exchange_variable(leaf, master.reference, variable)
    optimizer._master_weights = masters.exchanged(of_masters)
    kept = {id(variable) for variable in optimizer._master_weights.own_variables}
    for variable in masters.own_variables:
        if id(variable) not in kept:
            keras_internals.remove_from_variables(optimizer, variable)
