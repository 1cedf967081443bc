"""The update of compressed state in plain operations, if no kernel fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.gradients import GradientCheck, Wanted
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.masters import StoredMaster, are_distinct
from keras_mp.optimizer.reference import decayed, squares_gradients, step
from keras_mp.optimizer.rules import FusedRule, count_step
from keras_mp.optimizer.update.fused import (
    applies_weight_decay,
    clipping_of,
    hyperparameters_of,
    slots_of,
)
from keras_mp.optimizer.update.unscaled_update import UnscaledUpdate


def with_dense_rows(
    optimizer: Any, rule: FusedRule, gradients: Sequence[Any]
) -> list[Any]:
    """Returns gradients with the tokens of sparse ones added up, where Keras does so.

    The variables of those that stay sparse also need all rows: each row's slots decay.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has the rule.
        rule: `FusedRule`.
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


@dataclass
class StoredUpdate(UnscaledUpdate):
    """Reads masters and slots, applies a rule's formula, and stores them again.

    All is float32, except for variables in float64. It computes the bits that the
    kernel does, one variable after the other; but it adds up the norms of Lamb, and the
    means and norms of Adafactor, in another order.

    Attributes:
        rule: the `FusedRule` of the optimizer.
    """

    rule: FusedRule

    def check(self, wanted: Wanted) -> GradientCheck:
        """As in `UnscaledUpdate`, and the norm where the rule clips by it.

        Args:
            wanted: `Wanted`.
        """
        clips = bool(self.optimizer.global_clipnorm)
        wanted = Wanted(wanted.largest, clips or wanted.sum_of_squares)
        check = super().check(wanted)
        norm = ops.sqrt(check.sum_of_squares) if clips else None
        self._clipping = clipping_of(self.optimizer, norm)
        return check

    def _update(self, gradients: Sequence[Any]) -> None:
        self.update(gradients, self._clipping)
        self.constrain()
        count_step(self.optimizer, ops.ones((), "bool"))

    def update(self, gradients: Sequence[Any], clipping: Mapping[str, Any]) -> None:
        """Updates slots, masters and weights, without constraints; counts nothing.

        Args:
            gradients: list of unscaled tensors or `tf.IndexedSlices`.
            clipping: as for `hyperparameters_of`.
        """
        scale = ops.ones(()) if self.scale is None else self.scale
        given = hyperparameters_of(self.optimizer, self.rule, scale, clipping)
        numbers = {name: ops.cast(x, "float32") for name, x in given.items()}
        decaying = [
            applies_weight_decay(self.optimizer, self.rule, master)
            for master in self.masters
        ]
        if not are_distinct(self.masters):
            # All decays come before the first update, as in Keras. Of a variable that
            # is listed once, both are done in one step.
            for master in compress(self.masters, decaying):
                value = read_master(self.master_weights, master)
                self._store(master, decayed(_in_dtype_of(value, numbers), value))
            decaying = [False] * len(self.masters)
        for each in zip(gradients, self.masters, decaying, strict=True):
            self._update_one(*each, numbers)

    def constrain(self) -> None:
        """Applies the constraints of the variables that have one."""
        for master in self.masters:
            if master.constraint is not None:
                value = read_master(self.master_weights, master)
                self._store(master, master.constraint(value))

    def _update_one(
        self, gradient: Any, master: Any, decays: bool, numbers: dict[str, Any]
    ) -> None:
        slots = slots_of(self.optimizer, self.rule, self.master_weights, master)
        value = read_master(self.master_weights, master)
        dtype = keras.backend.standardize_dtype(value.dtype)
        value, new_slots = step(
            self.rule.name,
            _in_dtype_of(value, numbers),
            decays,
            ops.cast(gradient, dtype),
            value,
            [ops.cast(ops.convert_to_tensor(slot.value), dtype) for slot in slots],
        )
        self._store(master, value)
        for slot, new in zip(slots, new_slots, strict=True):
            if isinstance(slot, keras.Variable):
                slot.assign(new)
            else:
                slot.store(ops.cast(new, "float32"), self._noise)

    def _store(self, master: Any, value: Any) -> None:
        store_master(self.master_weights, master, value, self._noise)

    @property
    def _noise(self) -> Any:
        return self.master_weights.noise(self.optimizer.iterations)


def _in_dtype_of(value: Any, numbers: dict[str, Any]) -> dict[str, Any]:
    """Returns float32 hyperparameters, in float64 for the value of such a variable."""
    dtype = keras.backend.standardize_dtype(value.dtype)
    if dtype == "float32":
        return numbers
    return {name: ops.cast(x, dtype) for name, x in numbers.items()}


def read_master(master_weights: MasterWeights, master: Any) -> Any:
    """Returns the value of a master, however it is stored: float32, or float64."""
    if isinstance(master, StoredMaster):
        return master.value
    master, weight = master_weights.parts(master)
    if weight is None:
        return ops.convert_to_tensor(master)
    return master_weights.read(master, weight)


def store_master(
    master_weights: MasterWeights, master: Any, value: Any, noise: Any
) -> None:
    """Stores the new value of a master, and rounds it into its weight.

    Args:
        master_weights: `MasterWeights`.
        master: variable or `StoredMaster`.
        value: tensor.
        noise: what `MasterWeights.noise` returned.
    """
    if isinstance(master, StoredMaster):
        master.store(value, noise)
        return
    master, weight = master_weights.parts(master)
    master.assign(value)
    if weight is not None:
        weight.assign(master_weights.rounded(weight, value))
