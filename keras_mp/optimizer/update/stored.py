"""The update of compressed state in plain operations, where no kernel fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.backend import Runner, backend
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.state.masters import StoredMaster
from keras_mp.optimizer.update.formulas import step
from keras_mp.optimizer.update.fused import (
    applies_weight_decay,
    hyperparameters_of,
    slots_of,
    variables_of,
)
from keras_mp.optimizer.update.fused_rules import FusedRule, count_step
from keras_mp.optimizer.update.gradient_check import GradientCheck, Wanted
from keras_mp.optimizer.update.unscaling import unscale


@dataclass
class StoredUpdate:
    """Reads masters and slots, applies a rule's formula, and stores them again.

    It computes the bits that the kernel does, one variable after the other.

    Attributes:
        optimizer: the inner `keras.optimizers.Optimizer`.
        rule: its `FusedRule`.
        master_weights: `MasterWeights`.
        gradients: list of tensors, of the scaled loss.
        masters: list of their variables or `StoredMaster`s.
        scale: scalar float32 tensor that the gradients are divided by.
        replicas: int, how many take this step.
        run: the `Runner` that calls the update on them.
    """

    optimizer: Any
    rule: FusedRule
    master_weights: MasterWeights
    gradients: Sequence[Any]
    masters: Sequence[Any]
    scale: Any
    replicas: int
    run: Runner

    @property
    def given(self) -> list[Any]:
        """The masters that have a gradient, which here are all of them."""
        return list(self.masters)

    def check(self, wanted: Wanted) -> GradientCheck:
        """Un-scales the gradients, and returns their `GradientCheck`.

        Args:
            wanted: `Wanted`.
        """
        clips = bool(self.optimizer.global_clipnorm)
        self._unscaled, check = unscale(
            self.optimizer,
            self.gradients,
            [variables_of([master])[0] for master in self.masters],
            self.scale,
            Wanted(wanted.largest, clips or wanted.sum_of_squares),
            self.replicas,
        )
        self._norm = ops.sqrt(check.sum_of_squares) if clips else None
        return check

    def apply(self, finite: Any) -> None:
        """Updates slots, masters and weights if `finite` is true.

        Args:
            finite: scalar bool tensor, the same on every replica.
        """
        backend.cond_on_all_replicas(
            finite,
            self.run,
            self._update,
            self._unscaled,
            [*self.optimizer.variables, *self.master_weights.variables],
        )

    def _update(self, gradients: Sequence[Any]) -> None:
        given = hyperparameters_of(self.optimizer, self.rule, self.scale, self._norm)
        numbers = {name: ops.cast(x, "float32") for name, x in given.items()}
        noise = self.master_weights.noise(self.optimizer.iterations)
        for gradient, master in zip(gradients, self.masters, strict=True):
            self._update_one(gradient, master, numbers, noise)
        count_step(self.optimizer, ops.ones((), "bool"))

    def _update_one(
        self, gradient: Any, master: Any, numbers: dict[str, Any], noise: Any
    ) -> None:
        slots = slots_of(self.optimizer, self.rule, self.master_weights, master)
        value, new_slots = step(
            self.rule.name,
            numbers,
            applies_weight_decay(self.optimizer, master),
            gradient,
            self._read(master),
            [ops.convert_to_tensor(slot.value) for slot in slots],
        )
        if master.constraint is not None:
            value = master.constraint(value)
        self._store(master, value, noise)
        for slot, new in zip(slots, new_slots, strict=True):
            if isinstance(slot, keras.Variable):
                slot.assign(new)
            else:
                slot.store(new, noise)

    def _read(self, master: Any) -> Any:
        if isinstance(master, StoredMaster):
            return master.value
        master, weight = self.master_weights.parts(master)
        if weight is None:
            return ops.convert_to_tensor(master)
        return self.master_weights.read(master, weight)

    def _store(self, master: Any, value: Any, noise: Any) -> None:
        if isinstance(master, StoredMaster):
            master.store(value, noise)
            return
        master, weight = self.master_weights.parts(master)
        master.assign(value)
        if weight is not None:
            weight.assign(self.master_weights.rounded(weight, value))
