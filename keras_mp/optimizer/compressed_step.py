"""A step of compressed state, or with options that Keras implements around a rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.gradients import CheckOptions, GradientCheck, sum_of_squares_of
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.masters import Master, are_distinct, path_of
from keras_mp.optimizer.reference import apply_formula, decayed, squares_gradients
from keras_mp.optimizer.rules import (
    OPTIONS_AROUND_A_RULE,
    Rule,
    count_step,
    count_update,
    rule_of,
    unsupported_options,
)
from keras_mp.optimizer.step import (
    KernelUpdate,
    Step,
    UnscaledUpdate,
    Update,
    clipping_of,
    divide,
    hyperparameters_of,
    kernel_part,
)
from keras_mp.typing import Gradient, Tensor


def plan_compressed(step: Step) -> list[Update]:
    """Divides a step of compressed state: into what the kernel takes, and the others.

    Args:
        step: `Step`.

    Returns:
        List of one or two parts.

    Raises:
        ValueError: an option was set after the optimizer was wrapped that no rule has;
            or the gradient of a variable replaces it.
    """
    optimizer = step.optimizer
    rule = rule_of(optimizer, OPTIONS_AROUND_A_RULE)
    if rule is None:
        missing = unsupported_options(optimizer, OPTIONS_AROUND_A_RULE)
        raise ValueError(
            "Compressed optimizer state needs an optimizer that the kernel of the "
            f"update implements. Received: {missing}. Restore the "
            "option that the optimizer was wrapped with."
        )
    step = step.without_missing_gradients()
    for master in step.masters:
        if keras_internals.is_replaced_by_gradient(optimizer, master.reference):
            raise ValueError(
                "Compressed optimizer state is for variables that an optimizer moves. "
                f"Received: {path_of(master.weight)}, which its gradient replaces "
                "(`overwrite_with_gradient`, as in FP8 training). Choose "
                'masters="float32" and state="float32".'
            )
    if has_options_around(optimizer) or clips_rows(optimizer, step.gradients):
        check_made_at_build(optimizer, step.weights)
        return [UpdateWithOptions(step, rule)]
    step = replace(step, gradients=with_dense_rows(optimizer, rule, step.gradients))

    def by_reference(others: Step) -> ReferenceUpdate:
        return ReferenceUpdate(others, rule)

    return divide(step, rule, kernel_part(step, rule), by_reference)


def plan_options(step: Step) -> list[Update]:
    """Returns the update of FP32 masters by the kernel, with options around its rule.

    Args:
        step: `Step`, with masters and slots in FP32.

    Returns:
        List of one update; empty if no such option is used, or if the kernel does not
        take all variables of one replica: Keras updates them then.
    """
    if step.replicas.count > 1 or not has_options_around(step.optimizer):
        return []
    rule = rule_of(step.optimizer, OPTIONS_AROUND_A_RULE)
    if rule is None or len(kernel_part(step, rule)) < len(step.given):
        return []
    check_made_at_build(step.optimizer, step.weights)
    made = (*step.weights.averages, *step.weights.accumulators)
    if any(variable is None for variable in made):
        return []
    return [UpdateWithOptions(step.without_missing_gradients(), rule)]


@dataclass
class ReferenceUpdate(UnscaledUpdate):
    """Reads masters and slots, applies a rule's formula, and stores them again.

    All is float32, except for variables in float64. It computes the bits that the
    kernel does, one variable after the other; but it adds up the norms of Lamb, and the
    means and norms of Adafactor, in another order.

    Attributes:
        rule: the `Rule` of the optimizer.
    """

    rule: Rule

    def check(self, options: CheckOptions) -> GradientCheck:
        """As in `UnscaledUpdate`, and the norm where the rule clips by it.

        Args:
            options: `CheckOptions`.
        """
        optimizer = self.step.optimizer
        clips = bool(optimizer.global_clipnorm)
        options = CheckOptions(options.largest, clips or options.sum_of_squares)
        check = super().check(options)
        norm = ops.sqrt(check.sum_of_squares) if clips else None
        self._clipping = clipping_of(optimizer, norm)
        return check

    def _update(self, gradients: Sequence[Gradient]) -> None:
        self.update(gradients, self._clipping)
        self.constrain()
        count_step(self.step.optimizer, True)

    def update(
        self, gradients: Sequence[Gradient], clipping: Mapping[str, Tensor]
    ) -> None:
        """Updates slots, masters and weights, without constraints; counts nothing.

        Args:
            gradients: list of unscaled tensors or `tf.IndexedSlices`.
            clipping: as for `hyperparameters_of`.
        """
        step = self.step
        scale = ops.ones(()) if step.scale is None else step.scale
        given = hyperparameters_of(step.optimizer, self.rule, scale, clipping)
        numbers = {name: ops.cast(x, "float32") for name, x in given.items()}
        decaying = [
            step.applies_weight_decay(self.rule, master) for master in step.masters
        ]
        if not are_distinct(step.masters):
            # All decays come before the first update, as in Keras. Of a variable that
            # is listed once, both are done in one step.
            for master in compress(step.masters, decaying):
                value = master.value
                master.store(decayed(_in_dtype_of(value, numbers), value), self._noise)
            decaying = [False] * len(step.masters)
        slots = step.slots(self.rule)
        for gradient, master, own, decays in zip(
            gradients, step.masters, slots, decaying, strict=True
        ):
            with step.replicas.device(master):
                self._update_one(gradient, master, own, decays, numbers)

    def constrain(self) -> None:
        """Applies the constraints of the variables that have one."""
        for master in self.step.masters:
            if master.constraint is not None:
                master.store(master.constraint(master.value), self._noise)

    def _update_one(
        self,
        gradient: Gradient,
        master: Master,
        slots: Sequence[Any],
        decays: bool,
        numbers: dict[str, Any],
    ) -> None:
        value = master.value
        dtype = keras.backend.standardize_dtype(value.dtype)
        value, new_slots = apply_formula(
            self.rule.name,
            _in_dtype_of(value, numbers),
            decays,
            ops.cast(gradient, dtype),
            value,
            [ops.cast(ops.convert_to_tensor(slot.value), dtype) for slot in slots],
        )
        master.store(value, self._noise)
        for slot, new in zip(slots, new_slots, strict=True):
            if isinstance(slot, keras.Variable):
                slot.assign(new)
            else:
                slot.store(ops.cast(new, "float32"), self._noise)

    @property
    def _noise(self) -> Any:
        return self.step.weights.rounding.noise(self.step.optimizer.iterations)


@dataclass
class UpdateWithOptions(UnscaledUpdate):
    """Accumulates and clips gradients before a rule, and averages masters after it.

    In the order of `keras.optimizers.Optimizer.apply`.

    Attributes:
        rule: the `Rule` of the optimizer.
    """

    rule: Rule

    def _update(self, gradients: Sequence[Gradient]) -> None:
        optimizer = self.step.optimizer
        if optimizer.gradient_accumulation_steps:
            self._accumulate([backend.as_dense(gradient) for gradient in gradients])
        else:
            self._apply_rule(gradients)
        if optimizer.use_ema:
            self._average()
        ReferenceUpdate(self.step, self.rule).constrain()
        keras_internals.applied_steps(optimizer).assign_add(1)

    def _accumulate(self, gradients: Sequence[Gradient]) -> None:
        steps = self.step.optimizer.gradient_accumulation_steps
        calls = keras_internals.applied_steps(self.step.optimizer) + 1
        is_last = ops.equal(calls % steps, 0)
        weights = self.step.weights
        sums = weights.accumulators
        own = [sums[weights.index(master)] for master in self.step.masters]
        gradients = [
            ops.cast(gradient, total.dtype)
            for gradient, total in zip(gradients, own, strict=True)
        ]

        # The tensor comes first: `variable + tensor` fails in Keras without elements.
        def update() -> None:
            pairs = zip(gradients, own, strict=True)
            self._apply_rule([(gradient + total) / steps for gradient, total in pairs])

        backend.cond(is_last, update, self.variables)
        # Read anew for each: a variable that is listed twice has one sum.
        masters = self.step.masters
        for gradient, total, master in zip(gradients, own, masters, strict=True):
            with self.step.replicas.device(master):
                total.assign(ops.where(is_last, 0.0, gradient + total))
        given = {id(total) for total in own}
        for total in sums:
            if id(total) not in given:
                total.assign(ops.where(is_last, 0.0, ops.convert_to_tensor(total)))

    def _apply_rule(self, gradients: Sequence[Gradient]) -> None:
        optimizer, rule = self.step.optimizer, self.rule
        if optimizer.clipnorm:
            gradients = [keras_internals.clip_by_norm(optimizer, g) for g in gradients]
        norm = None
        if optimizer.global_clipnorm:
            norm = ops.sqrt(sum_of_squares_of(gradients))
        clipping = clipping_of(optimizer, norm)
        if any(backend.is_sparse(gradient) for gradient in gradients):
            # Keras clips before it adds up the rows that several tokens have in common.
            gradients = [_clipped(gradient, clipping) for gradient in gradients]
            gradients = with_dense_rows(optimizer, rule, gradients)
            clipping = {}
        step = replace(self.step, gradients=gradients, scale=ops.ones(()))
        fitting = kernel_part(step, rule)
        others = sorted(set(range(len(step.masters))) - set(fitting))
        if fitting:
            part = step.part(fitting)
            KernelUpdate(part, rule, counts_the_step=False).update(True, clipping)
        if others:
            part = step.part(others)
            ReferenceUpdate(part, rule).update(part.gradients, clipping)
        count_update(optimizer, True)

    def _average(self) -> None:
        optimizer = self.step.optimizer
        # At the first step an average becomes its master.
        is_later = ops.cast(ops.not_equal(optimizer.iterations, 0), "float32")
        momentum = is_later * optimizer.ema_momentum
        for master, average in self._masters_and_averages:
            with self.step.replicas.device(master):
                average.assign(momentum * average + (1 - momentum) * master.value)
        if optimizer.ema_overwrite_frequency:
            updates = optimizer.iterations + 1
            is_time = ops.equal(updates % optimizer.ema_overwrite_frequency, 0)
            backend.cond(is_time, self._overwrite_with_averages, self.variables)

    def _overwrite_with_averages(self) -> None:
        noise = self.step.weights.rounding.noise(self.step.optimizer.iterations)
        for master, average in self._masters_and_averages:
            # On JAX one buffer cannot be donated twice.
            master.store(ops.copy(average), noise)

    @property
    def _masters_and_averages(self) -> list[tuple[Master, keras.Variable]]:
        weights = self.step.weights
        return list(zip(weights.all, weights.averages, strict=True))


def with_dense_rows(
    optimizer: keras.Optimizer, rule: Rule, gradients: Sequence[Gradient]
) -> list[Any]:
    """Returns gradients with the tokens of sparse ones added up, where Keras does so.

    The variables of those that stay sparse also need all rows: each row's slots decay.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has the rule.
        rule: `Rule`.
        gradients: list of tensors or `tf.IndexedSlices`.

    Returns:
        List of tensors or `tf.IndexedSlices`.
    """
    by_token = squares_gradients(rule.name) and not optimizer.global_clipnorm
    return [
        gradient
        if by_token and backend.is_sparse(gradient)
        else backend.as_dense(gradient)
        for gradient in gradients
    ]


def _in_dtype_of(value: Tensor, numbers: dict[str, Any]) -> dict[str, Any]:
    """Returns float32 hyperparameters, in float64 for the value of such a variable."""
    dtype = keras.backend.standardize_dtype(value.dtype)
    if dtype == "float32":
        return numbers
    return {name: ops.cast(x, dtype) for name, x in numbers.items()}


def has_options_around(optimizer: keras.Optimizer) -> bool:
    """Tells whether an optimizer uses an option that Keras implements around a rule."""
    return bool(
        optimizer.clipnorm or optimizer.gradient_accumulation_steps or optimizer.use_ema
    )


def clips_rows(optimizer: keras.Optimizer, gradients: Sequence[Gradient]) -> bool:
    """Tells whether an optimizer clips gradients, one of them sparse."""
    clips = optimizer.global_clipnorm or optimizer.clipvalue
    return bool(clips) and any(backend.is_sparse(gradient) for gradient in gradients)


def check_made_at_build(optimizer: keras.Optimizer, weights: MasterWeights) -> None:
    """Refuses an option that was set after the optimizer was built.

    Raises:
        ValueError: there is no average, or no sum of gradients, to update.
    """
    needed = {
        "use_ema": weights.averages,
        "gradient_accumulation_steps": weights.accumulators,
    }
    for name, variables in needed.items():
        if getattr(optimizer, name) and not variables:
            raise ValueError(
                "An optimizer makes the variables that an option needs when it is "
                f"built. Received: {name}={getattr(optimizer, name)!r}, set after "
                "that. Give the option to the optimizer's constructor."
            )


def _clipped(gradient: Gradient, clipping: Mapping[str, Tensor]) -> Any:
    """Returns a gradient clipped by what `clipping_of` returned."""
    if "clip_factor" in clipping:
        return ops.multiply(gradient, clipping["clip_factor"])
    if "clip_value" in clipping:
        return ops.clip(gradient, -clipping["clip_value"], clipping["clip_value"])
    return gradient
