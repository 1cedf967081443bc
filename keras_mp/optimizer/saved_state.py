"""Compressed state as it is saved: in the form and order of FP32 masters and slots.

So a file that was saved with one form is loaded into any other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.state.kept import create_kept
from keras_mp.optimizer.state.masters import (
    RemainderMaster,
    WeightAsMaster,
    reference_of,
)
from keras_mp.optimizer.state.slots import EightBitSlot
from keras_mp.optimizer.update.fused_rules import (
    AROUND_A_RULE,
    FusedRule,
    rule_of,
)


class Saved(NamedTuple):
    """One entry of a file.

    Attributes:
        read: returns the tensor that is saved.
        assign: takes the array that was saved.
    """

    read: Callable[[], Any]
    assign: Callable[[Any], None]


def saved_entries(
    own: list[Any], optimizer: Any, master_weights: MasterWeights
) -> list[Saved]:
    """Returns the entries that an optimizer with FP32 masters and slots would save.

    Args:
        own: list of the variables of the `FP32MasterOptimizer`, without those of the
            inner optimizer.
        optimizer: the inner optimizer.
        master_weights: `MasterWeights`.
    """
    parts = {id(part) for part in master_weights.slot_variables}
    remainders = {
        id(master.remainder): master
        for master in master_weights.stored
        if isinstance(master, RemainderMaster)
    }
    entries = [
        _of_master(remainders[id(each)]) if id(each) in remainders else _of(each)
        for each in own
        if id(each) not in parts
    ]
    entries += [
        _of_master(each)
        for each in master_weights.stored
        if isinstance(each, WeightAsMaster)
    ]
    if not master_weights.slots:
        return [*entries, *map(_of, optimizer.variables)]
    return [*entries, *_of_inner(optimizer, master_weights)]


def _of(variable: Any) -> Saved:
    return Saved(lambda: ops.convert_to_tensor(variable), variable.assign)


def _of_master(master: RemainderMaster | WeightAsMaster) -> Saved:
    return Saved(lambda: master.value, master.load)


def _of_slot(slot: EightBitSlot) -> Saved:
    return Saved(lambda: slot.value, slot.assign)


def _of_inner(optimizer: Any, master_weights: MasterWeights) -> list[Saved]:
    """Returns the inner optimizer's variables, with the slots that it does not have."""
    # Keras decides about the order: by variables or by slots.
    probe = type(optimizer).from_config(optimizer.get_config())
    masters = master_weights.all
    probe.build([keras.Variable(0.0, name=f"v{i}") for i in range(len(masters))])
    kept = master_weights.kept.variables
    of_probe = {
        id(each): _of(own)
        for each, own in zip(
            create_kept(probe, masters, ()).variables, kept, strict=True
        )
    }
    own_slots = _rule(optimizer).slots
    for number, of_all in enumerate(_rule(probe).slots):
        for each, master in zip(of_all, masters, strict=True):
            if id(master) in master_weights.slots:
                slot = _of_slot(master_weights.slots[id(master)][number])
            else:
                index = keras_internals.variable_index(optimizer, reference_of(master))
                slot = _of(own_slots[number][index])
            of_probe[id(each)] = slot
    known = {id(v) for v in (*kept, *(slot for of_all in own_slots for slot in of_all))}
    counters = iter(v for v in optimizer.variables if id(v) not in known)
    return [
        of_probe[id(each)] if id(each) in of_probe else _of(next(counters))
        for each in probe.variables
    ]


def _rule(optimizer: Any) -> FusedRule:
    rule = rule_of(optimizer, AROUND_A_RULE)
    if rule is None:
        raise ValueError(
            "Optimizer state in 8 bits is saved by the rule of its optimizer. "
            f"Received: {optimizer}, which has none. Leave its options as they were "
            "when it was wrapped."
        )
    return rule
