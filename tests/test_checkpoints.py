"""`Checkpoints`: what is in a file, which files are kept, and what is refused."""

import keras
import numpy as np
import oracle
import pytest

import keras_mp
from keras_mp import Checkpoints


def make_model(dtype="float16", units=2):
    layers = [keras.Input((3,)), keras.layers.Dense(units, dtype=dtype)]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.5, seed=3)])
    inner = keras.optimizers.Adam(0.5, use_ema=True)
    optimizer = keras_mp.wrap(inner, 64, rounding="stochastic")
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def train(model, steps=1):
    x = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    for _ in range(steps):
        model.train_on_batch(x, x[:, :2])


def values(*objects):
    variables = [variable for each in objects for variable in each.variables]
    return [oracle.value(variable) for variable in variables]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        oracle.assert_same_bits(one, other)


def numbers(folder):
    return [int(path.name.partition("-")[0]) for path in sorted(folder.glob("0*"))]


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "mixed_float16", "float64"]
)
def test_restores_every_bit(dtype, tmp_path):
    model = make_model(dtype)
    train(model, steps=2)
    expected = values(model, model.optimizer)
    checkpoints = Checkpoints(tmp_path / "new" / "folder")
    checkpoints.save(7, model)
    train(model)
    assert checkpoints.restore(model) == 7
    assert_same(values(model, model.optimizer), expected)
    other = make_model(dtype)
    assert Checkpoints(tmp_path / "new" / "folder").restore(other) == 7
    assert_same(values(other, other.optimizer), expected)


def test_nothing_to_restore(tmp_path):
    model = make_model()
    expected = values(model)
    assert Checkpoints(tmp_path / "none").restore(model) == 0
    assert list(tmp_path.iterdir()) == []
    assert_same(values(model), expected)


def test_models_and_optimizers_in_order(tmp_path):
    """As for a GAN."""
    weights = [keras.Variable([float(i)], dtype="float16") for i in range(2)]
    optimizers = [keras_mp.wrap("sgd"), keras_mp.wrap("adam")]
    for optimizer, weight in zip(optimizers, weights, strict=True):
        optimizer.build([weight])
        optimizer.learning_rate = float(weight[0]) + 4
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, *optimizers)
    expected = values(*optimizers)
    for optimizer in optimizers:
        optimizer.learning_rate = 9.0
    assert checkpoints.restore(*optimizers) == 1
    assert_same(values(*optimizers), expected)


@pytest.mark.parametrize(
    ("keep", "expected"),
    [(1, [12]), (2, [3, 12]), (4, [1, 2, 3, 12]), (9, [1, 2, 3, 12])],
)
def test_the_last_are_kept(keep, expected, tmp_path):
    model = make_model()
    checkpoints = Checkpoints(tmp_path, keep)
    for number in (1, 2, 3, 12):
        checkpoints.save(number, model)
    (tmp_path / "of_the_user.npz").touch()
    assert numbers(tmp_path) == expected
    assert checkpoints.restore(model) == 12


def test_a_run_that_goes_back_replaces_what_came_after(tmp_path):
    model = make_model()
    checkpoints = Checkpoints(tmp_path, keep=3)
    for number in (1, 2, 3, 4):
        checkpoints.save(number, model)
    checkpoints.save(3, model)
    assert checkpoints.restore(model) == 3
    assert numbers(tmp_path) == [2, 3]


def test_saves_after_each_epoch_of_fit(tmp_path):
    model = make_model()
    x = np.ones((4, 3), "float32")
    options = {"callbacks": [Checkpoints(tmp_path, 9)], "epochs": 3, "verbose": 0}
    model.fit(x, x[:, :2], **options)
    assert numbers(tmp_path) == [1, 2, 3]
    model.fit(x, x[:, :2], initial_epoch=2, **options)
    assert numbers(tmp_path) == [1, 2, 3]


def test_a_file_says_what_is_in_it(tmp_path):
    model = make_model("bfloat16")
    Checkpoints(tmp_path).save(1, model)
    (path,) = tmp_path.iterdir()
    with np.load(path) as archive:
        assert archive.files[0] == f"0 {model.variables[0].path} bfloat16"
        assert len(archive.files) == len(model.variables + model.optimizer.variables)


@pytest.mark.parametrize(
    ("saved", "restored", "message"),
    [
        ({}, {"units": 3}, "variable 0 is .*float16.*, 2.* here it is .*float16.*, 3"),
        ({}, {"dtype": "bfloat16"}, "'float16'.*'bfloat16'"),
        ({}, {"dtype": "float32"}, "'float16'.*'float32'"),
    ],
    ids=["shape", "dtype", "fewer"],
)
def test_another_model_is_refused(saved, restored, message, tmp_path):
    Checkpoints(tmp_path).save(1, make_model(**saved))
    model = make_model(**restored)
    expected = values(model)
    with pytest.raises(ValueError, match=f"same model.*00001-.*npz.*{message}"):
        Checkpoints(tmp_path).restore(model)
    assert_same(values(model), expected)


# Paths. All layers have the same shape, so that nothing else tells them apart.


def stack(names=(None, None), optimizer=None, name=None, before=0):
    """Dense layers of these names, after `before` others that Keras has numbered."""
    for _ in range(before):
        keras.layers.Dense(3)
        keras_mp.wrap(keras.optimizers.Adam())
    layers = [keras.layers.Dense(3, name=each, dtype="float16") for each in names]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dropout(0.5)])
    inner = optimizer or keras.optimizers.Adam()
    model.compile(keras_mp.wrap(inner, name=name), "mse")
    return model


def named_adamax():
    return keras.optimizers.Adamax(name="mine")


def sgd():
    return keras.optimizers.SGD(momentum=0.5)


@pytest.mark.parametrize(
    ("saved", "restored", "message"),
    [
        ({"names": "ab"}, {"names": "ba"}, "/a/kernel'.* here it is .*/b/kernel'"),
        (
            {"names": ["block_1", "block_2"]},
            {"names": ["block_2", "block_1"]},
            "/block_1/kernel'.* here it is .*/block_2/kernel'",
        ),
        ({}, {"optimizer": keras.optimizers.Adamax}, "'adam/.* here it is .*'adamax/"),
        (
            {"optimizer": sgd},
            {"optimizer": keras.optimizers.Lion},
            "'(?i:sgd)/.*'lion/",
        ),
        ({}, {"optimizer": named_adamax}, "'adam/.*_velocity.*'mine/.*_norm"),
        ({"names": "ab"}, {"names": "ac"}, "/b/kernel'.* here it is .*/c/kernel'"),
    ],
    ids=["order", "numbered", "class", "same_slots", "slots", "name"],
)
def test_variables_of_other_paths_are_refused(saved, restored, message, tmp_path):
    def make(optimizer=keras.optimizers.Adam, **options):
        return stack(optimizer=optimizer(), **options)

    Checkpoints(tmp_path).save(1, make(**saved))
    keras.utils.clear_session(free_memory=False)  # numbers begin anew
    model = make(**restored)
    Checkpoints(tmp_path / "build").save(1, model)
    expected = values(model, model.optimizer)
    with pytest.raises(ValueError, match=f"same model.*00001-.*npz.*{message}"):
        Checkpoints(tmp_path).restore(model)
    assert_same(values(model, model.optimizer), expected)


@pytest.mark.slow_except("by_one", "wrapper")
@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        ({}, {"before": 3}),
        ({"before": 3}, {}),
        ({"before": 1}, {}),  # dense_1 is the first, then the second
        ({}, {"name": "mine"}),
        ({}, {"optimizer": "adam", "name": "mine"}),
        ({"optimizer": "adam", "name": "of_mine_2"}, {}),
    ],
    ids=["later", "earlier", "by_one", "wrapper", "both_named", "saved_named"],
)
def test_names_that_keras_numbers_and_those_of_optimizers_may_differ(
    saved, restored, tmp_path
):
    def make(optimizer=None, **options):
        named = optimizer and keras.optimizers.Adam(name=options["name"])
        return stack(optimizer=named, **options)

    model = make(**saved)
    train_stack(model)
    Checkpoints(tmp_path).save(5, model)
    expected = values(model, model.optimizer)
    keras.utils.clear_session(free_memory=False)
    other = make(**restored)
    assert Checkpoints(tmp_path).restore(other) == 5
    assert_same(values(other, other.optimizer), expected)


def train_stack(model):
    x = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    model.train_on_batch(x, x)


def test_an_optimizer_made_before_the_model(tmp_path):
    # The seeds of the model and of the optimizer then have each other's numbers.
    model = stack()
    Checkpoints(tmp_path).save(1, model)
    keras.utils.clear_session(free_memory=False)
    optimizer = keras_mp.wrap("adam")
    other = stack()
    other.compile(optimizer, "mse")
    assert Checkpoints(tmp_path).restore(other) == 1


def test_the_slots_of_layers_in_another_order(tmp_path):
    # Without the model only the paths of the slots say whose they are.
    def optimizer_of(names):
        model = stack(names)
        model.optimizer.build(model.trainable_variables)
        return model.optimizer

    Checkpoints(tmp_path).save(1, optimizer_of(["block_1", "block_2"]))
    keras.utils.clear_session(free_memory=False)
    with pytest.raises(ValueError, match=r"/block_1/kernel'.*/block_2/kernel'"):
        Checkpoints(tmp_path).restore(optimizer_of(["block_2", "block_1"]))


def test_fewer_and_more_variables_are_refused(tmp_path):
    model = make_model()
    Checkpoints(tmp_path).save(1, model)
    with pytest.raises(ValueError, match=r"variable 3 is .*, and here it is None"):
        Checkpoints(tmp_path).restore(make_model().layers[0], make_model().layers[1])
    with pytest.raises(ValueError, match="is None, and here it is"):
        Checkpoints(tmp_path).restore(model, model)


@pytest.mark.parametrize("call", ["save", "restore"])
def test_what_is_not_built_is_refused(call, tmp_path):
    arguments = {"save": (1,), "restore": ()}[call]
    unbuilt = keras.Sequential([keras.layers.Dense(1)], name="mine")
    for each in (unbuilt, keras.optimizers.SGD(name="mine")):
        with pytest.raises(ValueError, match=r"Received: 'mine', which is not built"):
            getattr(Checkpoints(tmp_path), call)(*arguments, each)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)]
)
def test_numbers_that_are_refused(number, error, tmp_path):
    with pytest.raises(error, match=f"`number` must be .* Received: number={number}"):
        Checkpoints(tmp_path).save(number, make_model())
    with pytest.raises(error, match=f"`keep` must be .* Received: keep={number}"):
        Checkpoints(tmp_path, keep=number)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_restores_every_replica(strategy, tmp_path):
    def mirrored():
        with strategy.scope():
            layer = keras.layers.Dense(2, kernel_initializer="ones", dtype="float16")
            model = keras.Sequential([keras.Input((3,)), layer])
            model.compile(keras_mp.wrap("adam"), "mse", jit_compile=False)
        return model

    def fit(model, epochs, *callbacks, initial_epoch=0):
        x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
        options = {"batch_size": 4, "shuffle": False, "verbose": 0}
        epochs = {"epochs": epochs, "initial_epoch": initial_epoch}
        model.fit(x, x[:, :2], callbacks=list(callbacks), **options, **epochs)
        return values(model, model.optimizer)

    expected = fit(mirrored(), 4)
    checkpoints = Checkpoints(tmp_path)
    fit(mirrored(), 2, checkpoints)
    model = mirrored()
    found = fit(model, 4, initial_epoch=checkpoints.restore(model))
    assert_same(found, expected)
    for variable in [*model.variables, *model.optimizer.variables]:
        first, second = strategy.experimental_local_results(variable.value)
        oracle.assert_same_bits(first.numpy(), second.numpy(), variable.path)
