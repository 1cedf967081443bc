"""Random optimizers with random options: remainders hold the bits of FP32 masters.

By the kernel: in plain TensorFlow Keras itself updates FP32 masters.
"""

import keras
import numpy as np
import oracle
import pytest
from keras import optimizers
from older_versions import needs
from stored_forms import wrap

pytestmark = needs("TensorFlow", 2, 20)  # with which the native library begins
MODES = ("eager", "graph", "xla")
# Learning rates and decays that are no powers of two: each product of them is rounded.
RATES = (3e-3, 1e-2, 7e-4)
DECAYS = (None, 0.05, 4e-3)
KINDS = {
    "sgd": lambda rate, **options: optimizers.SGD(rate, **options),
    "nesterov": lambda rate, **options: optimizers.SGD(rate, 0.9, True, **options),
    "adam": lambda rate, **options: optimizers.Adam(rate, **options),
    "adamw": lambda rate, **options: optimizers.AdamW(
        rate, **{**options, "weight_decay": options["weight_decay"] or 0.02}
    ),
    "amsgrad": lambda rate, **options: optimizers.Adam(rate, amsgrad=True, **options),
    "nadam": lambda rate, **options: optimizers.Nadam(rate, **options),
    "adamax": lambda rate, **options: optimizers.Adamax(rate, **options),
    "lion": lambda rate, **options: optimizers.Lion(rate / 10, **options),
    "adagrad": lambda rate, **options: optimizers.Adagrad(rate, **options),
    "adadelta": lambda rate, **options: optimizers.Adadelta(rate, **options),
    "rmsprop": lambda rate, **options: optimizers.RMSprop(rate, **options),
    "centered": lambda rate, **options: optimizers.RMSprop(
        rate, momentum=0.5, centered=True, **options
    ),
    "ftrl": lambda rate, **options: optimizers.Ftrl(rate, **options),
    "lamb": lambda rate, **options: optimizers.Lamb(rate, **options),
    "adafactor": lambda rate, **options: optimizers.Adafactor(rate, **options),
}
CLIPPING = (
    {},
    {"clipnorm": 0.5},
    {"global_clipnorm": 0.7},
    {"clipvalue": 0.25},
)
AVERAGES = (
    {},
    {"use_ema": True},
    {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
)
SHAPES = (("kernel", (7, 11)), ("filters", (3, 3, 2, 5)), ("bias", (65,)))


def draw(seed):
    """Returns a function that makes one optimizer, and whether the bias is decayed."""
    random = np.random.default_rng(seed)

    def pick(choices):
        return choices[int(random.integers(len(choices)))]

    kind = pick(list(KINDS))
    options = {"weight_decay": pick(DECAYS), **pick(CLIPPING), **pick(AVERAGES)}
    if pick((False, True)):
        options["gradient_accumulation_steps"] = pick((2, 3))
    rate = pick(RATES)
    excluded = ["bias"] if pick((False, True)) else []

    def make():
        optimizer = KINDS[kind](rate, **options)
        if optimizer.weight_decay and excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer

    shown = {name: value for name, value in options.items() if value is not None}
    return make, f"{kind} {shown} excluded={excluded}"


def large_weights(seed):
    """Returns FP16 weights that stay above 2**-14, where a remainder is exact."""
    random = np.random.default_rng(seed)
    return [
        keras.Variable(
            random.choice([-1.0, 1.0], shape) * random.uniform(0.5, 2.0, shape),
            dtype="float16",
            name=name,
        )
        for name, shape in SHAPES
    ]


def state_after_steps(inner, seed, mode, masters):
    """Returns weights, masters, slots, averages and sums after seven steps."""
    weights = large_weights(seed)
    optimizer = wrap(inner, masters=masters)
    step = oracle.make_step(optimizer, weights, mode)
    for i in range(7):
        gradients = oracle.make_gradients(weights, seed=i)
        if i == 2:
            gradients[1].flat[0] = np.inf
        step(oracle.scaled(gradients, optimizer, "float16"))
    state = {}
    optimizer.save_own_variables(state)
    state |= {weight.name: oracle.value(weight) for weight in weights}
    return state


@pytest.mark.slow_except("graph-0", "eager-2")
@pytest.mark.xslow_except("eager-2", "graph-0", "graph-1", "graph-7", "xla-1")
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("mode", MODES)
def test_remainders_hold_the_bits_of_fp32_masters(mode, seed):
    make, name = draw(seed)
    expected = state_after_steps(make(), seed, mode, "float32")
    found = state_after_steps(make(), seed, mode, "remainders")
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        oracle.assert_same_bits(found[key], array, f"{name}: {key}")
