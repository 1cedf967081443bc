"""Every layer of a model once: its path, its kind, and what is inside."""

import copy

import keras
import numpy as np
import pytest

import keras_mp
from keras_mp import layers as mp_layers
from keras_mp.precision.model_index import ModelIndex, numbered

L = keras.layers


@keras.saving.register_keras_serializable("model_index")
class Block(L.Layer):
    """Makes sublayers that it does not name, one of them when it is built."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norm = L.LayerNormalization()
        self.mlp = keras.Sequential([L.Dense(8, "gelu"), L.Dense(4)])
        self.parts = [L.Dense(4), L.Dense(4, name="given")]

    def build(self, shape):
        self.last = L.Dense(4)
        for each in (self.norm, self.mlp, *self.parts, self.last):
            each.build(shape)
        self.built = True

    def call(self, x):
        for each in self.parts:
            x = x + each(self.mlp(self.norm(x)))
        return self.last(x)

    def compute_output_shape(self, shape):
        return shape

    def get_config(self):  # without it Keras saves no name that is one of `options`
        return {**super().get_config(), "name": self.name}


def nested():
    """A Bidirectional, a TimeDistributed, a block of code, and a model."""
    inputs = keras.Input((3, 4), name="x")
    x = L.Bidirectional(L.GRU(2, return_sequences=True))(inputs)
    x = Block()(L.TimeDistributed(L.Dense(4))(x))
    inner = keras.Model(y := keras.Input((3, 4), name="y"), L.Dense(4)(y), name="net")
    x = Block(name="given")(inner(x) * 2.0)
    return keras.Model(inputs, L.Dense(1)(L.GRU(4)(x)))


BLOCK = {
    "": "code",
    "/layer_normalization": "leaf",
    "/sequential": "graph",
    "/sequential/input_layer": "input",
    "/sequential/dense": "leaf",
    "/sequential/dense_1": "leaf",
    "/dense": "leaf",
    "/given": "leaf",
    "/dense_1": "leaf",
}
NESTED = {
    "functional": "graph",
    "x": "input",
    "bidirectional": "unit",
    "bidirectional/forward_gru": "unit",
    "bidirectional/forward_gru/gru_cell": "leaf",
    "bidirectional/backward_gru": "unit",
    "bidirectional/backward_gru/gru_cell": "leaf",
    "time_distributed": "unit",
    "time_distributed/dense": "leaf",
    **{f"block{path}": kind for path, kind in BLOCK.items()},
    "net": "graph",
    "net/y": "input",
    "net/dense": "leaf",
    **{f"given{path}": kind for path, kind in BLOCK.items()},
    "gru": "unit",
    "gru/gru_cell": "leaf",
    "dense": "leaf",
}


def kinds(model):
    return {path: entry.kind for path, entry in ModelIndex(model).items()}


def test_every_layer_has_a_path_and_a_kind():
    model = nested()
    index = ModelIndex(model)
    assert kinds(model) == NESTED
    assert len(index) == len(index.layers) == len(NESTED)
    assert list(index.operations) == ["multiply"]
    for path, entry in index.items():
        assert entry.path == path and index.of(entry.layer) is entry
    assert index["functional"].layer is model
    assert str(index["block/dense_1"]) == "block/dense_1 (Dense)"
    inside = [entry.path for entry in index["net"].children]
    assert inside == ["net/y", "net/dense"]
    cells = {p: e.recurrent.path for p, e in index.items() if e.recurrent}
    forward, backward = (f"bidirectional/{x}_gru" for x in ("forward", "backward"))
    assert cells == {f"{p}/gru_cell": p for p in (forward, backward, "gru")}


def made_again(model):
    return nested()


def loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


def converted(model):
    return keras_mp.convert(model)


def converted_and_back(model):
    return keras_mp.to_keras(keras_mp.convert(model))


COPIES = {
    "made again": made_again,
    "cloned": keras.models.clone_model,
    "deep": copy.deepcopy,
    "loaded": loaded,
    "converted": converted,
    "converted and back": converted_and_back,
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_has_the_same_paths(name, tmp_path):
    model = nested()
    make = COPIES[name]
    other = make(model, tmp_path) if make is loaded else make(model)
    if name != "cloned":  # which names an InputLayer after its tensor
        assert kinds(other) == NESTED
    named = [p for p, kind in NESTED.items() if kind != "input"]
    assert [p for p, kind in kinds(other).items() if kind != "input"] == named


class OwnCall(keras.Sequential):
    def call(self, x):
        return 2 * super().call(x)


class Plain(keras.Model):
    def __init__(self):
        x = keras.Input((4,))
        super().__init__(x, L.Dense(4)(x))


class OwnModel(Plain):
    """Functional, with a call of its own."""

    def call(self, x):
        return 2 * super().call(x)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, x):
        return self.dense(x)


def built(model):
    model(np.ones((2, 4), "float32"))
    return model


KINDS = {
    "sequential": (lambda: keras.Sequential([keras.Input((4,)), L.Dense(4)]), "graph"),
    "sequential, built later": (
        lambda: built(keras.Sequential([L.Dense(4)])),
        "graph",
    ),
    "sequential, not built": (lambda: keras.Sequential([L.Dense(4)]), "graph"),
    "sequential with a call": (lambda: built(OwnCall([L.Dense(4)])), "code"),
    "functional with a call": (OwnModel, "code"),
    "functional, a subclass": (Plain, "graph"),
    "subclassed": (lambda: built(Subclassed()), "code"),
    "attention": (lambda: L.MultiHeadAttention(2, 2), "leaf"),
    "cells": (lambda: L.RNN([L.LSTMCell(2), L.GRUCell(2)]), "unit"),
    "our recurrent layer": (lambda: mp_layers.LSTM(2), "unit"),
    "wrapper": (lambda: L.SpectralNormalization(L.Dense(2)), "unit"),
    "input": (lambda: L.InputLayer((4,)), "input"),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name):
    make, kind = KINDS[name]
    layer = make()
    assert next(iter(ModelIndex(layer).values())).kind == kind


def test_all_of_a_stack_of_cells_belongs_to_its_recurrent_layer():
    layer = L.RNN([L.LSTMCell(2), L.GRUCell(2)], name="rnn")
    index = ModelIndex(layer)
    assert list(index) == [
        "rnn",
        "stacked_rnn_cells",
        "stacked_rnn_cells/lstm_cell",
        "stacked_rnn_cells/gru_cell",
    ]
    assert [entry.recurrent for entry in index.values()] == [None, *3 * [index["rnn"]]]


class Shares(L.Layer):
    def __init__(self, shared, **options):
        super().__init__(**options)
        self.shared = shared

    def call(self, x):
        return x + self.shared(x)


def test_a_shared_layer_stands_once_and_is_a_child_of_all_that_hold_it():
    dense = L.Dense(4)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, Shares(dense)(Shares(dense)(inputs)))
    index = ModelIndex(model)
    assert [*index][2:] == ["shares", "shares/dense", "shares_1"]
    assert index["shares"].children == index["shares_1"].children


class Two(L.Layer):
    def __init__(self):
        super().__init__(name="two")
        self.a, self.b = L.Dense(1, name="same"), L.Dense(1, name="same")


# The names of layers side by side, given or not, and what they are in a path.
NAMES = {
    "given": (lambda: [L.Dense(1, name="mine_3")], ["mine_3"]),
    "made": (lambda: [L.Dense(1), L.Dense(1)], ["dense", "dense_1"]),
    "two classes": (
        lambda: [L.Dense(1), L.Conv1D(1, 1), L.Dense(1)],
        ["dense", "conv1d", "dense_1"],
    ),
    "a subclass": (lambda: [Block(), Block()], ["block", "block_1"]),
    "ours": (lambda: [mp_layers.LSTM(2), mp_layers.LSTM(2)], ["lstm", "lstm_1"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_keras_has_made_lose_the_number_of_the_process(name):
    make, expected = NAMES[name]
    for _ in range(2):
        outer = L.Layer(name="outer")
        outer.parts = make()
        found = [p for p in ModelIndex(outer) if p.count("/") == 0][1:]
        assert found == expected


def test_two_layers_of_one_name_have_two_paths():
    assert list(ModelIndex(Two())) == ["two", "same", "same (2)"]
    assert numbered(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


def test_an_index_makes_no_layer():
    model = nested()
    before = keras.backend.get_uid("functional")
    ModelIndex(model)
    assert keras.backend.get_uid("functional") == before + 1
