"""Which layers leave FP16 for the gradients, on errors given by hand."""

import math

import keras
import pytest

from keras_mp.precision.decide import Choice
from keras_mp.precision.layer_table import LayerRow
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.sensitivity import (
    Group,
    groups_of,
    remembered,
    widen_for_gradients,
)

L = keras.layers
TOLERANCE = 0.02  # of four layers each may have 0.005, and two together 0.00707
COST = {
    "float16": 1.0,
    "float16_matmul": 0.5,
    "scaled_float16_matmul": 0.25,
}
# The code of b around b/a and b/c, which can multiply; d stands beside it.
GROUPS = (
    Group(("b", "b/a", "b/c"), (Group(("b",)), Group(("b/a",)), Group(("b/c",)))),
    Group(("d",)),
)
NUMBERS = {
    path: LayerRow(path, has_matmul=path.startswith("b/")) for path in GROUPS[0].paths
} | {"d": LayerRow("d")}


def measured(errors):
    """Returns a function of modes: the errors of layers add as squares."""

    def error_of(modes):
        narrow = {path: mode for path, mode in modes.items() if mode != "float32"}
        return math.hypot(*(errors.get(p, 0.0) * COST[w] for p, w in narrow.items()))

    return error_of


# Name of the case: the error of each layer in FP16, and what leaves FP16.
CASES = {
    "none": ({}, {}),
    "as much as each may have": (dict.fromkeys(NUMBERS, 0.005), {}),
    "one layer": ({"d": 0.006}, {"d": "float32"}),
    "one inside a group": ({"b": 0.1}, {"b": "float32"}),
    "products are enough": ({"b/a": 0.0099}, {"b/a": "float16_matmul"}),
    "scaled products are": ({"b/a": 0.0199}, {"b/a": "scaled_float16_matmul"}),
    "FP32 is": ({"b/a": 0.0201}, {"b/a": "float32"}),
    "one that is not finite": ({"b/c": math.inf}, {"b/c": "float32"}),
    "not those beside it": ({"b/a": 0.008, "b/c": 0.004}, {"b/a": "float16_matmul"}),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_that_leave_fp16(name):
    errors, expected = CASES[name]
    error_of = measured(errors)
    found = widen_for_gradients(GROUPS, NUMBERS, {}, error_of, TOLERANCE)
    assert {path: choice.mode for path, choice in found.items()} == expected
    modes = dict.fromkeys(NUMBERS, "float16") | expected
    assert error_of(modes) <= TOLERANCE / 2


def test_a_group_within_its_share_is_tried_once():
    tried = []

    def error_of(modes):
        tried.append(dict(modes))
        return 0.0

    widen_for_gradients(GROUPS, NUMBERS, {}, error_of, TOLERANCE)
    assert tried == [
        {"b": "float16", "b/a": "float16", "b/c": "float16"},
        {"d": "float16"},
    ]


def test_choices_stay_and_are_tried_as_they_are():
    before = {path: Choice("float32", "range") for path in ("b", "d")}
    before["b/a"] = Choice("float16_matmul", "range")
    tried = []

    def error_of(modes):
        tried.append(dict(modes))
        return measured({"b/a": 0.02})(modes)

    found = widen_for_gradients(GROUPS, NUMBERS, before, error_of, TOLERANCE)
    assert found["b"] == before["b"] and found["d"] == before["d"]
    assert found["b/a"] == Choice(
        "scaled_float16_matmul",
        "gradient error 1.00% from float16_matmul in only this layer",
    )
    assert {"d": "float32"} not in tried  # it brings no error in
    assert before["b/a"].mode == "float16_matmul"


def test_what_was_measured_is_remembered():
    tried = []
    error_of = remembered(lambda modes: tried.append(modes) or 0.5)
    assert error_of({"a": "float16", "b": "float32"}) == 0.5
    assert error_of({"b": "float32", "a": "float16"}) == 0.5
    assert error_of({"a": "float16"}) == 0.5
    assert tried == [{"a": "float16", "b": "float32"}, {"a": "float16"}]


class Block(L.Layer):
    def __init__(self, shared, **options):
        super().__init__(**options)
        self.dense, self.shared = L.Dense(4, name="dense"), shared

    def call(self, x):
        return self.shared(self.dense(x)) + x


def test_groups_of_a_model():
    shared = L.Dense(4, name="shared")
    inner = keras.Sequential([L.Dense(4, name="p"), L.Dense(4, name="q")], name="inner")
    layers = [
        keras.Input((3, 4)),
        L.Dense(4, name="a"),
        inner,
        Block(shared, name="b"),
        Block(shared, name="c"),
        L.TimeDistributed(L.Dense(4, name="each"), name="times"),
        L.Dropout(0.1, name="not_called"),
    ]
    index = ModelIndex(keras.Sequential(layers, name="model"))
    called = {
        path: LayerRow(path)
        for path, entry in index.items()
        if entry.kind not in ("graph", "input") and path != "not_called"
    }
    b = (Group(("b",)), Group(("b/dense",)), Group(("b/shared",)))
    c = (Group(("c",)), Group(("c/dense",)))
    assert groups_of(index, called) == [
        Group(("a",)),
        Group(("inner/p",)),
        Group(("inner/q",)),
        Group(("b", "b/dense", "b/shared"), b),
        Group(("c", "c/dense"), c),
        Group(("times",)),
    ]
