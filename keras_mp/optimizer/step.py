"""A step: which variables a kernel updates, and which the wrapped optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.backend_tf import Runner
from keras_mp.optimizer.gradients import (
    CheckOptions,
    GradientCheck,
    check_of_kernel,
    unscale,
)
from keras_mp.optimizer.inner_optimizer import touched_rows
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.masters import StoredMaster, are_distinct, reference_of
from keras_mp.optimizer.reference import Gradient
from keras_mp.optimizer.rules import Rule, count_step
from keras_mp.random_bits import halves_of


def variables_of(masters: Sequence[Any]) -> list[Any]:
    """Returns the variables that masters are stored in."""
    stored = [m.variables if isinstance(m, StoredMaster) else [m] for m in masters]
    return [variable for each in stored for variable in each]


@dataclass
class UnscaledUpdate:
    """Unscales and checks gradients, and then updates in `_update`.

    Attributes:
        optimizer: the inner `keras.optimizers.Optimizer`.
        master_weights: `MasterWeights`.
        gradients: list of tensors, `tf.IndexedSlices` or None, of the scaled loss.
        masters: list of their variables or `StoredMaster`s.
        scale: scalar float32 tensor that the gradients are divided by, or None.
        replicas: int, how many take this step.
        run: the `Runner` that calls the update on them.
    """

    optimizer: Any
    master_weights: MasterWeights
    gradients: Sequence[Any]
    masters: Sequence[Any]
    scale: Any
    replicas: int
    run: Runner

    @property
    def given(self) -> list[Any]:
        """The masters that have a gradient."""
        pairs = zip(self.gradients, self.masters, strict=True)
        return [master for gradient, master in pairs if gradient is not None]

    @property
    def variables(self) -> list[Any]:
        """All variables that the update may change."""
        return [*self.optimizer.variables, *self.master_weights.variables]

    def check(self, options: CheckOptions) -> GradientCheck:
        """Unscales the gradients, and returns the `GradientCheck` of those `given`.

        Args:
            options: `CheckOptions`.
        """
        self._unscaled, check = unscale(
            self.optimizer,
            self.gradients,
            [variables_of([master])[0] for master in self.masters],
            self.scale,
            options,
            self.replicas,
        )
        return check

    def apply(self, finite: Any) -> None:
        """Updates slots, masters and weights if `finite` is true.

        Args:
            finite: scalar bool tensor, the same on every replica.
        """
        backend.cond_on_all_replicas(
            finite, self.run, self._update, self._unscaled, self.variables
        )

    def _update(self, gradients: Sequence[Any]) -> None:
        raise NotImplementedError


class KerasUpdate(UnscaledUpdate):
    """Applies any optimizer to unscaled FP32 gradients and the masters."""

    def _update(self, gradients: Sequence[Any]) -> None:
        rows = self._touched_rows(gradients)
        self.master_weights.sync_masters_from_weights(rows)
        self.optimizer.apply(list(gradients), list(self.masters))
        self.master_weights.sync_weights_from_masters(rows)

    def _touched_rows(self, gradients: Sequence[Any]) -> dict[int, Any]:
        """Returns, by the `id` of a master, the only rows of it that can change."""
        if (
            self.replicas > 1
            or self.master_weights.rounding == "stochastic"
            or not are_distinct(self.masters)
        ):
            return {}
        rows = {
            id(master): touched_rows(self.optimizer, gradient, master)
            for gradient, master in zip(gradients, self.masters, strict=True)
        }
        return {key: touched for key, touched in rows.items() if touched is not None}


def kernel_part(
    optimizer: Any,
    rule: Rule | None,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
) -> list[int]:
    """Returns the indices of the variables that the kernel is to update.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        rule: its `Rule`, or None.
        master_weights: `MasterWeights`.
        gradients: list of tensors, `tf.IndexedSlices` or None.
        masters: list of their variables.
    """
    # A variable that is listed twice must be updated twice; the kernel does so once.
    if rule is None or not are_distinct(masters):
        return []
    written = _variables_written(rule.slots, master_weights, masters)
    if not (backend.can_update(written) and _has_rule(rule, written)):
        return []
    # Keras itself updates FP32 masters by sparse gradients: some rules touch few rows.
    takes_rows = master_weights.are_compressed and _takes_powers(rule, written)
    pairs = list(enumerate(zip(gradients, masters, strict=True)))
    fitting = [
        i
        for i, (gradient, master) in pairs
        if gradient is not None
        and (takes_rows or not backend.is_sparse(gradient))
        and _fits(optimizer, gradient, master)
        and rule.takes(master)
        and _has_slots(slots_of(optimizer, rule, master_weights, master))
    ]
    given = sum(gradient is not None for gradient in gradients)
    # The norm of all gradients cannot be computed from a part of them.
    return [] if len(fitting) < given and optimizer.global_clipnorm else fitting


def chosen(indices: Sequence[int], *lists: Sequence[Any]) -> list[list[Any]]:
    """Returns the elements of each list that have the indices."""
    return [[each[i] for i in indices] for each in lists]


def _variables_written(
    slot_lists: Sequence[Sequence[Any]],
    master_weights: MasterWeights,
    masters: Sequence[Any],
) -> list[Any]:
    slots = [slot for slots in slot_lists for slot in slots if slot is not None]
    codes = [slot.codes for slot in master_weights.int8_slots]
    weights = [weight for weight, _ in master_weights.pairs]
    return [*variables_of(masters), *weights, *slots, *codes]


def hyperparameters_of(
    optimizer: Any, rule: Rule, scale: Any, clipping: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the hyperparameters of a step that differ from their defaults.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has the rule.
        rule: `Rule`.
        scale: scalar float32 tensor that the gradients are divided by.
        clipping: from `clipping_of`, or none.
    """
    return {
        "scale": scale,
        **clipping,
        "weight_decay": getattr(optimizer, rule.weight_decay) or 0.0,
        "learning_rate": ops.cast(optimizer.learning_rate, "float32"),
        **rule.hyperparameters(optimizer),
    }


def clipping_of(optimizer: Any, norm: Any) -> dict[str, Any]:
    """Returns the hyperparameters that clip gradients by the optimizer's options.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has a rule.
        norm: scalar float32 tensor, of all unscaled gradients; not read without
            `global_clipnorm`.
    """
    clip_norm = optimizer.global_clipnorm
    if clip_norm:
        # As in Keras, but for the order in which the squares are summed.
        return {"clip_factor": clip_norm * ops.minimum(1 / norm, 1 / clip_norm)}
    clip_value = max(optimizer.clipvalue or 0.0, 0.0)
    return {"clip_value": clip_value} if clip_value else {}


def applies_weight_decay(optimizer: Any, rule: Rule, master: Any) -> bool:
    """Tells whether the weight decay of an optimizer and its rule is for a master."""
    return bool(
        getattr(optimizer, rule.weight_decay)
    ) and keras_internals.uses_weight_decay(optimizer, reference_of(master))


def slots_of(
    optimizer: Any, rule: Rule, master_weights: MasterWeights, master: Any
) -> list[Any]:
    """Returns the slots of a master: FP32 variables, or `Int8Slot`s."""
    if id(master) in master_weights.slots:
        return master_weights.slots[id(master)]
    index = keras_internals.variable_index(optimizer, reference_of(master))
    return [of_all[index] for of_all in rule.slots]


def _has_rule(rule: Rule, variables: Sequence[Any]) -> bool:
    from keras_mp.ops.kernels import update

    return update.has_rule(rule.name, variables)


def _takes_powers(rule: Rule, variables: Sequence[Any]) -> bool:
    from keras_mp.ops.kernels import update

    return update.takes_powers(rule.name, variables)


def _fits(optimizer: Any, gradient: Any, master: Any) -> bool:
    from keras_mp.ops.kernels import update

    return (
        update.supports(gradient)
        and keras.backend.standardize_dtype(master.dtype) == "float32"
        and getattr(master, "constraint", None) is None
        and not keras_internals.is_replaced_by_gradient(optimizer, master)
    )


def _has_slots(slots: Sequence[Any]) -> bool:
    """Tells whether the rule is for a variable with these slots."""
    return all(slot is not None for slot in slots)


@dataclass
class KernelUpdate:
    """Applies an optimizer that has a `Rule`, in one pass over all variables.

    Attributes:
        optimizer: `keras.optimizers.Optimizer`.
        rule: its `Rule`.
        master_weights: `MasterWeights`.
        gradients: list of tensors or `tf.IndexedSlices`, of the scaled loss.
        masters: list of their float32 variables.
        scale: scalar float32 tensor that the gradients are divided by.
        counts_the_step: bool, whether `apply` increments the optimizer's iterations.
    """

    optimizer: Any
    rule: Rule
    master_weights: MasterWeights
    gradients: Sequence[Any]
    masters: Sequence[Any]
    scale: Any
    counts_the_step: bool

    @property
    def given(self) -> list[Any]:
        """The masters that have a gradient, which here are all of them."""
        return list(self.masters)

    def check(self, options: CheckOptions) -> GradientCheck:
        """Returns the `GradientCheck` of the gradients, in one pass over them.

        Args:
            options: `CheckOptions`.
        """
        from keras_mp.ops.kernels import update

        clips = bool(self.optimizer.global_clipnorm)
        with update.device_of(variables_of(self.masters)):
            largest, sum_of_squares = update.check_gradients(
                self.gradients, self.scale, clips or options.sum_of_squares
            )
        self._clipping = clipping_of(self.optimizer, ops.sqrt(sum_of_squares))
        return check_of_kernel(largest, sum_of_squares, options)

    def apply(self, finite: Any) -> None:
        """Updates slots, masters and weights if `finite` is true.

        Args:
            finite: scalar bool tensor.
        """
        if self.master_weights.draws_uniforms:
            # A skipped step must not advance the generator of random numbers.
            ops.cond(finite, lambda: self.update(True, self._clipping), lambda: None)
        else:
            self.update(finite, self._clipping)
        if self.counts_the_step:
            count_step(self.optimizer, finite)

    def update(self, finite: Any, clipping: Mapping[str, Any]) -> None:
        """Updates slots, masters and weights, and counts nothing.

        Args:
            finite: bool or scalar bool tensor, whether anything is to change.
            clipping: as for `hyperparameters_of`.
        """
        from keras_mp.ops.kernels import update

        parts = [
            self.master_weights.kernel_arguments(master) for master in self.masters
        ]
        weights = [weight for _, weight in parts]
        own = [weight for weight in weights if weight is not None]
        slots = [
            slots_of(self.optimizer, self.rule, self.master_weights, master)
            for master in self.masters
        ]
        update.update_variables(
            finite,
            [backend.as_dense(gradient) for gradient in self.gradients],
            [master for master, _ in parts],
            [slot for of_all in zip(*slots, strict=True) for slot in of_all],
            weights,
            self.master_weights.uniforms(own),
            [
                applies_weight_decay(self.optimizer, self.rule, master)
                for master in self.masters
            ],
            powers=[self._powers(gradient) for gradient in self.gradients],
            rule=self.rule.name,
            hyperparameters={
                **hyperparameters_of(self.optimizer, self.rule, self.scale, clipping),
                **self._noise(),
            },
        )

    def _powers(self, gradient: Any) -> Any:
        """Returns what a sparse gradient adds to second moments; None for others."""
        if not backend.is_sparse(gradient):
            return None
        of_tokens = Gradient(ops.divide(ops.cast(gradient, "float32"), self.scale))
        is_adamax = self.rule.name == "adamax"
        return of_tokens.magnitudes if is_adamax else of_tokens.squares

    def _noise(self) -> dict[str, Any]:
        if not self.master_weights.are_compressed:
            return {}
        low, high = halves_of(self.master_weights.noise(self.optimizer.iterations))
        return {"noise_low": low, "noise_high": high}
