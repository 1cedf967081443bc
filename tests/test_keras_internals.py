"""What keras_mp/keras_internals.py takes for granted of the host, a test each.

Where one fails, Keras or TensorFlow has changed something private: change the function
that the message names, or find a public way.
"""

import ast
import functools
import inspect
import re
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers
from older_versions import needs

import keras_mp
from keras_mp import keras_internals

TESTED = set()


def contract(function):
    """Marks the test of a function, and has its failure say what has changed."""
    TESTED.add(function.__name__)

    def decorate(test):
        @functools.wraps(test)
        def run(*args, **kwargs):
            try:
                test(*args, **kwargs)
            except Exception as error:
                raise AssertionError(
                    f"keras_mp.keras_internals.{function.__name__} must do what its "
                    f"docstring says. Received: {type(error).__name__} with Keras "
                    f"{keras.__version__} and TensorFlow {tf.__version__}, which have "
                    f"changed what is private: {inspect.getdoc(function)}"
                ) from error

        return run

    return decorate


def test_every_function_has_its_contract_tested():
    functions = inspect.getmembers(keras_internals, inspect.isfunction)
    module = keras_internals.__name__
    ours = {name for name, f in functions if f.__module__ == module}
    of_layers = Path(__file__).with_name("layers") / Path(__file__).name
    named = re.findall(r"keras_internals\.(\w+)", of_layers.read_text())
    assert ours == TESTED | set(named) & ours


@pytest.mark.parametrize(
    ("ours", "host"),
    [
        (
            keras_mp.FP32MasterOptimizer,
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(use_ema=True)),
        ),
        (keras_mp.LossScaleCallback, keras.callbacks.Callback),
        (keras_mp.Checkpoints, keras.callbacks.Callback),
        (keras_mp.NumericsCallback, keras.callbacks.Callback),
        (keras_mp.PrecisionPlanCallback, keras.callbacks.Callback),
        (keras_mp.SwapEMAWeights, keras.callbacks.SwapEMAWeights),
        (keras_mp.FP32Regularizer, keras.regularizers.Regularizer),
    ],
)
def test_a_subclass_and_its_base_have_no_private_name_in_common(ours, host):
    classes = [cls for cls in ours.__mro__ if cls.__module__.startswith("keras_mp")]
    code = "".join(map(inspect.getsource, classes))
    names = set(re.findall(r"(?:self\.|def )(_[a-z]\w*)(?:: \w+)?(?: =|\()", code))
    assert not names & set(dir(host()))


def test_a_change_of_the_host_is_named():
    @contract(keras_internals.variable_index)
    def test():
        keras_internals.variable_index(object(), None)

    with pytest.raises(
        AssertionError, match=r"(?s)variable_index .*_get_variable_index"
    ):
        test()


def test_what_is_missing_has_no_default():
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(keras_internals)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert not [call for call in calls if call.func.id == "hasattr"]
    with_default = [c for c in calls if c.func.id == "getattr" and len(c.args) == 3]
    assert not with_default


@pytest.fixture
def variables():
    return [keras.Variable(np.ones(shape), name="v") for shape in ((2, 3), (4,))]


def test_the_version_of_keras():
    major, minor = keras_internals.KERAS
    assert keras.version().startswith(f"{major}.{minor}.")


@contract(keras_internals.has)
@pytest.mark.parametrize("name", ["Dense", *keras_internals.ADDED])
def test_has(name):
    assert keras_internals.has(name) == hasattr(keras.layers, name)


@contract(keras_internals.has)
@pytest.mark.parametrize(("version", "expected"), [((3, 11), False), ((3, 12), True)])
def test_has_on_both_sides_of_a_version(version, expected, monkeypatch):
    monkeypatch.setattr(keras_internals, "KERAS", version)
    assert keras_internals.has("ReversibleEmbedding") == expected


@contract(keras_internals.view)
def test_view(monkeypatch):
    assert hasattr(keras.ops, "view") == (keras_internals.KERAS >= (3, 12))
    bits = keras_internals.view(tf.constant([1.0], "float16"), "int16")
    assert bits.numpy().tolist() == [0x3C00]
    monkeypatch.setattr(keras_internals, "KERAS", (3, 11))
    bits = keras_internals.view(tf.constant([1.0], "float16"), "int16")
    assert bits.numpy().tolist() == [0x3C00]


# Optimizers.


@contract(keras_internals.add_to_variables)
def test_add_to_variables(variables):
    optimizer = optimizers.SGD()
    before = optimizer.variables
    keras_internals.add_to_variables(optimizer, variables[0])
    assert [id(v) for v in optimizer.variables] == [
        *map(id, before),
        id(variables[0]),
    ]


@contract(keras_internals.untracked)
def test_untracked(variables):
    optimizer = optimizers.SGD()
    before = [id(v) for v in optimizer.variables]
    with keras_internals.untracked(optimizer):
        optimizer.list = variables
    assert [id(v) for v in optimizer.variables] == before
    optimizer.list = list(variables)
    assert len(optimizer.variables) == len(before) + len(variables)


@contract(keras_internals.remove_from_variables)
def test_remove_from_variables(variables, tmp_path):
    optimizer = optimizers.SGD(momentum=0.9)
    optimizer.build(variables)
    first, *rest = optimizer.variables
    keras_internals.remove_from_variables(optimizer, first)
    assert [id(v) for v in optimizer.variables] == [id(v) for v in rest]
    tf.train.Checkpoint(optimizer=optimizer).save(tmp_path / "checkpoint")
    keras_internals.add_to_variables(optimizer, first)
    assert optimizer.variables[-1] is first


@contract(keras_internals.exchange_variable)
def test_exchange_variable(variables, tmp_path):
    new = keras.Variable(np.ones(variables[0].shape), name="new")
    optimizer = optimizers.SGD(1.0, momentum=0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=variables[:1])
    optimizer.build(variables)
    optimizer.apply([tf.ones(v.shape) for v in variables], variables)
    state = [id(v) for v in optimizer.variables]
    keras_internals.exchange_variable(optimizer, variables[0], new)
    assert [id(v) for v in optimizer.variables] == state
    now = [new, *variables[1:]]
    found = keras_internals.trainable_variables(optimizer)
    assert [id(v) for v in found] == [id(v) for v in now]
    before = variables[0].numpy()
    optimizer.apply([tf.zeros(v.shape) for v in now], now)
    # 1 + 0.5 x -1, by the momentum of the step before, and without decay
    assert np.all(new.numpy() == 0.5) and np.all(variables[0].numpy() == before)
    tf.train.Checkpoint(optimizer=optimizer).save(tmp_path / "checkpoint")


@contract(keras_internals.trainable_variables)
def test_trainable_variables(variables):
    optimizer = optimizers.SGD()
    assert keras_internals.trainable_variables(optimizer) == []
    optimizer.build(variables)
    found = keras_internals.trainable_variables(optimizer)
    assert [id(v) for v in found] == [id(v) for v in variables]


@contract(keras_internals.hide_trainable_variables)
def test_hide_trainable_variables(variables, tmp_path):
    optimizer = optimizers.SGD(0.5, momentum=0.5)
    optimizer.build(variables)
    keras_internals.hide_trainable_variables(optimizer)
    found = keras_internals.trainable_variables(optimizer)
    assert [id(v) for v in found] == [id(v) for v in variables]
    optimizer.apply([keras.ops.ones_like(v) for v in variables], variables)
    path = tf.train.Checkpoint(optimizer=optimizer).write(tmp_path / "checkpoint")
    names = [name for name, _ in tf.train.list_variables(path)]
    assert not any("_trainable_variables" in name for name in names)
    # 2 slots, the counter, the learning rate and the graph of objects
    assert len(names) == 2 + 3


@contract(keras_internals.check_variables_are_known)
def test_check_variables_are_known(variables):
    optimizer = optimizers.SGD()
    optimizer.build(variables[:1])
    keras_internals.check_variables_are_known(optimizer, variables[:1])
    with pytest.raises(ValueError, match="Unknown variable"):
        keras_internals.check_variables_are_known(optimizer, variables)


@contract(keras_internals.variable_index)
def test_variable_index(variables):
    optimizer = optimizers.SGD()
    optimizer.build(variables)
    index = functools.partial(keras_internals.variable_index, optimizer)
    assert [index(v) for v in variables] == [0, 1]
    assert [index(v.value) for v in variables] == [0, 1]


@contract(keras_internals.is_replaced_by_gradient)
def test_is_replaced_by_gradient(variables):
    variables[1].overwrite_with_gradient = True
    replaced = functools.partial(
        keras_internals.is_replaced_by_gradient, optimizers.SGD()
    )
    assert [replaced(v) for v in variables] == [False, True]
    assert replaced(variables[0].value) is False


@contract(keras_internals.is_replaced_by_gradient)
def test_is_replaced_by_gradient_before_keras_3_10(variables, monkeypatch):
    optimizer = optimizers.SGD()
    is_method = hasattr(optimizer, "_overwrite_variable_with_gradient")
    assert is_method == (keras_internals.KERAS >= (3, 10))
    monkeypatch.setattr(keras_internals, "KERAS", (3, 9))
    test_is_replaced_by_gradient(variables)


@contract(keras_internals.without_missing_gradients)
def test_without_missing_gradients(variables):
    with pytest.warns(UserWarning, match="Gradients do not exist for"):
        gradients, rest = keras_internals.without_missing_gradients(
            optimizers.SGD(), [None, 1.0], variables
        )
    assert gradients == [1.0]
    assert [id(v) for v in rest] == [id(variables[1])]


@contract(keras_internals.uses_weight_decay)
def test_uses_weight_decay(variables):
    optimizer = optimizers.SGD(weight_decay=0.1)
    assert keras_internals.uses_weight_decay(optimizer, variables[0])
    optimizer.exclude_from_weight_decay(var_list=variables[:1])
    decays = functools.partial(keras_internals.uses_weight_decay, optimizer)
    assert [decays(v) for v in variables] == [False, True]


@contract(keras_internals.uses_weight_decay)
@pytest.mark.parametrize(("version", "asked"), [((3, 15), "use"), ((3, 16), "exclude")])
def test_uses_weight_decay_on_both_sides_of_a_version(version, asked, monkeypatch):
    monkeypatch.setattr(keras_internals, "KERAS", version)
    answers = {
        "use": types.SimpleNamespace(_use_weight_decay=lambda variable: False),
        "exclude": types.SimpleNamespace(
            _is_excluded_from_weight_decay=lambda variable: True
        ),
    }
    assert keras_internals.uses_weight_decay(answers[asked], None) is False


@contract(keras_internals.add_to_weight_decay_exclusions)
def test_add_to_weight_decay_exclusions(variables):
    optimizer = optimizers.SGD(1.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=variables[:1])
    keras_internals.add_to_weight_decay_exclusions(optimizer, variables[1])
    optimizer.apply([tf.zeros(v.shape) for v in variables], variables)
    assert all(np.all(v.numpy() == 1) for v in variables)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (optimizers.Adam, ["momentums", "velocities"]),
        (
            functools.partial(optimizers.AdamW, amsgrad=True),
            ["momentums", "velocities", "velocity_hats"],
        ),
        (optimizers.Nadam, ["momentums", "velocities"]),
        (optimizers.Adamax, ["m", "u"]),
        (optimizers.Lion, ["momentums"]),
        (optimizers.Adagrad, ["accumulators"]),
        (optimizers.Adadelta, ["accumulated_grads", "accumulated_delta_vars"]),
        (optimizers.Ftrl, ["accumulators", "linears"]),
        (
            functools.partial(optimizers.RMSprop, momentum=0.9, centered=True),
            ["velocities", "average_gradients", "momentums"],
        ),
    ],
    ids=[
        "adam",
        "amsgrad",
        "nadam",
        "adamax",
        "lion",
        "adagrad",
        "adadelta",
        "ftrl",
        "rms",
    ],
)
@contract(keras_internals.slots)
def test_slots(make, names, variables):
    optimizer = make()
    optimizer.build(variables)
    found = keras_internals.slots(optimizer, *names)
    assert [[v.shape for v in each] for each in found] == [[(2, 3), (4,)]] * len(names)
    ids = {id(slot) for each in found for slot in each}
    assert len(ids) == 2 * len(names)
    assert ids < {id(v) for v in optimizer.variables}


@contract(keras_internals.nadam_momentum_product)
def test_nadam_momentum_product(variables):
    optimizer = optimizers.Nadam(beta_1=0.5)
    optimizer.build(variables)
    product = keras_internals.nadam_momentum_product(optimizer)
    assert product.numpy() == 1
    optimizer.apply([tf.ones(v.shape) for v in variables])
    # Two roundings of float32, those of the power and of the product.
    np.testing.assert_allclose(
        product.numpy(), 0.5 * (1 - 0.5 * 0.96), rtol=2 * 2.0**-24, atol=0
    )


@contract(keras_internals.layout_argument)
def test_layout_argument(variables):
    assert keras_internals.layout_argument(variables[0].value) == {}
    argument = keras_internals.layout_argument(variables[0])
    keras.Variable([1.0], **argument)
    if keras_internals.KERAS < (3, 15):
        assert argument == {}
        assert not hasattr(variables[0], "_layout")
    else:
        assert argument == {"layout": None}
        variable = keras.Variable([1.0], layout="a layout")
        assert keras_internals.layout_argument(variable) == {"layout": "a layout"}


@contract(keras_internals.layout_argument)
def test_layout_argument_before_keras_3_15(monkeypatch):
    monkeypatch.setattr(keras_internals, "KERAS", (3, 14))
    assert keras_internals.layout_argument(keras.Variable([1.0])) == {}


@contract(keras_internals.other_layouts)
@needs("Keras", 3, 15)
def test_other_layouts(variables):
    optimizer = optimizers.SGD()
    with (
        pytest.raises(KeyError),
        keras_internals.other_layouts(variables[:1], ["a layout"]),
    ):
        slot = optimizer.add_variable_from_reference(variables[0], "slot")
        raise KeyError
    assert keras_internals.layout_argument(slot) == {"layout": "a layout"}
    assert keras_internals.layout_argument(variables[0]) == {"layout": None}


@contract(keras_internals.strategy)
def test_strategy():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        optimizer, expected = optimizers.SGD(), tf.distribute.get_strategy()
    assert keras_internals.strategy(optimizer) is expected


@contract(keras_internals.place_of_one_copy)
def test_place_of_one_copy(strategy):
    *_, last = strategy.extended.worker_devices
    place = keras_internals.place_of_one_copy(last)

    def create(next_creator, **arguments):
        return next_creator(**{**arguments, "colocate_with": place})

    with strategy.scope(), tf.variable_creator_scope(create):
        variable = keras.Variable([1.0])
        slot = optimizers.SGD().add_variable_from_reference(variable, "slot")
    for each in (variable.value, slot.value):
        assert isinstance(each, tf.distribute.DistributedValues)
        (copy,) = strategy.experimental_local_results(each)
        assert copy.device == last


@contract(keras_internals.supports_no_merge_call)
def test_supports_no_merge_call():
    assert keras_internals.supports_no_merge_call() is True


@contract(keras_internals.supports_no_merge_call)
def test_supports_no_merge_call_on_cpu_replicas(strategy):
    def ask():
        return tf.constant(keras_internals.supports_no_merge_call())

    results = strategy.experimental_local_results(strategy.run(ask))
    assert not any(result.numpy() for result in results)


@pytest.mark.parametrize(
    "construct",
    [
        lambda note: tf.cond(tf.constant(True), note, note),
        lambda note: tf.switch_case(tf.constant(0), [note, note]),
        lambda note: tf.while_loop(lambda i: i < 1, lambda i: i + note(), [0]),
    ],
    ids=["cond", "case", "while"],
)
@contract(keras_internals.graph_around)
def test_graph_around(construct):
    graphs = []

    def note():
        graphs.append(tf.compat.v1.get_default_graph())
        return 1

    @tf.function(autograph=False)
    def traced():
        outside = tf.compat.v1.get_default_graph()
        construct(note)
        assert graphs
        assert all(keras_internals.graph_around(graph) is outside for graph in graphs)
        assert keras_internals.graph_around(outside) is None

    traced.get_concrete_function()
    assert keras_internals.graph_around(None) is None


FUNCTIONS_OF_CONSTRUCTS = {
    "cond": (
        lambda x: tf.cond(x > 0, lambda: x, lambda: -x),
        {"then_branch", "else_branch"},
    ),
    "case": (
        lambda x: tf.switch_case(tf.constant(0), [lambda: x, lambda: -x]),
        {"branches0", "branches1"},
    ),
    "while": (
        lambda x: tf.while_loop(lambda y: y < 8, lambda y: (2 * y,), [x]),
        {"cond", "body"},
    ),
    "call": (lambda x: tf.function(lambda y: 2 * y)(x), {"f"}),
}


@pytest.mark.parametrize("construct", FUNCTIONS_OF_CONSTRUCTS)
@contract(keras_internals.graphs_inside)
def test_graphs_inside(construct):
    compute, expected = FUNCTIONS_OF_CONSTRUCTS[construct]

    @tf.function(autograph=False)
    def traced(x):
        return compute(x)

    graph = traced.get_concrete_function(tf.TensorSpec((), "float32")).graph
    found = [keras_internals.graphs_inside(each) for each in graph.get_operations()]
    [graphs] = [each for each in found if each]
    assert graphs.keys() == expected
    assert all(each.outputs for each in graphs.values())


@contract(keras_internals.traced_assignments)
def test_traced_assignments(variables):
    first, second = (variable.value for variable in variables)
    counts = []

    @tf.function(autograph=False)
    def traced():
        first.assign_add(tf.ones_like(first))
        start = len(tf.compat.v1.get_default_graph().get_operations())
        counts.append(keras_internals.traced_assignments([first, second], 0))
        first.assign_sub(tf.ones_like(first))
        first.assign(tf.ones_like(first))
        counts.append(keras_internals.traced_assignments([first, second], 0))
        counts.append(keras_internals.traced_assignments([first, second], start))
        counts.append(keras_internals.traced_assignments([second, first, first], 0))
        tf.cond(second[0] > 0, lambda: second.assign(second), lambda: second.value())
        counts.append(keras_internals.traced_assignments([first, second], start))

    traced.get_concrete_function()
    assert counts == [[1, 0], [3, 0], [2, 0], [0, 3, 3], [2, 0]]


# Models and layers.


@contract(keras_internals.flatten_layers)
def test_flatten_layers():
    inner = keras.Sequential([keras.layers.Dense(1)])
    model = keras.Sequential([inner, keras.layers.Bidirectional(keras.layers.LSTM(1))])
    found = keras_internals.flatten_layers(model)
    names = {type(layer).__name__ for layer in found}
    assert names == {"Sequential", "Dense", "Bidirectional", "LSTM", "LSTMCell"}


class Adding(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


@contract(keras_internals.forget_losses)
def test_forget_losses():
    layer = Adding()
    with keras.StatelessScope(collect_losses=True):
        layer(np.ones((1, 2)))
        assert [float(loss) for loss in layer.losses] == [2.0]
        keras_internals.forget_losses(layer)
        assert layer.losses == []


@contract(keras_internals.computing_once)
def test_computing_once_before_keras_3_9(monkeypatch):
    layer = keras.layers.Dense(1)
    assert hasattr(layer, "_remat_mode") == (keras_internals.KERAS >= (3, 9))
    monkeypatch.setattr(keras_internals, "KERAS", (3, 8))
    with keras_internals.computing_once([object()]):
        pass


@contract(keras_internals.computing_once)
@pytest.mark.parametrize(
    "version",
    [
        pytest.param((3, 14), id="before-3.15"),
        pytest.param((3, 15), id="3.15", marks=needs("Keras", 3, 15)),
    ],
)
def test_computing_once_without_layers(version, monkeypatch):
    x = keras.Input((1,))
    add = keras.Model(x, keras.ops.add(x, 1.0)).operations[-1]
    assert hasattr(add, "_remat_mode") == (keras_internals.KERAS >= (3, 15))
    monkeypatch.setattr(keras_internals, "KERAS", version)
    with keras_internals.computing_once([add]):
        pass


@needs("Keras", 3, 9)  # its RematScope
@contract(keras_internals.computing_once)
def test_computing_once():
    calls = []

    class Counting(keras.layers.Layer):
        def call(self, x):
            calls.append(x)
            return 2.0 * x

    with keras.RematScope(mode="full"):
        layer = Counting()
    x = tf.ones((1, 2))

    def differentiate():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        np.testing.assert_array_equal(tape.gradient(y, x), 2 * x)

    with keras_internals.computing_once([layer]):
        differentiate()
    assert len(calls) == 1
    differentiate()
    assert len(calls) == 1 + 2


@contract(keras_internals.keep_iterator)
@contract(keras_internals.kept_iterator)
@contract(keras_internals.forget_iterator)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_iterator_of_fit_is_kept(steps):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps, jit_compile=False)
    following = []

    class Reader(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            keras_internals.keep_iterator(model)
            keras_internals.keep_iterator(model)

        def on_train_batch_end(self, batch, logs=None):
            following.append(next(keras_internals.kept_iterator(model), None))

    x = np.arange(6.0, dtype="float32").reshape(-1, 1)
    dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(1).repeat()
    options = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
    model.fit(dataset, callbacks=[Reader()], **options)
    assert [x.numpy().item() for x, _ in following] == [steps]
    keras_internals.forget_iterator(model)
    assert not isinstance(model.train_function, keras_internals.IteratorKeeper)
    assert keras_internals.kept_iterator(model) is None


@contract(keras_internals.look_at_next_batch)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_next_batch_is_looked_at_and_trained_on(steps):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps, jit_compile=False)
    seen = []

    def look(batch):
        seen.append(batch[0].numpy().item())
        model.make_train_function(force=True)

    class Looking(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch in (0, 3):
                keras_internals.look_at_next_batch(model, look)

    x = np.arange(6.0, dtype="float32").reshape(-1, 1)
    dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(1)
    model.fit(dataset, callbacks=[Looking()], shuffle=False, verbose=0)
    assert seen == [0.0, 3.0]
    assert int(model.optimizer.iterations) == 6
    assert not isinstance(model.train_function, keras_internals.NextBatches)


@contract(keras_internals.moving_averages)
def test_moving_averages(variables):
    optimizer = optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
    optimizer.build(variables)
    found = keras_internals.moving_averages(optimizer)
    assert [v.shape for v in found] == [(2, 3), (4,)]
    gradients = [keras.ops.ones_like(v) for v in variables]
    optimizer.apply(gradients, variables)
    for average, variable in zip(found, variables, strict=True):
        np.testing.assert_array_equal(average.numpy(), variable.numpy())


@contract(keras_internals.accumulated_gradients)
def test_accumulated_gradients(variables):
    optimizer = optimizers.SGD(gradient_accumulation_steps=3)
    optimizer.build(variables)
    found = keras_internals.accumulated_gradients(optimizer)
    assert [v.shape for v in found] == [(2, 3), (4,)]
    for _ in range(2):
        optimizer.apply([keras.ops.ones_like(v) for v in variables], variables)
    assert [np.unique(v.numpy()).tolist() for v in found] == [[2.0], [2.0]]


@contract(keras_internals.clip_by_norm)
def test_clip_by_norm():
    """The norm of (3, 4) is 5."""
    optimizer = optimizers.SGD(clipnorm=2.5)
    found = keras_internals.clip_by_norm(optimizer, keras.ops.array([3.0, 4.0]))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), [1.5, 2.0])


@contract(keras_internals.applied_steps)
def test_applied_steps_counts_those_that_accumulate():
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    weight = keras.Variable([1.0])
    for _ in range(3):
        optimizer.apply([keras.ops.ones(1)], [weight])
    assert int(keras_internals.applied_steps(optimizer)) == 3
    assert int(optimizer.iterations) == 1
