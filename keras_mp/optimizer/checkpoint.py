"""What an optimizer writes and reads back: its config, and its state as arrays.

A file has FP32 masters and slots, however the optimizer stores them: one that was
saved with one form is loaded into any other. It has a master for every weight if any
weight is stored in 16 bits: a weight in FP32 is its own. So a file also fits if other
weights are stored in 16 bits. Keras's files have the variables of an optimizer as a
list without names: shapes tell what they are.

Several optimizers may share a loss scale. While Keras loads a model it recognizes, by
an id in their configs, objects that it has made already. Outside of that a config
cannot tell which scale it means.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.dtypes import HALVES
from keras_mp.loss_scale import as_loss_scale
from keras_mp.optimizer.arguments import CompressedState
from keras_mp.optimizer.compression import differs
from keras_mp.optimizer.loss_scaler import LossScaler
from keras_mp.optimizer.master_weights import (
    MasterWeights,
    averages_and_accumulators,
)
from keras_mp.optimizer.masters import CompressedMaster, needs_master
from keras_mp.optimizer.properties import OptimizerProperties
from keras_mp.optimizer.rules import OPTIONS_AROUND_A_RULE, Rule, rule_of
from keras_mp.optimizer.slot_codes import CodedSlot
from keras_mp.serialization import deserialize, serialize_optimizer
from keras_mp.typing import Tensor, Variable


def serialize_arguments(optimizer: OptimizerProperties) -> dict[str, Any]:
    """Returns the arguments that an `FP32MasterOptimizer` was made with.

    Args:
        optimizer: `FP32MasterOptimizer`.
    """
    return {
        "inner_optimizer": serialize_optimizer(optimizer.inner_optimizer),
        "loss_scale": serialize_scaler(optimizer._scaler),
        "rounding": optimizer.rounding,
        "seed": optimizer._master_weights.rounding.seed.get_config()["seed"],
        "all_reduce_dtype": optimizer.all_reduce_dtype,
        "name": optimizer.name,
        **_forms(optimizer),
    }


def _forms(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the forms of masters and state that are not the defaults."""
    given = {"masters": optimizer.masters, "state": optimizer.state}
    forms = {
        name: keras.saving.serialize_keras_object(form)
        for name, form in given.items()
        if form != "float32"
    }
    return forms | ({"shard_state": True} if optimizer.shard_state else {})


def deserialize_arguments(
    config: dict[str, Any], custom_objects: Any
) -> dict[str, Any]:
    """Returns the arguments that `serialize_arguments` described.

    Args:
        config: dict. Its `loss_scale` may also be an `FP32MasterOptimizer`, to share
            the scale with it.
        custom_objects: dict, classes that the config may name.

    Raises:
        TypeError: the inner optimizer or the scale is of the wrong type.
        ValueError: a config inside is malformed.
    """
    arguments = dict(config)
    arguments["inner_optimizer"] = deserialize(
        "inner_optimizer",
        config.get("inner_optimizer"),
        keras.optimizers.Optimizer,
        "optimizers",
        custom_objects,
    )
    if isinstance(config.get("state"), dict):
        arguments["state"] = deserialize(
            "state", config["state"], CompressedState, "state", custom_objects
        )
    scale = config.get("loss_scale", "dynamic")
    if not isinstance(scale, OptimizerProperties):
        arguments["loss_scale"] = deserialize_scale(scale, custom_objects)
    return arguments


def serialize_scaler(scaler: LossScaler) -> dict[str, Any]:
    """Returns the config of the rule, or of the scaler itself if it is shared."""
    if not scaler.is_shared:
        config: dict[str, Any] = keras.saving.serialize_keras_object(scaler.rule)
        return config
    # Keras adds an id when it serializes an object a second time: to that config and,
    # in place, to the first one, which has been copied by then.
    config = keras.saving.serialize_keras_object(scaler)
    return {**config, "shared_object_id": id(scaler)}


def deserialize_scale(config: Any, custom_objects: Any) -> Any:
    """Returns what `serialize_scaler` described.

    Args:
        config: what it returned, or what `as_loss_scale` takes.
        custom_objects: dict, classes that the config may name.

    Returns:
        `LossScale`, or the `LossScaler` that optimizers of the model share.
    """
    if not isinstance(config, dict) or config.get("class_name") != LossScaler.__name__:
        return as_loss_scale(config, custom_objects)

    def scaler() -> Any:
        return deserialize(
            "loss_scale", config, LossScaler, custom_objects=custom_objects
        )

    found = scaler()
    if found is not scaler():
        warnings.warn(
            "The loss scale was shared with another optimizer, and a config does "
            "not say with which: this one now has a scale of its own. Received: "
            f"{found.rule!r}. Save and load the model that holds both, or name the "
            'other: FP32MasterOptimizer.from_config({**config, "loss_scale": other}).',
            stacklevel=5,
        )
    return found


def warn_that_a_pickle_does_not_share(scaler: LossScaler) -> None:
    """Warns if the optimizer to be pickled shares its scale, which a pickle loses."""
    if scaler.is_shared:
        warnings.warn(
            "An optimizer that is pickled or copied without the others no longer "
            "shares its loss scale. Received: one that shares its loss scale with "
            f"{len(scaler.scaling_states) - 1} others. Pickle the model that holds "
            "them all.",
            stacklevel=4,
        )


class Saved(NamedTuple):
    """One entry of a file.

    Attributes:
        path: of the variable.
        shape: tuple of int.
        dtype: str.
        read: returns the tensor that is saved.
        assign: takes the array that was saved.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Any]
    assign: Callable[[Any], None]


@dataclass(frozen=True)
class SavedState:
    """The entries that an optimizer with FP32 masters and slots would save.

    Attributes:
        scaling: of the loss scale and the counters of steps.
        masters: of the masters of all weights; empty if none is stored in 16 bits.
        masters_of_halves: of the weights stored in 16 bits; a file of an earlier
            version has only these.
        inner: of the inner optimizer.
    """

    scaling: list[Saved]
    masters: list[Saved]
    masters_of_halves: list[Saved]
    inner: list[Saved]

    @property
    def entries(self) -> list[Saved]:
        """All of them, in the order of a file."""
        return [*self.scaling, *self.masters, *self.inner]

    def load(self, store: Any, optimizer: keras.Optimizer) -> None:
        """Takes over what a file has, each of the three parts as a whole or not at all.

        The file may come from a bare optimizer, which has only the last part, or from
        weights in another dtype, which have other masters: those then follow their
        weights. Warns once of what else does not fit.

        Args:
            store: dict-like of arrays, by the number of the entry.
            optimizer: `FP32MasterOptimizer` with these entries.
        """
        saved = [store[str(i)] for i in range(len(store.keys()))]
        rest, inner = saved[: -len(self.inner)], saved[-len(self.inner) :]
        if not _fit(self.inner, inner):
            warnings.warn(self._left_out(optimizer, saved), stacklevel=3)
            return
        found = [(self.inner, inner)]
        count = len(self.scaling)
        scaling, masters = rest[:count], rest[count:]
        if _fit(self.scaling, scaling):
            found.append((self.scaling, scaling))
            for known in (self.masters, self.masters_of_halves):
                if _fit(known, masters):
                    found.append((known, masters))
                    break
        else:
            warnings.warn(
                f"The file is of an optimizer without keras_mp.wrap. "
                f"{optimizer.name!r} takes "
                "over its state; the loss scale stays the same, and masters follow "
                "their weights.",
                stacklevel=3,
            )
        for entries, values in found:
            for entry, value in zip(entries, values, strict=True):
                entry.assign(value)

    def _left_out(self, optimizer: keras.Optimizer, saved: list[Any]) -> str:
        """Returns a warning that nothing is loaded, and the first that differs."""
        stays = f"The state of the optimizer {optimizer.name!r} has not changed: "
        if not optimizer.built:
            return (
                f"{stays}it is not built, and has nowhere to load that in the file to. "
                "Call `optimizer.build(model.trainable_variables)` before loading."
            )
        first = ""
        for entry, value in zip(self.entries, saved, strict=False):
            if not _fits(entry, value):
                first = (
                    f" The first that differs is {entry.path!r}: {entry.dtype} of "
                    f"shape {entry.shape} here, {value.dtype} of shape "
                    f"{tuple(value.shape)} in the file."
                )
                break
        return (
            f"{stays}that in the file is of another optimizer, or of other weights. It "
            f"has {len(saved)} variables, {optimizer.name!r} has {len(self.entries)}."
            f"{first}"
        )


def saved_state(
    own: list[Any], optimizer: keras.Optimizer, master_weights: MasterWeights
) -> SavedState:
    """Returns the entries that an optimizer with FP32 masters and slots would save.

    Args:
        own: list of the variables of the `FP32MasterOptimizer`, without the inner
            optimizer's.
        optimizer: the inner optimizer.
        master_weights: `MasterWeights`.
    """
    of_masters = {id(variable) for variable in master_weights.own_variables}
    scaling = [_of(each) for each in own if id(each) not in of_masters]
    masters, masters_of_halves = [], []
    for master in master_weights.distinct:
        if isinstance(master, CompressedMaster):
            masters_of_halves.append(_of_master(master))
        elif needs_master(master.weight):
            masters_of_halves.append(_of(master.variable))
        else:
            masters.append(_of_weight(master.weight, master_weights.rounding.mode))
            continue
        masters.append(masters_of_halves[-1])
    if not masters_of_halves:
        masters = []
    inner = _of_inner(optimizer, master_weights)
    return SavedState(scaling, masters, masters_of_halves, inner)


def inner_state(optimizer: keras.Optimizer) -> list[Saved]:
    """Returns the entries of an optimizer of Keras, or of the one that is wrapped.

    In the order of the variables that it would have without compressed state.

    Args:
        optimizer: `keras.optimizers.Optimizer` that is built, wrapped or not.
    """
    if isinstance(optimizer, OptimizerProperties):
        return _of_inner(optimizer.inner_optimizer, optimizer._master_weights)
    # Keras's LossScaleOptimizer has variables of its own, of the same names.
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [_of(each) for each in inner.variables]


def _fit(entries: list[Saved], values: list[Any]) -> bool:
    return len(entries) == len(values) and all(map(_fits, entries, values))


def _fits(entry: Saved, value: Any) -> bool:
    """Compares shapes, and counters with counters: two scalars are else alike."""
    are_integers = [str(x.dtype).startswith(("int", "uint")) for x in (entry, value)]
    return entry.shape == tuple(value.shape) and len(set(are_integers)) == 1


def _of(variable: Variable) -> Saved:
    return Saved(
        variable.path,
        tuple(variable.shape),
        variable.dtype,
        lambda: ops.convert_to_tensor(variable),
        variable.assign,
    )


def _of_weight(weight: Variable, rounding: str) -> Saved:
    """Returns the entry of a weight that is its own master.

    In the model that was saved it may have been stored in 16 bits. Then the weight was
    loaded as these, and takes the master that it is a rounding of.
    """

    def assign(value: Tensor) -> None:
        master, loaded = (ops.convert_to_tensor(x, "float32") for x in (value, weight))
        for dtype in HALVES:
            half = ops.cast(loaded, dtype)
            is_exact = ops.all(ops.cast(half, "float32") == loaded)
            if is_exact and not ops.any(differs(half, master, rounding)):
                weight.assign(master)
                return

    return _of(weight)._replace(assign=assign)


def _of_master(master: CompressedMaster) -> Saved:
    return _of(master)._replace(read=lambda: master.value, assign=master.load)


def _of_slot(slot: CodedSlot) -> Saved:
    return _of(slot.codes)._replace(
        shape=slot.shape,
        dtype="float32",
        read=lambda: slot.value,
        assign=slot.assign,
    )


def _of_inner(optimizer: keras.Optimizer, master_weights: MasterWeights) -> list[Saved]:
    """Returns the inner optimizer's variables, with the slots that it does not have."""
    if not master_weights.slot_variables:
        return [_of(each) for each in optimizer.variables]
    # Keras decides about the order: by variables or by slots.
    probe = type(optimizer).from_config(optimizer.get_config())
    masters = master_weights.all
    probe.build([keras.Variable(0.0, name=f"v{i}") for i in range(len(masters))])
    own = [*master_weights.averages, *master_weights.accumulators]
    averages, accumulators = averages_and_accumulators(probe)
    of_probe = {
        id(each): _of(variable)
        for each, variable in zip((*averages, *accumulators), own, strict=True)
    }
    rule = _rule(optimizer)
    own_slots = rule.slots_of(optimizer)
    for number, of_all in enumerate(rule.slots_of(probe)):
        for each, master in zip(of_all, masters, strict=True):
            if master.slots:
                slot = _of_slot(master.slots[number])
            else:
                index = keras_internals.variable_index(optimizer, master.reference)
                slot = _of(own_slots[number][index])
            of_probe[id(each)] = slot
    known = {id(v) for v in (*own, *(slot for of_all in own_slots for slot in of_all))}
    counters = iter(v for v in optimizer.variables if id(v) not in known)
    return [
        of_probe[id(each)] if id(each) in of_probe else _of(next(counters))
        for each in probe.variables
    ]


def _rule(optimizer: keras.Optimizer) -> Rule:
    rule = rule_of(optimizer, OPTIONS_AROUND_A_RULE)
    if rule is None:
        raise ValueError(
            "Compressed optimizer state is saved by the rule of its optimizer. "
            f"Received: {optimizer}, which has none. Restore the options "
            "that it was wrapped with."
        )
    return rule
