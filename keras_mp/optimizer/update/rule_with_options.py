"""A kernel's update with options that Keras implements around any optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.gradients import sum_of_squares_of
from keras_mp.optimizer.master_weights import Kept
from keras_mp.optimizer.rules import FusedRule, count_update
from keras_mp.optimizer.update.fused import (
    FusedUpdate,
    chosen,
    clipping_of,
    fused_part,
)
from keras_mp.optimizer.update.stored import (
    StoredUpdate,
    read_master,
    store_master,
    with_dense_rows,
)
from keras_mp.optimizer.update.unscaled_update import UnscaledUpdate


def has_options_around(optimizer: Any) -> bool:
    """Tells whether an optimizer uses an option that Keras implements around a rule."""
    return bool(
        optimizer.clipnorm or optimizer.gradient_accumulation_steps or optimizer.use_ema
    )


def clips_rows(optimizer: Any, gradients: Sequence[Any]) -> bool:
    """Tells whether an optimizer clips gradients, one of them sparse."""
    clips = optimizer.global_clipnorm or optimizer.clipvalue
    return bool(clips) and any(backend.is_sparse(gradient) for gradient in gradients)


def check_what_is_kept(optimizer: Any, kept: Kept) -> None:
    """Refuses an option that was set after the optimizer was built.

    Raises:
        ValueError: there is no average, or no sum of gradients, to update.
    """
    needed = {"use_ema": kept.averages, "gradient_accumulation_steps": kept.sums}
    for name, variables in needed.items():
        if getattr(optimizer, name) and not variables:
            raise ValueError(
                "An optimizer makes the variables that an option needs when it is "
                f"built. Received: {name}={getattr(optimizer, name)!r}, set after "
                "that. Give the option to the optimizer's constructor."
            )


def _clipped(gradient: Any, clipping: Mapping[str, Any]) -> Any:
    """Returns a gradient clipped by what `clipping_of` returned."""
    if "clip_factor" in clipping:
        return ops.multiply(gradient, clipping["clip_factor"])
    if "clip_value" in clipping:
        return ops.clip(gradient, -clipping["clip_value"], clipping["clip_value"])
    return gradient


@dataclass
class RuleWithOptions(UnscaledUpdate):
    """Accumulates and clips gradients before a rule, and averages masters after it.

    In the order of `keras.optimizers.Optimizer.apply`.

    Attributes:
        rule: the `FusedRule` of the optimizer.
        kept: `Kept` of all masters.
    """

    rule: FusedRule
    kept: Kept

    def _update(self, gradients: Sequence[Any]) -> None:
        if self.optimizer.gradient_accumulation_steps:
            self._accumulate([backend.as_dense(gradient) for gradient in gradients])
        else:
            self._apply_rule(gradients)
        if self.optimizer.use_ema:
            self._average()
        self._in_plain_operations(self.masters).constrain()
        keras_internals.applied_steps(self.optimizer).assign_add(1)

    def _accumulate(self, gradients: Sequence[Any]) -> None:
        steps = self.optimizer.gradient_accumulation_steps
        calls = keras_internals.applied_steps(self.optimizer) + 1
        is_last = ops.equal(calls % steps, 0)
        sums = self.kept.sums
        own = [sums[self.master_weights.position(master)] for master in self.masters]
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
        for gradient, total in zip(gradients, own, strict=True):
            total.assign(ops.where(is_last, 0.0, gradient + total))
        given = {id(total) for total in own}
        for total in sums:
            if id(total) not in given:
                total.assign(ops.where(is_last, 0.0, ops.convert_to_tensor(total)))

    def _apply_rule(self, gradients: Sequence[Any]) -> None:
        optimizer = self.optimizer
        if optimizer.clipnorm:
            gradients = [keras_internals.clip_by_norm(optimizer, g) for g in gradients]
        norm = None
        if optimizer.global_clipnorm:
            norm = ops.sqrt(sum_of_squares_of(gradients))
        clipping = clipping_of(optimizer, norm)
        if any(backend.is_sparse(gradient) for gradient in gradients):
            # Keras clips before it adds up the rows that several tokens have in common.
            gradients = [_clipped(gradient, clipping) for gradient in gradients]
            gradients = with_dense_rows(optimizer, self.rule, gradients)
            clipping = {}
        whole = (gradients, self.masters)
        fused = fused_part(optimizer, self.rule, self.master_weights, *whole)
        others = sorted(set(range(len(self.masters))) - set(fused))
        if fused:
            self._by_the_kernel(*chosen(fused, *whole)).update(True, clipping)
        if others:
            of_others, masters = chosen(others, *whole)
            self._in_plain_operations(masters).update(of_others, clipping)
        count_update(optimizer, True)

    def _by_the_kernel(self, gradients: list[Any], masters: list[Any]) -> FusedUpdate:
        return FusedUpdate(
            self.optimizer,
            self.rule,
            self.master_weights,
            gradients,
            masters,
            ops.ones(()),
            counts_the_step=False,
        )

    def _in_plain_operations(self, masters: Sequence[Any]) -> StoredUpdate:
        return StoredUpdate(
            self.optimizer,
            self.master_weights,
            [],
            masters,
            ops.ones(()),
            self.replicas,
            self.run,
            self.rule,
        )

    def _average(self) -> None:
        optimizer = self.optimizer
        # At the first step an average becomes its master.
        is_later = ops.cast(ops.not_equal(optimizer.iterations, 0), "float32")
        momentum = is_later * optimizer.ema_momentum
        pairs = self._masters_and_averages
        for master, average in pairs:
            value = read_master(self.master_weights, master)
            average.assign(momentum * average + (1 - momentum) * value)
        if optimizer.ema_overwrite_frequency:
            updates = optimizer.iterations + 1
            is_time = ops.equal(updates % optimizer.ema_overwrite_frequency, 0)
            backend.cond(is_time, self._overwrite_with_averages, self.variables)

    def _overwrite_with_averages(self) -> None:
        noise = self.master_weights.noise(self.optimizer.iterations)
        for master, average in self._masters_and_averages:
            # On JAX one buffer cannot be donated twice.
            store_master(self.master_weights, master, ops.copy(average), noise)

    @property
    def _masters_and_averages(self) -> list[tuple[Any, Any]]:
        averages = self.kept.averages
        return list(zip(self.master_weights.all, averages, strict=True))
