"""The whole update by a native kernel, for the optimizers that it implements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.master_weights import MasterWeights, are_distinct
from keras_mp.optimizer.update.fused_rules import FusedRule, count_step
from keras_mp.optimizer.update.gradient_check import (
    GradientCheck,
    Wanted,
    check_of_kernel,
)


def fused_part(
    optimizer: Any,
    rule: FusedRule | None,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
) -> list[int]:
    """Returns the indices of the variables that the kernel is to update.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        rule: its `FusedRule`, or None.
        master_weights: `MasterWeights`.
        gradients: list of tensors, `tf.IndexedSlices` or None.
        masters: list of their variables.
    """
    # A variable that is listed twice must be updated twice; the kernel does so once.
    if rule is None or not are_distinct(masters):
        return []
    if not backend.can_update(_variables_written(rule.slots, master_weights, masters)):
        return []
    pairs = list(enumerate(zip(gradients, masters, strict=True)))
    fitting = [i for i, (g, m) in pairs if g is not None and _fits(optimizer, g, m)]
    given = sum(gradient is not None for gradient in gradients)
    # The norm of all gradients cannot be computed from a part of them.
    return [] if len(fitting) < given and optimizer.global_clipnorm else fitting


def _variables_written(
    slot_lists: Sequence[Sequence[Any]],
    master_weights: MasterWeights,
    masters: Sequence[Any],
) -> list[Any]:
    slots = [slot for slots in slot_lists for slot in slots if slot is not None]
    weights = [weight for weight, _ in master_weights.pairs]
    return [*masters, *weights, *slots]


def _fits(optimizer: Any, gradient: Any, master: Any) -> bool:
    from keras_mp.ops.kernels import update

    return (
        not backend.is_sparse(gradient)
        and update.takes(gradient)
        and keras.backend.standardize_dtype(master.dtype) == "float32"
        and getattr(master, "constraint", None) is None
        and not keras_internals.is_replaced_by_gradient(optimizer, master)
    )


@dataclass
class FusedUpdate:
    """Applies an optimizer that has a `FusedRule`, in one pass over all variables.

    Attributes:
        optimizer: `keras.optimizers.Optimizer`.
        rule: its `FusedRule`.
        master_weights: `MasterWeights`.
        gradients: list of tensors, of the scaled loss.
        masters: list of their float32 variables.
        scale: scalar float32 tensor that the gradients are divided by.
        counts_the_step: bool, whether `apply` increments the optimizer's iterations.
    """

    optimizer: Any
    rule: FusedRule
    master_weights: MasterWeights
    gradients: Sequence[Any]
    masters: Sequence[Any]
    scale: Any
    counts_the_step: bool

    @property
    def given(self) -> list[Any]:
        """The masters that have a gradient, which here are all of them."""
        return list(self.masters)

    def check(self, wanted: Wanted) -> GradientCheck:
        """Returns the `GradientCheck` of the gradients, in one pass over them.

        Args:
            wanted: `Wanted`.
        """
        from keras_mp.ops.kernels import update

        clips = self._clip_norm() is not None
        with update.beside(self.masters):
            largest, sum_of_squares = update.check_gradients(
                self.gradients, self.scale, clips or wanted.sum_of_squares
            )
        self._norm = ops.sqrt(sum_of_squares)
        return check_of_kernel(largest, sum_of_squares, wanted)

    def apply(self, finite: Any) -> None:
        """Updates slots, masters and weights if `finite` is true.

        Args:
            finite: scalar bool tensor.
        """
        if self.master_weights.rounding == "stochastic":
            # A skipped step must not advance the generator of random numbers.
            ops.cond(finite, lambda: self._update(True), lambda: None)
        else:
            self._update(finite)
        if self.counts_the_step:
            count_step(self.optimizer, finite)

    def _update(self, finite: Any) -> None:
        from keras_mp.ops.kernels import update

        weight_of = {id(master): weight for weight, master in self.master_weights.pairs}
        weights = [weight_of.get(id(master)) for master in self.masters]
        own = [weight for weight in weights if weight is not None]
        indices = [
            keras_internals.variable_index(self.optimizer, master)
            for master in self.masters
        ]
        update.update_variables(
            finite,
            self.gradients,
            self.masters,
            [slots[i] for slots in self.rule.slots for i in indices],
            weights,
            self.master_weights.uniforms(own),
            [self._applies_weight_decay(master) for master in self.masters],
            rule=self.rule.name,
            hyperparameters={
                "scale": self.scale,
                **self._clipping(),
                "weight_decay": self.optimizer.weight_decay or 0.0,
                "learning_rate": ops.cast(self.optimizer.learning_rate, "float32"),
                **self.rule.hyperparameters(self.optimizer),
            },
        )

    def _applies_weight_decay(self, master: Any) -> bool:
        return bool(self.optimizer.weight_decay) and keras_internals.uses_weight_decay(
            self.optimizer, master
        )

    def _clip_norm(self) -> float | None:
        return self.optimizer.global_clipnorm or None

    def _clipping(self) -> dict[str, Any]:
        clip_norm = self._clip_norm()
        if clip_norm is None:
            return {"clip_value": max(self.optimizer.clipvalue or 0.0, 0.0)}
        # As in Keras, but for the order in which the squares are summed.
        return {"clip_factor": clip_norm * ops.minimum(1 / self._norm, 1 / clip_norm)}
