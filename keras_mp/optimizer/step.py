"""A step: which variables a kernel updates, and which the wrapped optimizer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.gradients import (
    CheckOptions,
    GradientCheck,
    check_of_kernel,
    unscale,
)
from keras_mp.optimizer.inner_optimizer import Replicas, touched_rows
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.masters import Master, are_distinct
from keras_mp.optimizer.reference import GradientSums
from keras_mp.optimizer.rules import Rule, count_step, partial_rule_of
from keras_mp.random_bits import halves_of
from keras_mp.typing import Gradient, Tensor


@dataclass(frozen=True)
class Step:
    """What a step updates, from which gradients, and who runs it.

    Attributes:
        optimizer: the inner `keras.optimizers.Optimizer`.
        weights: `MasterWeights`, of all variables.
        masters: list of the `Master` of each variable of this step.
        gradients: list of a tensor, `tf.IndexedSlices` or None for each of them, of the
            scaled loss.
        scale: scalar float32 tensor that they are divided by, or None.
        replicas: `Replicas`.
    """

    optimizer: keras.Optimizer
    weights: MasterWeights
    masters: Sequence[Master]
    gradients: Sequence[Any]
    scale: Any
    replicas: Replicas

    @property
    def given(self) -> list[Master]:
        """The masters that have a gradient."""
        pairs = zip(self.gradients, self.masters, strict=True)
        return [master for gradient, master in pairs if gradient is not None]

    def part(self, indices: Sequence[int]) -> "Step":
        """Returns the step of some of the variables.

        Args:
            indices: list of int, in the order of `masters`.
        """
        masters, gradients = (
            [each[i] for i in indices] for each in (self.masters, self.gradients)
        )
        return replace(self, masters=masters, gradients=gradients)

    def without_missing_gradients(self) -> "Step":
        """Returns the step of the masters `given`, and warns of the others."""
        variables = [master.variable for master in self.masters]
        gradients, _ = keras_internals.without_missing_gradients(
            self.optimizer, self.gradients, variables
        )
        return replace(self, masters=self.given, gradients=gradients)

    @property
    def variables(self) -> list[Any]:
        """The variables that the masters are stored in."""
        return [variable for master in self.masters for variable in master.variables]

    def slots(self, rule: Rule) -> list[list[Any]]:
        """Returns the slots of each master: FP32 variables, or `CodedSlot`s."""
        made = rule.slots_of(self.optimizer)

        def of_master(master: Master) -> list[Any]:
            if master.slots:
                return list(master.slots)
            index = keras_internals.variable_index(self.optimizer, master.reference)
            return [of_all[index] for of_all in made]

        return [of_master(master) for master in self.masters]

    def applies_weight_decay(self, rule: Rule, master: Master) -> bool:
        """Tells whether the weight decay of a rule is for a master."""
        return bool(
            getattr(self.optimizer, rule.weight_decay)
        ) and keras_internals.uses_weight_decay(self.optimizer, master.reference)


class Update(Protocol):
    """A part of a step, all of it computed in the same way. `check` comes first."""

    step: Step

    def check(self, options: CheckOptions) -> GradientCheck:
        """Returns the `GradientCheck` of the gradients of `step.given`.

        Args:
            options: `CheckOptions`.
        """

    def apply(self, finite: Tensor) -> None:
        """Updates slots, masters and weights if `finite` is true.

        Args:
            finite: scalar bool tensor, the same on every replica.
        """


def plan(step: Step) -> list[Update]:
    """Divides a step into the variables for a kernel and those for the optimizer.

    Args:
        step: `Step`, with masters and slots in FP32.

    Returns:
        List of one or two parts.
    """
    rule = partial_rule_of(step.optimizer)
    fitting = kernel_part(step, rule)
    if len(fitting) == len(step.given):
        # This warns of missing gradients, which the inner optimizer would do itself.
        step = step.without_missing_gradients()
        fitting = list(range(len(step.gradients)))

    def by_keras(others: Step) -> KerasUpdate:
        # Keras's `apply` may overwrite all masters with their averages, unless a kernel
        # updates some.
        changed = others.masters if fitting else step.weights.all
        return KerasUpdate(others, changed)

    return divide(step, rule, fitting, by_keras)


def divide(
    step: Step,
    rule: Rule | None,
    fitting: Sequence[int],
    update_of_others: Callable[[Step], Update],
) -> list[Update]:
    """Returns the update of some variables by the kernel, and of the others.

    Args:
        step: `Step`.
        rule: the `Rule` of its optimizer.
        fitting: list of int, the indices of the variables for the kernel.
        update_of_others: function that returns the update of the other variables.
    """
    others = sorted(set(range(len(step.masters))) - set(fitting))
    parts: list[Update] = []
    if rule is not None and fitting:
        scale = ops.ones(()) if step.scale is None else step.scale
        part = replace(step.part(fitting), scale=scale)
        parts.append(KernelUpdate(part, rule, counts_the_step=not others))
    if others:
        parts.append(update_of_others(step.part(others)))
    return parts


@dataclass
class UnscaledUpdate:
    """Unscales and checks gradients, and then updates in `_update`.

    Attributes:
        step: `Step`.
    """

    step: Step

    @property
    def variables(self) -> list[Any]:
        """All variables that the update may change."""
        return [*self.step.optimizer.variables, *self.step.weights.variables]

    def check(self, options: CheckOptions) -> GradientCheck:
        """Unscales the gradients, and checks them as in `Update`.

        Args:
            options: `CheckOptions`.
        """
        self._unscaled, check = unscale(
            self.step.optimizer,
            self.step.gradients,
            [master.variables[0] for master in self.step.masters],
            self.step.scale,
            options,
            self.step.replicas.count,
        )
        return check

    def apply(self, finite: Tensor) -> None:
        """As in `Update`."""
        replicas = self.step.replicas
        backend.cond_on_all_replicas(
            finite,
            replicas.runner(self.step.masters),
            self._update,
            replicas.sums(self._unscaled),
            self.variables,
        )

    def _update(self, gradients: Sequence[Gradient]) -> None:
        raise NotImplementedError


@dataclass
class KerasUpdate(UnscaledUpdate):
    """Applies any optimizer to unscaled FP32 gradients and the masters.

    Attributes:
        step: `Step`.
        changed: list of the masters that it may change.
    """

    changed: Sequence[Master]

    def _update(self, gradients: Sequence[Gradient]) -> None:
        step, rows = self.step, self._touched_rows(gradients)
        step.weights.sync_masters_from_weights(self.changed, rows)
        variables = [master.variable for master in step.masters]
        step.optimizer.apply(list(gradients), variables)
        step.weights.sync_weights_from_masters(self.changed, rows)

    def _touched_rows(self, gradients: Sequence[Gradient]) -> dict[int, Any]:
        """Returns, by the `id` of a master, the only rows of it that can change."""
        step = self.step
        if (
            step.replicas.count > 1
            or step.weights.rounding.mode == "stochastic"
            or not are_distinct(step.masters)
        ):
            return {}
        rows = {
            id(master): touched_rows(step.optimizer, gradient, master)
            for gradient, master in zip(gradients, step.masters, strict=True)
        }
        return {key: touched for key, touched in rows.items() if touched is not None}


def kernel_part(step: Step, rule: Rule | None) -> list[int]:
    """Returns the indices of the variables that the kernel is to update.

    Args:
        step: `Step`.
        rule: the `Rule` of its optimizer, or None.
    """
    # A variable that is listed twice must be updated twice; the kernel does so once.
    if rule is None or not are_distinct(step.masters):
        return []
    slots = step.slots(rule)
    written = _variables_written(step.masters, slots)
    if not backend.can_update(written):
        return []
    from keras_mp.ops.kernels import update

    if not update.has_rule(rule.name, written):
        return []
    # Keras itself updates FP32 masters by sparse gradients: some rules touch few rows.
    takes_rows = step.weights.are_compressed and update.takes_powers(rule.name, written)
    fitting = [
        i
        for i, (gradient, master, own) in enumerate(
            zip(step.gradients, step.masters, slots, strict=True)
        )
        if gradient is not None
        and (takes_rows or not backend.is_sparse(gradient))
        and _fits(step.optimizer, gradient, master)
        and rule.takes(master)
        and all(slot is not None for slot in own)
    ]
    # The norm of all gradients cannot be computed from a part of them.
    is_part = len(fitting) < len(step.given)
    return [] if is_part and step.optimizer.global_clipnorm else fitting


def _variables_written(
    masters: Sequence[Master], slots: Sequence[Sequence[Any]]
) -> list[Any]:
    variables = [v for master in masters for v in master.kernel_arguments]
    of_slots = [getattr(s, "codes", s) for each in slots for s in each]
    return [v for v in (*variables, *of_slots) if v is not None]


def _fits(optimizer: keras.Optimizer, gradient: Gradient, master: Master) -> bool:
    from keras_mp.ops.kernels import update

    variable = master.variable
    return (
        update.supports(gradient)
        and keras.backend.standardize_dtype(variable.dtype) == "float32"
        and master.constraint is None
        and not keras_internals.is_replaced_by_gradient(optimizer, variable)
    )


def hyperparameters_of(
    optimizer: keras.Optimizer,
    rule: Rule,
    scale: Tensor,
    clipping: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Returns the hyperparameters that a step of a rule reads, by name.

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


def clipping_of(optimizer: keras.Optimizer, norm: Tensor) -> dict[str, Any]:
    """Returns the hyperparameters that clip gradients by the optimizer's options.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has a rule.
        norm: scalar float32 tensor, of all unscaled gradients; with `global_clipnorm`
            only, else it may be None.
    """
    clip_norm = optimizer.global_clipnorm
    if clip_norm:
        # As in Keras, but for the order in which the squares are summed.
        return {"clip_factor": clip_norm * ops.minimum(1 / norm, 1 / clip_norm)}
    clip_value = max(optimizer.clipvalue or 0.0, 0.0)
    return {"clip_value": clip_value} if clip_value else {}


@dataclass
class KernelUpdate:
    """Applies an optimizer that has a `Rule`, in one pass over all variables.

    Attributes:
        step: `Step`, with a gradient for each master, and a scale.
        rule: the `Rule` of its optimizer.
        counts_the_step: bool, whether `apply` increments the optimizer's iterations.
    """

    step: Step
    rule: Rule
    counts_the_step: bool

    def check(self, options: CheckOptions) -> GradientCheck:
        """As in `Update`, in one pass over the gradients.

        Args:
            options: `CheckOptions`.
        """
        from keras_mp.ops.kernels import update

        step = self.step
        clips = bool(step.optimizer.global_clipnorm)
        with update.device_of(step.variables):
            largest, sum_of_squares = update.check_gradients(
                step.gradients, step.scale, clips or options.sum_of_squares
            )
        self._clipping = clipping_of(step.optimizer, ops.sqrt(sum_of_squares))
        return check_of_kernel(largest, sum_of_squares, options)

    def apply(self, finite: Tensor) -> None:
        """As in `Update`."""
        if self.step.weights.draws_uniforms:
            # A skipped step must not advance the generator of random numbers.
            ops.cond(finite, lambda: self.update(True, self._clipping), lambda: None)
        else:
            self.update(finite, self._clipping)
        if self.counts_the_step:
            count_step(self.step.optimizer, finite)

    def update(self, finite: Tensor, clipping: Mapping[str, Tensor]) -> None:
        """Updates slots, masters and weights, and counts nothing.

        Args:
            finite: bool or scalar bool tensor, whether anything is to change.
            clipping: as for `hyperparameters_of`.
        """
        from keras_mp.ops.kernels import update

        step, rule = self.step, self.rule
        pairs = [master.kernel_arguments for master in step.masters]
        weights = [weight for _, weight in pairs]
        own = [weight for weight in weights if weight is not None]
        slots = step.slots(rule)
        update.update_variables(
            finite,
            [backend.as_dense(gradient) for gradient in step.gradients],
            [master for master, _ in pairs],
            [slot for of_all in zip(*slots, strict=True) for slot in of_all],
            weights,
            step.weights.rounding.uniforms(own),
            [step.applies_weight_decay(rule, master) for master in step.masters],
            powers=[self._powers(gradient) for gradient in step.gradients],
            rule=rule.name,
            hyperparameters={
                **hyperparameters_of(step.optimizer, rule, step.scale, clipping),
                **self._noise(),
            },
        )

    def _powers(self, gradient: Gradient) -> Any:
        """Returns what a sparse gradient adds to second moments; None for others."""
        if not backend.is_sparse(gradient):
            return None
        from keras_mp.ops.kernels import update

        of_tokens = GradientSums(
            ops.divide(ops.cast(gradient, "float32"), self.step.scale)
        )
        takes_magnitudes = update.takes_magnitudes(self.rule.name)
        return of_tokens.magnitudes if takes_magnitudes else of_tokens.squares

    def _noise(self) -> dict[str, Any]:
        weights = self.step.weights
        if not weights.are_compressed:
            return {}
        noise = weights.rounding.noise(self.step.optimizer.iterations)
        low, high = halves_of(noise)
        return {"noise_low": low, "noise_high": high}
