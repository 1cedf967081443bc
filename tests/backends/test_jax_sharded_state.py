"""`wrap(opt, shard_state=True)` against training with whole state, bit for bit.

Most data is random, and nothing in it is exact: a sum that the devices make in another
order would show.
"""

import jax
import keras
import numpy as np
import pytest
from backends.problems import (
    assert_same_bits,
    integer_rows,
    linear,
    make_gradients,
    make_weights,
    mean_output,
    tensors,
    value,
)
from backends.problems import fit as fit_rows
from backends.two_processes import in_two_processes

import keras_mp

WIDTH, BATCH, STEPS = 64, 32, 20
INT8 = {"masters": "remainders", "state": "int8"}
INT4 = {"masters": "int8_remainders", "state": "int4"}
WITHOUT_MASTERS = {"masters": None, "rounding": "stochastic", "state": "int8"}


def make_model(optimizer, policy="float16", **options):
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(WIDTH, "relu", dtype=policy, name="first"),
            keras.layers.Dense(WIDTH, "relu", dtype=policy, name="second"),
            keras.layers.Dense(5, dtype=policy, name="head"),
        ]
    )
    scale = keras_mp.DynamicLossScale(2.0**10)
    model.compile(keras_mp.wrap(optimizer, scale, **options), "mse")
    return model


def data_of(steps, overflow=None):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(BATCH * steps, WIDTH)).astype("float32")
    y = generator.normal(size=(BATCH * steps, 5)).astype("float32")
    if overflow is not None:
        x[(overflow + 1) * BATCH - 1, 0] = np.inf  # a row of the last device
    return x, y


def fit(model, x, y):
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)


def data_parallel(devices):
    names = [f"cpu:{i}" for i in range(devices)]
    return keras.distribution.DataParallel(devices=names)


def fresh():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


def train(devices, make_optimizer, overflow=None, **options):
    fresh()
    with data_parallel(devices).scope():
        model = make_model(make_optimizer(), **options)
        fit(model, *data_of(STEPS, overflow))
    return model


def all_of(model):
    return [*model.trainable_variables, *model.optimizer.variables]


def assert_equal(one, two):
    for mine, other in zip(all_of(one), all_of(two), strict=True):
        assert_same_bits(value(mine), value(other), other.path)


def bytes_on_each_device(variables):
    """Walks the buffers that the devices hold."""
    held = {}
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return list(held.values())


def bytes_of_one_share(variables, devices):
    """What a device holds if all is split but scalars, the seed and the bias of 5."""
    return sum(
        v.value.nbytes // (devices if any(n % WIDTH == 0 for n in v.shape) else 1)
        for v in variables
    )


def assert_is_split(model, devices):
    weights, state = model.trainable_variables, model.optimizer.variables
    whole = sum(weight.value.nbytes for weight in weights)
    assert bytes_on_each_device(weights) == [whole] * devices
    expected = bytes_of_one_share(state, devices)
    assert bytes_on_each_device(state) == [expected] * devices
    assert expected < 1.01 / devices * sum(v.value.nbytes for v in state)


def adam(**options):
    return lambda: keras.optimizers.Adam(1e-3, **options)


CASES = {
    "adam": (adam(), {}),
    "adamw": (lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.1), {}),
    "momentum": (lambda: keras.optimizers.SGD(0.01, momentum=0.9), {}),
    "compressed": (adam(), INT8),
    "int4": (adam(), INT4),
    "no masters": (adam(), WITHOUT_MASTERS),
    "stochastic": (adam(), {"rounding": "stochastic"}),
    "FP32 weights": (adam(), {"policy": "mixed_float16"}),
    "FP32 weights, int8": (adam(), {"policy": "mixed_float16", "state": "int8"}),
    "accumulation": (adam(gradient_accumulation_steps=2), {}),
    "average": (adam(use_ema=True, ema_overwrite_frequency=5), {}),
    "compressed, options": (
        adam(gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=5),
        INT8,
    ),
}


@pytest.mark.parametrize(("make_optimizer", "options"), CASES.values(), ids=CASES)
def test_the_bits_are_those_of_whole_state(make_optimizer, options):
    whole = train(2, make_optimizer, overflow=5, **options)
    split = train(2, make_optimizer, overflow=5, shard_state=True, **options)
    assert value(split.optimizer.skipped_steps) == 1
    assert_equal(split, whole)
    assert_is_split(split, 2)


@pytest.mark.parametrize("options", [{}, INT8], ids=["FP32", "compressed"])
def test_four_devices(options):
    whole = train(4, adam(), overflow=5, **options)
    split = train(4, adam(), overflow=5, shard_state=True, **options)
    assert_equal(split, whole)
    assert_is_split(split, 4)


@pytest.mark.parametrize("clipping", [{"global_clipnorm": 0.5}, {"clipnorm": 0.125}])
@pytest.mark.parametrize("options", [{}, INT8], ids=["FP32", "compressed"])
def test_clipping_by_a_norm(options, clipping):
    # Each device sums the squares of its share. Gradients of small integers times a
    # power of two have squares whose sums FP32 holds, in whatever order.
    x = np.random.default_rng(0).integers(-4, 5, (BATCH * STEPS, WIDTH))
    x = x.astype("float32")
    x[5 * BATCH, 0] = np.inf
    models = []
    for shard_state in (False, True):
        fresh()
        with data_parallel(2).scope():
            layer = keras.layers.Dense(WIDTH, dtype="float16")
            model = keras.Sequential([keras.Input((WIDTH,)), layer])
            optimizer = keras.optimizers.Adam(1e-3, **clipping)
            scale = keras_mp.DynamicLossScale(2.0**10)
            model.compile(
                keras_mp.wrap(optimizer, scale, shard_state=shard_state, **options),
                mean_output,
            )
            fit(model, x, np.zeros((len(x), 1), "float32"))
        models.append(model)
    assert value(model.optimizer.skipped_steps) == 1
    assert_equal(*models)
    assert_is_split(model, 2)


def test_the_layout_of_a_weight_is_kept():
    names = [f"cpu:{i}" for i in range(4)]
    mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], names)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*first/kernel"] = (None, "model")
    layouts[".*first/bias"] = ("model",)
    layouts[".*second/kernel"] = ("batch", None)
    models = []
    for shard_state in (False, True):
        fresh()
        with keras.distribution.ModelParallel(layout_map=layouts).scope():
            model = make_model(adam()(), shard_state=shard_state, **INT8)
            fit(model, *data_of(STEPS, overflow=5))
        models.append(model)
    assert_equal(*models)
    whole, split = (
        {
            v.path.removeprefix("adam/sequential_"): tuple(v.value.sharding.spec)
            for v in model.optimizer.variables
        }
        for model in models
    )
    kernel = model.trainable_variables[0]
    assert tuple(kernel.value.sharding.spec) == (None, "model")
    assert split["sequential/first/kernel"] == ("batch", "model")
    assert split["first_kernel_momentum"] == ("batch", "model")
    assert split["first_kernel_momentum_exponents"] == ("batch",)
    # One has one dimension, which is the model's; the other is the batch's already.
    for name in ("first_bias_velocity", "second_kernel_momentum"):
        assert split[name] == whole[name]
    exponents = "second_kernel_momentum_exponents"
    assert split[exponents] == whole[exponents] == ("batch",)
    remainder = model.optimizer.master_weights[0].remainder
    assert bytes_on_each_device([remainder]) == [WIDTH * WIDTH * 2 // 4] * 4


def test_a_step_outside_of_fit():
    with data_parallel(2).scope():
        weights = make_weights("float16")  # of (2, 3) and (3,)
        optimizer = keras_mp.wrap("adam", 1, shard_state=True)
        optimizer.build(weights)
        optimizer.apply(tensors(make_gradients(0), "float16"), weights)
        values = [[v.value for v in each] for each in (weights, optimizer.variables)]
        gradients = tensors(make_gradients(1), "float16")
        step = jax.jit(optimizer.stateless_apply)
        after = step(values[1], gradients, values[0])
        for variables, new in zip((weights, optimizer.variables), after, strict=True):
            for variable, each in zip(variables, new, strict=True):
                variable.assign(each)
    assert value(optimizer.iterations) == 2
    for variable in [*optimizer.variables, *weights]:
        is_split = tuple(variable.shape) == (2, 3) and variable is not weights[0]
        shapes = {shard.data.shape for shard in variable.value.addressable_shards}
        assert shapes == {(1, 3) if is_split else tuple(variable.shape)}, variable.path


def save_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")


def load_weights(model, folder):
    model.load_weights(folder / "model.weights.h5")


def save_checkpoint(model, folder):
    keras_mp.Checkpoints(folder).save(1, model)


def load_checkpoint(model, folder):
    assert keras_mp.Checkpoints(folder).restore(model) == 1


def in_a_file(model):
    """Weights and state as numbers, of which one may have two codes of 8 bits."""
    numbers = {}
    model.optimizer.save_own_variables(numbers)
    weights = {weight.path: value(weight) for weight in model.weights}
    return {name: np.array(x) for name, x in (numbers | weights).items()}


@pytest.mark.parametrize(
    ("save", "load", "options"),
    [(save_weights, load_weights, INT8), (save_checkpoint, load_checkpoint, {})],
    ids=["weights, compressed", "checkpoints, FP32"],
)
def test_a_file_fits_any_number_of_devices(save, load, options, tmp_path):
    saved = train(2, adam(), overflow=5, shard_state=True, **options)
    save(saved, tmp_path)
    before = in_a_file(saved)
    with data_parallel(2).scope():
        fit(saved, *data_of(5))
    for devices, shard_state in ((1, True), (2, True), (4, True), (4, False)):
        fresh()
        with data_parallel(devices).scope():
            model = make_model(adam()(), shard_state=shard_state, **options)
            model.optimizer.build(model.trainable_variables)
            load(model, tmp_path)
            found = in_a_file(model)
            assert found.keys() == before.keys()
            for name, expected in before.items():
                assert_same_bits(found[name], expected, name)
            if shard_state:
                assert_is_split(model, devices)
            if devices == 2:  # other numbers add up gradients in another order
                fit(model, *data_of(5))
                assert_equal(model, saved)


def test_a_saved_model_shards_its_state_again(tmp_path):
    saved = train(2, adam(), shard_state=True)
    saved.save(tmp_path / "model.keras")
    assert "shard_state=True" in repr(saved.optimizer)
    fresh()
    with data_parallel(2).scope():
        model = keras.models.load_model(tmp_path / "model.keras")
    assert model.optimizer.shard_state
    assert_equal(model, saved)
    assert_is_split(model, 2)


def test_without_a_distribution_nothing_changes():
    assert keras.distribution.distribution() is None
    weights = make_weights("float16")
    optimizer = keras_mp.wrap("adam", 1, shard_state=True)
    optimizer.apply(tensors(make_gradients(0), "float16"), weights)
    others = make_weights("float16")
    other = keras_mp.wrap("adam", 1)
    other.apply(tensors(make_gradients(0), "float16"), others)
    for mine, expected in zip(optimizer.variables, other.variables, strict=True):
        assert_same_bits(value(mine), value(expected), expected.path)


def test_an_optimizer_is_built_where_its_distribution_is():
    with data_parallel(2).scope():
        weights = make_weights("float16")
        optimizer = keras_mp.wrap("adam", shard_state=True)
    with pytest.raises(
        ValueError, match=r"no distribution, and 'kernel'.*with distrib"
    ):
        optimizer.build(weights)
    with data_parallel(2).scope():
        optimizer.build(weights)
    mesh = jax.make_mesh((2,), ("batch",), devices=jax.devices()[:2])
    layout = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    weight = keras.Variable("zeros", shape=(2,), dtype="float16", layout=layout)
    optimizer = keras_mp.wrap("adam", shard_state=True)
    with (
        data_parallel(2).scope(),
        pytest.raises(ValueError, match=r"TensorLayout.*'variable.*NamedSharding"),
    ):
        optimizer.build([weight])


def test_all_processes_save_together(tmp_path):
    held = in_two_processes("jax_sharding_process.py", str(tmp_path))

    def make_model():
        adam = keras.optimizers.Adam(0.125)
        model = linear("float16", adam, masters="remainders", shard_state=True)
        model.optimizer.build(model.trainable_variables)
        return model

    fresh()
    with data_parallel(2).scope():
        expected = make_model()
        fit_rows(expected, integer_rows(), 8)
    assert value(expected.optimizer.skipped_steps) == 1
    masters = [np.asarray(m) for m in expected.optimizer.master_weights]
    share = bytes_on_each_device(expected.optimizer.variables)[0]
    whole = sum(variable.value.nbytes for variable in expected.optimizer.variables)
    fresh()
    for rank in ("0", "1"):
        folder = tmp_path / rank
        for name in ("state", "again"):
            model = make_model()
            model.load_weights(folder / f"{name}.weights.h5")
            assert_equal(model, expected)
        model = make_model()
        assert keras_mp.Checkpoints(folder / "checkpoints").restore(model) == 1
        assert_equal(model, expected)
        with np.load(folder / "exported.npz") as exported:
            for array, master in zip(exported.values(), masters, strict=True):
                assert_same_bits(array, master)
        assert held[int(rank)] == {"whole": whole, "here": share}
    assert share < 0.6 * whole
