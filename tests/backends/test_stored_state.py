"""Masters as remainders, state in 8 bits and weights without masters."""

import keras
import numpy as np
import pytest
from backends.problems import (
    MODES,
    assert_same_bits,
    make_gradients,
    make_step,
    make_weights,
    tensors,
    value,
)
from stored_forms import RULES

import keras_mp

ALL = keras_mp.Int8State(min_size=1, min_rank=0, exclude=())
ALL_IN_4_BITS = keras_mp.Int4State(min_size=1, min_rank=0, exclude=())
FORMS = {
    "remainders": {"masters": "remainders"},
    "int8 remainders": {"masters": "int8_remainders"},
    "int8": {"state": ALL},
    "both": {"masters": "remainders", "state": ALL},
    "both in int8": {"masters": "int8_remainders", "state": ALL},
    "int8 remainders, int4": {"masters": "int8_remainders", "state": ALL_IN_4_BITS},
    "no masters": {"masters": None, "rounding": "stochastic"},
}
# XLA contracts a product and a sum into one rounding; compare test_optimizers.py.
COMPILED = 5 * 20 * 2.0**-24 * 4


# Two updates, each of the mean of two steps, and averages that are written to masters.
OPTIONS = {
    "gradient_accumulation_steps": 2,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 2,
}


def train(mode, options=None, inner=None, **forms):
    """Five steps, the third of which overflows."""
    weights = make_weights("float16")
    inner = inner or keras.optimizers.Adam(0.01, **(options or {}))
    optimizer = keras_mp.wrap(inner, 64, **forms)
    optimizer.scale_loss(0.0)
    step = make_step(optimizer, weights, mode)
    for seed in range(5):
        gradients = [64 * g for g in make_gradients(seed)]
        if seed == 2:
            gradients[1][0] = np.inf
        step(tensors(gradients, "float16"))
    assert value(optimizer.skipped_steps) == 1
    return optimizer, weights


def masters_of(optimizer):
    return [np.asarray(master) for master in optimizer.master_weights]


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "options"])
@pytest.mark.parametrize("mode", MODES)
def test_remainders_are_masters(mode, options):
    expected, _ = train(mode, options)
    found, weights = train(mode, options, **FORMS["remainders"])
    atol = COMPILED if mode == "jit" else 2.0**-22
    for one, other in zip(masters_of(found), masters_of(expected), strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)
    for weight, master in zip(weights, masters_of(found), strict=True):
        assert_same_bits(value(weight), master.astype("float16"))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_form(rule):
    expected, _ = train("eager", inner=RULES[rule]())
    found, _ = train("eager", inner=RULES[rule](), masters="remainders")
    for one, other in zip(masters_of(found), masters_of(expected), strict=True):
        # Keras may round a product or a power otherwise; weights are below 4.
        np.testing.assert_allclose(one, other, rtol=0, atol=5 * 20 * 2.0**-22)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_repeatable_and_near_fp32(form, mode):
    """Adam moves at most 0.01 a step; 8 bits change a fourth of that at most, 4 all."""
    (one, weights), (other, others) = (train(mode, **FORMS[form]) for _ in range(2))
    for mine, same in zip(weights, others, strict=True):
        assert_same_bits(value(mine), value(same))
    reference, _ = train(mode)
    for mine, exact in zip(masters_of(one), masters_of(reference), strict=True):
        share = 1 if form.endswith("int4") else 1 / 4
        atol = 4 * (0.01 * share + 2.0**-10)
        np.testing.assert_allclose(mine, exact, rtol=0, atol=atol)
    for mine, same in zip(one.variables, other.variables, strict=True):
        assert_same_bits(value(mine), value(same), mine.path)


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_is_excluded_from_decay(form):
    weights = make_weights("float16")
    start = value(weights[0])
    inner = keras.optimizers.SGD(0.5, weight_decay=1.0)
    optimizer = keras_mp.wrap(inner, 1, **FORMS[form])
    optimizer.exclude_from_weight_decay(var_list=[weights[0]])
    optimizer.apply([keras.ops.zeros(w.shape, "float16") for w in weights], weights)
    assert_same_bits(value(weights[0]), start)
    assert np.all(value(weights[1]) < 0.6 * value(make_weights("float16")[1]))


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_form_is_loaded_into_fp32(form):
    saved, _ = train("eager", **FORMS[form])
    store = {}
    saved.save_own_variables(store)
    loaded = keras_mp.wrap(keras.optimizers.Adam(0.01), 64)
    loaded.build(make_weights("float16"))
    loaded.load_own_variables(store)
    for one, other in zip(masters_of(loaded), masters_of(saved), strict=True):
        assert_same_bits(one, other)
