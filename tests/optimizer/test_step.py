"""Which optimizers are updated in one pass, and that nothing else changes by it.

That the numbers are those of the bare optimizer is tested in test_optimizers.py.
"""

import inspect

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers
from older_versions import needs

import keras_mp
from keras_mp.keras_internals import KERAS
from keras_mp.optimizer import rules
from keras_mp.optimizer.inner_optimizer import class_of, needs_the_sum, touched_rows

pytestmark = needs("TensorFlow", 2, 20)  # with which the native library begins
SHAPES = (("kernel", (3, 2)), ("bias", (2,)))


class MySGD(optimizers.SGD):
    """A subclass may override anything."""


FTRL_OPTIONS = {
    "initial_accumulator_value": 0.5,
    "l1_regularization_strength": 0.25,
    "l2_regularization_strength": 0.5,
    "l2_shrinkage_regularization_strength": 0.125,
    "beta": 0.5,
}
FUSED = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(0.1, clipvalue=0.5),
    "amsgrad": lambda: optimizers.Adam(0.1, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.1, global_clipnorm=1.0),
    "nadam": lambda: optimizers.Nadam(0.1),
    "adamax": lambda: optimizers.Adamax(0.1),
    "lion": lambda: optimizers.Lion(0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.2),
    "adadelta": lambda: optimizers.Adadelta(0.1),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "ftrl_options": lambda: optimizers.Ftrl(0.1, **FTRL_OPTIONS),
    "rmsprop": lambda: optimizers.RMSprop(0.1),
    "rmsprop_momentum": lambda: optimizers.RMSprop(0.1, momentum=0.9),
    "rmsprop_centered": lambda: optimizers.RMSprop(0.1, centered=True),
    "rmsprop_all": lambda: optimizers.RMSprop(0.1, momentum=0.9, centered=True),
    "lamb": lambda: optimizers.Lamb(0.1, weight_decay=0.1),
    "adafactor": lambda: optimizers.Adafactor(0.1, relative_step=False),
    "schedule": lambda: optimizers.SGD(
        optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), weight_decay=0.1
    ),
}
NOT_FUSED = {
    "subclass": lambda: MySGD(0.1),
    "ftrl_of_another_power": lambda: optimizers.Ftrl(0.1, learning_rate_power=-0.75),
    "weight-decay-of-a-tensor": lambda: optimizers.Adam(
        0.1, weight_decay=tf.constant(0.1)
    ),
    "step-of-an-instance": lambda: with_step_of_its_own(optimizers.SGD(0.1)),
}
# With options around any rule: gradients are unscaled before the kernel.
AROUND = {
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=1.0),
    "ema": lambda: optimizers.SGD(0.1, use_ema=True),
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


def with_step_of_its_own(optimizer):
    optimizer.update_step = lambda gradient, variable, rate: variable.assign(gradient)
    return optimizer


def ops_of_a_step(optimizer, weights, gradients):
    """The types of the ops in the graph of one step, those in branches included."""

    @tf.function
    def step():
        optimizer.apply(gradients, weights)

    graph = step.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return [node.op for node in nodes]


def parts(optimizer, weights, gradients):
    """Which parts a step has, each in one call for all its variables."""
    ops = ops_of_a_step(optimizer, weights, gradients)
    names = {
        "KerasMp>UpdateVariables": "fused",
        "KerasMp>UnscaleGradients": "inner",  # or unscaled for an option
    }
    found = [names[op] for op in ops if op in names]
    assert len(found) == len(set(found))
    return set(found)


def wrapped(make, shapes=SHAPES, dtype="float16"):
    weights = oracle.make_weights(dtype, shapes)
    optimizer = keras_mp.wrap(make(), loss_scale=8)
    optimizer.build(weights)
    optimizer.scale_loss(0.0)
    return optimizer, weights


def ones_like(weights, dtype="float16"):
    return [tf.ones(weight.shape, dtype) for weight in weights]


@pytest.mark.slow_except(
    "sgd",
    "adam",
    "nadam",
    "lamb",
    "adafactor",
    "ftrl_of_another_power",
    "weight-decay-of-a-tensor",
)
@pytest.mark.parametrize("name", [*FUSED, *NOT_FUSED])
def test_the_optimizers_that_are_fused(name):
    optimizer, weights = wrapped({**FUSED, **NOT_FUSED}[name])
    expected = {"fused"} if name in FUSED else {"inner"}
    assert parts(optimizer, weights, ones_like(weights)) == expected


@pytest.mark.parametrize("name", AROUND)
def test_options_around_a_rule_leave_it_to_the_kernel(name):
    optimizer, weights = wrapped(AROUND[name])
    expected = {"fused", "inner"}
    assert parts(optimizer, weights, ones_like(weights)) == expected
    # Keras updates all variables, if the kernel does not take one of them.
    optimizer, weights = wrapped(AROUND[name])
    weights[0].constraint = keras.constraints.NonNeg()
    optimizer.master_weights[0].constraint = weights[0].constraint
    assert parts(optimizer, weights, ones_like(weights)) == {"inner"}


@pytest.mark.skipif(KERAS < (3, 13), reason="needs Keras 3.13")
@pytest.mark.parametrize(
    ("shapes", "expected"),
    {
        "vectors": ((("bias", (3,)), ("scale", (2,))), {"fused"}),
        "a matrix": (SHAPES, {"fused", "inner"}),
    }.values(),
    ids=["vectors", "a matrix"],
)
def test_muon_multiplies_only_matrices(shapes, expected):
    optimizer, weights = wrapped(lambda: optimizers.Muon(0.1), shapes)
    assert parts(optimizer, weights, ones_like(weights)) == expected


class LaterAdam(optimizers.Adam):
    """Adam of a Keras to come, with an option more."""

    def __init__(self, *args, cautious=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.cautious = cautious


LATER_OPTIONS = {
    "its own, not used": ({"cautious": False}, {"fused"}),
    "its own": ({"cautious": True}, {"inner"}),
    # Options of the base class that only its own constructor names.
    "amsgrad": ({"amsgrad": True}, {"fused"}),
    "use_ema": ({"use_ema": True}, {"fused", "inner"}),
    "accumulation": ({"gradient_accumulation_steps": 2}, {"fused", "inner"}),
}


@pytest.mark.parametrize("name", LATER_OPTIONS)
def test_an_option_that_is_not_known_is_left_to_the_optimizer(name, monkeypatch):
    options, expected = LATER_OPTIONS[name]
    known = rules._KNOWN[optimizers.Adam]
    monkeypatch.setitem(rules._KNOWN, LaterAdam, known)
    optimizer, weights = wrapped(lambda: LaterAdam(0.1, **options))
    assert parts(optimizer, weights, ones_like(weights)) == expected


class Needy(optimizers.Adam):
    """Cannot be made without arguments."""

    def __new__(cls, rate):
        return super().__new__(cls)

    def __init__(self, rate):
        super().__init__(rate)


OWN_CLASSES = {
    # As classes, functions and modules of `keras.optimizers` are named.
    name: type(name, (optimizers.Adam,), {})
    for name in ("Adam", "get", "schedules")
} | {"Needy": Needy}


@pytest.mark.parametrize("name", OWN_CLASSES)
def test_a_class_of_the_user_is_left_to_itself(name):
    kind = OWN_CLASSES[name]
    optimizer, weights = wrapped(lambda: kind(0.1))
    assert class_of(optimizer.inner_optimizer) is kind
    assert parts(optimizer, weights, ones_like(weights)) == {"inner"}
    optimizer.scale_loss(0.0)
    optimizer.apply(ones_like(weights), weights)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adafactor"])
def test_a_class_of_keras_is_found(name):
    kind = getattr(optimizers, name)
    assert class_of(kind()) is kind


def add_option(monkeypatch, kind):
    """Gives a class of Keras an option that is in use, as a later version may."""
    constructor = kind.__init__

    def later(self, *args, later_option=False, **kwargs):
        constructor(self, *args, **kwargs)
        self.later_option = True

    parameters = [
        *inspect.signature(constructor).parameters.values(),
        inspect.Parameter("later_option", inspect.Parameter.KEYWORD_ONLY, default=None),
    ]
    parameters.sort(key=lambda parameter: parameter.kind)
    later.__signature__ = inspect.Signature(parameters)
    monkeypatch.setattr(kind, "__init__", later)


@pytest.mark.xslow_except("sgd", "adam", "lamb", "adafactor", "nadam")
@pytest.mark.slow_except("adam", "sgd", "lamb")
@pytest.mark.parametrize("name", FUSED)
def test_a_new_option_of_keras_is_left_to_the_optimizer(name, monkeypatch):
    add_option(monkeypatch, type(FUSED[name]()))
    optimizer, weights = wrapped(FUSED[name])
    assert parts(optimizer, weights, ones_like(weights)) == {"inner"}


@pytest.mark.parametrize(
    "make",
    [optimizers.SGD, optimizers.Adagrad, optimizers.Adadelta, optimizers.RMSprop],
)
def test_with_a_new_option_of_keras_any_row_may_change(make, monkeypatch):
    weight = keras.Variable(np.ones((3, 2)), dtype="float32")
    gradient = rows([3, 2])
    assert touched_rows(make(0.1), gradient, weight) is not None
    add_option(monkeypatch, make)
    assert touched_rows(make(0.1), gradient, weight) is None


@pytest.mark.parametrize("make", [optimizers.SGD, optimizers.Ftrl])
def test_with_a_new_option_of_all_optimizers_one_replica_runs_for_all(
    make, monkeypatch
):
    assert not needs_the_sum(make(0.1))
    add_option(monkeypatch, optimizers.Optimizer)
    assert needs_the_sum(make(0.1))


def test_a_constraint_is_left_to_the_optimizer():
    weight = keras.Variable(np.ones((2, 2)), dtype="float16")
    weight.constraint = keras.constraints.NonNeg()
    optimizer = keras_mp.wrap(optimizers.SGD(0.1), loss_scale=1)
    optimizer.build([weight])
    assert parts(optimizer, [weight], ones_like([weight])) == {"inner"}


def test_a_constraint_changes_rows_that_have_no_gradient():
    weight = keras.Variable([[1.0], [-1.0]], dtype="float16")
    weight.constraint = keras.constraints.NonNeg()
    optimizer = keras_mp.wrap(optimizers.SGD(0.5), loss_scale=1)
    gradient = tf.IndexedSlices(tf.constant([[1.0]], "float16"), [0], [2, 1])
    optimizer.apply([gradient], [weight])
    np.testing.assert_array_equal(weight, np.float16([[0.5], [0.0]]))


def test_many_small_matrices_are_left_to_the_optimizer():
    optimizer, weights = wrapped(
        FUSED["adafactor"], (("many", (64, 65, 1, 1)), ("few", (64, 64, 1, 1)))
    )
    assert parts(optimizer, weights[:1], ones_like(weights[:1])) == {"inner"}
    assert parts(optimizer, weights, ones_like(weights)) == {"fused", "inner"}


@pytest.mark.xslow_except("*-eager", "adam-graph")
@pytest.mark.slow_except("adam-eager")
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "adafactor"])
def test_weights_on_two_devices_are_left_to_the_optimizer(name, mode):
    make = {**FUSED, **NOT_FUSED}[name]
    weights = []
    for i, shape in enumerate(SHAPES):
        with tf.device(f"/CPU:{i}"):
            weights += oracle.make_weights("float16", [shape])
    reference = oracle.Fp32Reference(make(), weights)
    optimizer = keras_mp.wrap(make(), loss_scale=8)
    optimizer.scale_loss(0.0)
    step = oracle.make_step(optimizer, weights, mode)
    for i in range(2):
        step([8 * gradient for gradient in ones_like(weights)])
        reference.apply(ones_like(weights, "float32"))
        # A graph may compute what is constant in another order.
        roundings = 0 if mode == "eager" else oracle.OPERATIONS * (i + 1)
        reference.assert_equal(optimizer, roundings)
        oracle.assert_weights_are_masters(optimizer, weights)
    assert parts(optimizer, weights, ones_like(weights)) == {"inner"}


def rows(shape):
    return tf.IndexedSlices(
        tf.ones((1, *shape[1:]), "float16"), tf.constant([1]), tf.constant(shape)
    )


TABLE = (("table", (3, 2)), ("kernel", (2, 2)))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_some_rows_are_left_to_the_optimizer(name):
    optimizer, weights = wrapped(FUSED[name], TABLE)
    gradients = [rows([3, 2]), tf.ones((2, 2), "float16")]
    assert parts(optimizer, weights, gradients) == {"fused", "inner"}


def test_a_norm_over_all_gradients_is_not_split():
    optimizer, weights = wrapped(FUSED["adamw"], TABLE)
    gradients = [rows([3, 2]), tf.ones((2, 2), "float16")]
    assert parts(optimizer, weights, gradients) == {"inner"}


@pytest.mark.xslow_except("*-graph", "adam-*", "nadam-xla")
@pytest.mark.slow_except("sgd-graph", "adam-graph")
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "nadam"])
def test_a_step_of_two_parts_is_one_step(name, mode):
    weights = oracle.make_weights("float16", TABLE)
    reference = oracle.Fp32Reference(FUSED[name](), weights)
    optimizer = keras_mp.wrap(FUSED[name](), keras_mp.DynamicLossScale(8.0))
    optimizer.scale_loss(0.0)
    step = oracle.make_step(optimizer, weights, mode)
    dense = np.full((2, 2), 0.5, "float32")
    for bad in (None, "table", "kernel", None):
        scale = optimizer.loss_scale.numpy()
        values = np.full((1, 2), np.nan if bad == "table" else scale, "float16")
        table = tf.IndexedSlices(values, tf.constant([1]), tf.constant([3, 2]))
        kernel = np.full((2, 2), np.inf) if bad == "kernel" else scale * dense
        step([table, tf.constant(kernel, "float16")])
        if bad is not None:
            path = {"table": weights[0].path, "kernel": weights[1].path}[bad]
            assert optimizer.last_overflow == path
            continue
        exact = tf.IndexedSlices(np.ones((1, 2), "float32"), [1], [3, 2])
        reference.apply([exact, tf.constant(dense)])
        steps = int(optimizer.iterations.numpy())
        reference.assert_equal(optimizer, 0 if mode != "xla" else 8 * steps)
        oracle.assert_weights_are_masters(optimizer, weights)
    assert optimizer.iterations.numpy() == 2
    assert optimizer.skipped_steps.numpy() == 2


@pytest.mark.xslow_except(
    "nearest-*",
    "stochastic-adam",
    "stochastic-sgd",
    "stochastic-lamb",
    "stochastic-adafactor",
)
@pytest.mark.slow_except(
    "nearest-adam", "nearest-sgd", "nearest-lamb", "nearest-adafactor"
)
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_skipped_step_leaves_no_trace(name, rounding):
    weights = oracle.make_weights("float16", SHAPES)
    rule = keras_mp.DynamicLossScale(8.0)
    optimizer = keras_mp.wrap(FUSED[name](), rule, rounding)
    optimizer.build(weights)
    optimizer.scale_loss(0.0)
    optimizer.apply(ones_like(weights), weights)
    scaler = [
        *optimizer._scaler.variables,
        optimizer._last_round,
        optimizer._last_overflow,
    ]
    kept = [v for v in optimizer.variables if all(v is not s for s in scaler)]
    before = [oracle.value(v) for v in [*weights, *kept]]
    bad = [tf.ones((3, 2), "float16"), tf.constant([1.0, np.inf], "float16")]
    optimizer.apply(bad, weights)
    for variable, old in zip([*weights, *kept], before, strict=True):
        oracle.assert_same_bits(oracle.value(variable), old, variable.path)
    assert optimizer.skipped_steps.numpy() == 1
    assert optimizer.last_overflow == weights[1].path
    assert optimizer.iterations.numpy() == 1


def test_gradients_that_are_missing_are_named_and_left_out():
    optimizer, weights = wrapped(FUSED["adam"])
    before = oracle.value(weights[1])
    gradients = [tf.ones((3, 2), "float16"), None]
    with pytest.warns(UserWarning, match=r"Gradients do not exist.*bias"):
        optimizer.apply(gradients, weights)
    oracle.assert_same_bits(oracle.value(weights[1]), before, "bias")
    assert optimizer.iterations.numpy() == 1


def test_gradients_that_were_unscaled_are_taken_as_they_are():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(optimizers.SGD(0.5), loss_scale=8)
    optimizer.build([weight])
    optimizer.scale_loss(0.0)
    gradients = optimizer.unscale_gradients([tf.constant([8.0], "float16")])
    optimizer.apply(gradients)
    assert weight.numpy() == np.array([0.5], "float16")


def test_a_learning_rate_that_is_set_is_used():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(optimizers.SGD(0.5), loss_scale=1)
    optimizer.build([weight])
    step = tf.function(lambda: optimizer.apply([tf.ones(1, "float16")], [weight]))
    step()
    optimizer.learning_rate = 0.25
    step()
    assert weight.numpy() == np.array([0.25], "float16")
