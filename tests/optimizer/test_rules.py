"""The rules of the kernel: what Python says of them is what the library says."""

import keras
import pytest
from keras import optimizers
from stored_forms import RULES

from keras_mp.ops.kernels import native
from keras_mp.optimizer.rules import rule_of

OPTIMIZERS = {
    **RULES,
    "centered_rmsprop": lambda: optimizers.RMSprop(centered=True),
}


def built(name):
    optimizer = OPTIMIZERS[name]()
    optimizer.build([keras.Variable([[1.0, 2.0]])])
    return optimizer


# Of `Slot.is_signed`, in update_rules.def.
LETTERS = {True: "S", False: "U", None: "F"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_library_has_the_slots_of_the_rule(name):
    rule = rule_of(OPTIMIZERS[name]())
    letters = "".join(LETTERS[slot.is_signed] for slot in rule.slots)
    assert native.update_rules()[rule.name].slots == letters


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_has_the_slots_of_the_rule(name):
    optimizer = built(name)
    rule = rule_of(optimizer)
    found = [slots[0] for slots in rule.slots_of(optimizer)]
    assert {id(slot) for slot in found} <= {id(v) for v in optimizer.variables}
    assert len(found) == len(rule.slots)
    coded = [slot.name for slot in rule.slots if slot.is_signed is not None]
    for variable, name in zip(found, coded, strict=False):
        assert variable.path.endswith(name)


def test_every_rule_of_the_library_has_an_optimizer():
    names = {rule_of(make()).name for make in OPTIMIZERS.values()}
    assert names == set(native.update_rules())
