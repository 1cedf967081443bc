"""The rules of the kernel: what Python says of them is what the library says."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers
from stored_forms import RULES, wrap

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


# A large gradient among small ones, which some rules limit. The second moment of
# amsgrad falls soon after it, and the largest one does not.
GRADIENTS = (1.0, 64.0, 2.0**-6)
MAKE = RULES | {"amsgrad": lambda: optimizers.Adam(0.1, amsgrad=True, beta_2=0.25)}


@pytest.mark.parametrize("name", RULES)
def test_the_formula_of_a_rule_is_the_step_of_the_bare_optimizer(name, monkeypatch):
    """Without the library, which takes the step of compressed masters otherwise."""
    monkeypatch.setattr(native, "library", lambda: None)
    make = MAKE[name]
    bare, ours = make(), wrap(make(), masters="remainders", loss_scale=64.0)
    master = keras.Variable([[0.5, -0.25], [1.0, 2.0]], dtype="float32")
    weight = keras.Variable(master, dtype="float16")
    slope = tf.constant([[1.0, -2.0], [0.5, 1.0]])
    for size in GRADIENTS:
        bare.apply([size * slope], [master])
        ours.apply([tf.cast(64 * size * slope, "float16")], [weight])
    # The weight is its master, rounded to FP16 once: 2^-11 of it. The rest is for three
    # steps in FP32, which take a few operations in another order, and cancel.
    np.testing.assert_allclose(weight, master, rtol=2.0**-11, atol=2.0**-20)
