"""The rules of the kernel: what Python says of them is what the library says."""

import keras
import pytest
from keras import optimizers
from stored_forms import RULES

from keras_mp.ops.kernels import native
from keras_mp.optimizer.rules import rule_of, slot_kinds

OPTIMIZERS = {
    **RULES,
    "centered_rmsprop": lambda: optimizers.RMSprop(centered=True),
}


def built(name):
    optimizer = OPTIMIZERS[name]()
    optimizer.build([keras.Variable([[1.0, 2.0]])])
    return optimizer


def letters(optimizer):
    """The slots as in update_rules.def: signed, unsigned, or FP32 only."""
    rule, kinds = rule_of(optimizer), slot_kinds(optimizer)
    if kinds is None:
        return "F" * len(rule.slots)
    return "".join("S" if kind.is_signed else "U" for kind in kinds)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_library_has_the_slots_of_the_rule(name):
    optimizer = built(name)
    rule = rule_of(optimizer)
    assert native.update_rules()[rule.name].slots == letters(optimizer)
    assert len(rule.slots) == len(letters(optimizer))


def test_every_rule_of_the_library_has_an_optimizer():
    names = {rule_of(built(name)).name for name in OPTIMIZERS}
    assert names == set(native.update_rules())
