"""The rule of a plan, on numbers given by hand."""

import pytest

from keras_mp.precision.decide import decide, fp32_weights, next_mode
from keras_mp.precision.layer_table import LayerRow

LARGE = 20_000.0  # times the margin of 4 it is beyond 65,504
FINE = 16_376.0  # times 4 it is 65,504
SCALED = 2.0**14  # by it gradients are divided


def layer(path, around=(), **numbers):
    return LayerRow(path, around, **numbers)


def product(path, around=(), **numbers):
    return LayerRow(path, around, has_matmul=True, **numbers)


# Name of the case: the layers, and the modes of those that leave FP16.
CASES = {
    "nothing": ([product("a", inputs=FINE), layer("b", outputs=FINE)], {}),
    "what is returned": ([product("a", outputs=LARGE)], {"a": "float16_matmul"}),
    "what is given": ([product("a", inputs=LARGE)], {"a": "scaled_float16_matmul"}),
    "a matrix": (
        [product("a", weights=LARGE, kernels=LARGE)],
        {"a": "scaled_float16_matmul"},
    ),
    "a bias": ([product("a", weights=LARGE)], {"a": "float16_matmul"}),
    "a gradient that a small loss scale mends": (
        [product("a", gradients=FINE * SCALED), layer("b", gradients=LARGE)],
        {},
    ),
    "a gradient": (
        [product("a", gradients=LARGE * SCALED), layer("b", gradients=LARGE * SCALED)],
        {"a": "scaled_float16_matmul", "b": "float32"},
    ),
    "no products": ([layer("a", outputs=LARGE)], {"a": "float32"}),
    "the code around, and not what is beside": (
        [product("b/a", ("b",), outputs=LARGE), layer("b/c", ("b",)), layer("b")],
        {"b/a": "float16_matmul", "b": "float32"},
    ),
    "nothing inside": (
        [product("b/a", ("b",)), layer("b", outputs=LARGE)],
        {"b": "float32"},
    ),
    "the code around that multiplies": (
        [layer("b/a", ("b",), outputs=LARGE), product("b")],
        {"b/a": "float32", "b": "float16_matmul"},
    ),
    "a model around them is no code": (
        [product("a", outputs=LARGE), product("b")],
        {"a": "float16_matmul"},
    ),
    "both blocks around a shared layer": (
        [layer("b/a", ("b", "c"), inputs=LARGE), layer("b"), layer("c")],
        {"b/a": "float32", "b": "float32", "c": "float32"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_modes_that_follow_from_numbers(name):
    numbers, expected = CASES[name]
    choices = decide(numbers, margin=4.0, loss_scale=1 / SCALED)
    assert {path: choice.mode for path, choice in choices.items()} == expected


def test_a_reason_has_its_number():
    choices = decide(
        [product("a", outputs=1.5e5, inputs=2.0)], margin=1.0, loss_scale=1.0
    )
    assert choices["a"].reason == "outputs up to 1.5e+05"


def test_weights_that_fp16_does_not_hold():
    numbers = [
        layer("large", weights=LARGE, has_half_weights=True),
        layer("fine", weights=FINE, has_half_weights=True),
        layer("in FP32", weights=LARGE),
    ]
    assert fp32_weights(numbers, margin=4.0) == ["large"]
    assert fp32_weights(numbers, margin=5.0) == ["large", "fine"]


def test_the_order_of_modes():
    ladder, plain = product("a"), layer("b")
    modes = ["float16", "float16_matmul", "scaled_float16_matmul", "float32", None]
    assert [next_mode(ladder, mode) for mode in modes[:-1]] == modes[1:]
    assert [next_mode(plain, mode) for mode in ("float16", "float32")] == [
        "float32",
        None,
    ]
