"""`find_overflow` names the innermost layer, or that whose own arithmetic overflows."""

import keras
import numpy as np
import pytest

import keras_mp

L = keras.layers
X, Y = np.ones((2, 4), "float32"), np.ones((2, 1), "float32")


def times(factor, name):
    return L.Rescaling(factor, name=name)


class Block(L.Layer):
    """Its sublayers one after another; what they are called with is for a subclass."""

    def __init__(self, *sublayers, name="block"):
        super().__init__(name=name)
        self.sublayers = list(sublayers)

    def call(self, x):
        for sublayer in self.sublayers:
            x = sublayer(x)
        return x


class Residual(Block):
    def call(self, x):
        first, second = self.sublayers
        return second(first(x) + first(x))


class Scores(Block):
    def call(self, x):
        query, key, softmax = self.sublayers
        return softmax(query(x) * key(x))


class Gate(Block):
    def call(self, x):
        gate, up, down = self.sublayers
        return down(keras.ops.relu(gate(x)) * up(x))


class Before(Block):
    def call(self, x):
        return super().call(x * 1e5)


class After(Block):
    def call(self, x):
        return super().call(x) * 1e5


class Keywords(Block):
    """It gives what it has computed by a name, in a structure."""

    def call(self, x):
        (pair,) = self.sublayers
        return pair(x, more={"of": [x * 1e5]})


class Pair(L.Layer):
    def call(self, x, more=None):
        return keras.ops.where(more["of"][0] > 1e9, x, x)


class InATable(L.Layer):
    """Its sublayers are in lists and dicts."""

    def __init__(self, name="block"):
        super().__init__(name=name)
        self.table = {"a": [times(1.0, "a")], "b": (times(1e5, "b"), times(1.0, "c"))}

    def call(self, x):
        for sublayer in (*self.table["a"], *self.table["b"]):
            x = sublayer(x)
        return x


def fine(name):
    return L.Dense(4, name=name)


# The layer, and the path that is named.
CASES = {
    "a-sublayer": (
        lambda: Block(fine("a"), times(1e6, "large"), fine("b")),
        "block/large",
    ),
    "at-any-depth": (
        lambda: Block(Block(Block(fine("a"), times(1e6, "large"), name="c"), name="d")),
        "block/d/c/large",
    ),
    "residual-sum": (
        lambda: Residual(times(6e4, "a"), fine("b")),
        "block",
    ),
    "scores": (
        lambda: Scores(times(300.0, "q"), times(300.0, "k"), L.Softmax(name="softmax")),
        "block",
    ),
    "gate": (
        lambda: Gate(times(300.0, "gate"), times(300.0, "up"), fine("down")),
        "block",
    ),
    "gate-in-a-block": (
        lambda: Block(
            Gate(times(300.0, "gate"), times(300.0, "up"), fine("down"), name="mlp")
        ),
        "block/mlp",
    ),
    "before-the-first": (lambda: Before(fine("a")), "block"),
    "after-the-last": (lambda: After(fine("a"), times(1.0, "b")), "block"),
    "by-a-keyword": (lambda: Keywords(Pair(name="pair")), "block"),
    "in-lists-and-dicts": (InATable, "block/b"),
    "a-layer-called-twice": (
        lambda: Block(*2 * [times(300.0, "twice")], fine("a")),
        "block/twice",
    ),
    # What another precision hands over is finite, and the layer that casts it is named.
    "by-a-cast": (
        lambda: Block(
            L.Rescaling(1e6, name="fp32", dtype="float32"),
            times(1.0, "fp16"),
            fine("a"),
        ),
        "block/fp16",
    ),
}


class Model(keras.Model):
    def __init__(self, block):
        super().__init__(name="model")
        self.block, self.head = block, L.Dense(1, name="head")

    def call(self, x):
        return self.head(self.block(x))


def subclassed(block):
    model = Model(block)
    model(X)
    return model


def functional(block):
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Dense(1, name="head")(block(inputs)))


@pytest.mark.xslow_except("*-functional-mixed_float16", "*-subclassed-float16")
@pytest.mark.slow_except("*-functional-mixed_float16")
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
@pytest.mark.parametrize("make", [functional, subclassed])
@pytest.mark.parametrize("name", CASES)
# NumPy converts the 1e5 of a test to FP16.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_the_layer_that_computes_it_is_named(name, make, policy):
    keras.config.set_dtype_policy(policy)
    make_block, path = CASES[name]
    model = make(make_block())
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse")
    found = keras_mp.find_overflow(model, X, Y)
    assert (found.path, found.where) == (path, "forward")
    assert np.isfinite(found.largest)


class OwnCode(Model):
    def call(self, x):
        return self.head(self.block(x) * 1e5)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_the_model_is_named_where_its_own_code_overflows():
    keras.config.set_dtype_policy("mixed_float16")
    model = OwnCode(times(1.0, "block"))
    model(X)
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse")
    assert keras_mp.find_overflow(model, X, Y).path == "model"
