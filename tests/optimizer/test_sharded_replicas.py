"""`wrap(opt, shard_state=True)` under MirroredStrategy, against state on all replicas.

Gradients are random, and nothing in them is exact: a sum that is made in another order
would show. `test_three_and_four_replicas` runs this file again with more logical CPUs.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import optimizers
from replicas import copies

import keras_mp
from keras_mp.optimizer.sharding_tf import balanced

BATCH, STEPS, WIDTH = 24, 20, 32
INT8 = {"masters": "remainders", "state": keras_mp.Int8State(min_size=32)}
INT4 = {"masters": "int8_remainders", "state": keras_mp.Int4State(min_size=32)}
WITHOUT_MASTERS = {**INT8, "masters": None, "rounding": "stochastic"}
FORMS = {"float32": {}, "compressed": INT8}


# Who owns what.


@given(st.lists(st.integers(0, 10**9)), st.integers(1, 9))
def test_no_owner_has_more_than_its_share_and_the_largest(sizes, owners):
    found = balanced(sizes, owners)
    loads = [0] * owners
    for size, owner in zip(sizes, found, strict=True):
        loads[owner] += size
    assert owners * max(loads) <= sum(sizes) + (owners - 1) * max(sizes, default=0)


@given(st.integers(1, 9), st.integers(1, 9))
def test_equal_sizes_are_dealt_out(size, owners):
    assert sorted(balanced([size] * 3 * owners, owners)) == sorted(
        3 * list(range(owners))
    )


SHAPES = {"kernel": (16, 8), "bias": (8,), "scale": (12,)}


def create_weights(strategy, dtype):
    generator = np.random.default_rng(0)
    with strategy.scope():
        return [
            keras.Variable(
                generator.normal(size=shape),
                dtype="float32" if name == "scale" else dtype,
                name=name,
            )
            for name, shape in SHAPES.items()
        ]


def apply_on_each(strategy, optimizer, weights, seed, kind="dense", overflows=False):
    """A step, eagerly, with a random share of the gradients on each replica."""
    generator = np.random.default_rng(seed)
    sizes = [(strategy.num_replicas_in_sync, *weight.shape) for weight in weights]
    arrays = [generator.normal(size=size) for size in sizes]
    if overflows:
        arrays[0][-1, 0, 0] = np.inf  # of the last replica
    pairs = zip(arrays, weights, strict=True)
    shares = [tf.constant(array, weight.dtype) for array, weight in pairs]

    def apply():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradients = [share[replica] for share in shares]
        if kind == "sparse":
            rows = tf.constant([3, 0, 3])
            gradients[0] = tf.IndexedSlices(gradients[0][:3], rows, shares[0].shape[1:])
        if kind == "missing":
            gradients[1] = None
        optimizer.scale_loss(0.0)
        if kind == "unscaled":
            gradients = optimizer.unscale_gradients(gradients)
        optimizer.apply(gradients, weights)

    strategy.run(apply)


def run(
    strategy,
    make,
    shard_state,
    scale=64,
    dtype="float16",
    constraint=None,
    kind="dense",
    keeps_norm=False,
    **options,
):
    """The weights and the optimizer after four steps, of which the second overflows."""
    keras.utils.clear_session(free_memory=False)
    weights = create_weights(strategy, dtype)
    for weight in weights:
        weight.constraint = constraint
    with strategy.scope():
        rule = keras_mp.DynamicLossScale(scale)
        optimizer = keras_mp.wrap(make(), rule, shard_state=shard_state, **options)
        optimizer.build(weights)
        if keeps_norm:
            optimizer.keep_gradient_norm()
    for step in range(4):
        if step == 2:
            for weight in weights:
                weight.assign(1.5 * weight)
        apply_on_each(strategy, optimizer, weights, step, kind, overflows=step == 1)
    return weights, optimizer


def assert_same_bits(strategy, ones, others):
    """Compares variables: each copy of the others."""
    for one, other in zip(ones, others, strict=True):
        expected = copies(strategy, one)[0]
        for copy in copies(strategy, other):
            np.testing.assert_array_equal(copy, expected, one.path, strict=True)


def assert_same_numbers(ones, others):
    """Compares what a file has of two optimizers."""
    expected, found = {}, {}
    ones.save_own_variables(expected)
    others.save_own_variables(found)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, name, strict=True)


def shared_state(optimizer, weights):
    """The variables of what belongs to weights: masters of FP32 weights, too."""
    masters = [m for m in optimizer.master_weights if isinstance(m.value, tf.Variable)]
    others = {id(v) for v in (*weights, optimizer._seed_generator.state)}
    variables = {id(v): v for v in (*optimizer.variables, *masters)}
    return [v for i, v in variables.items() if i not in others and len(v.shape) > 0]


def assert_equal_and_owned(strategy, whole, sharded):
    """Both are equal to the bit, and what belongs to a weight has one copy."""
    assert_same_bits(strategy, whole[0], sharded[0])
    assert_same_bits(strategy, whole[1].variables, sharded[1].variables)
    assert int(sharded[1].skipped_steps) == 1
    assert sharded[1].last_overflow == sharded[0][0].path
    norms = [optimizer.gradient_norm for _, optimizer in (whole, sharded)]
    if norms[0] is not None:
        assert norms[0].numpy() == norms[1].numpy() > 0
    for variable in shared_state(sharded[1], sharded[0]):
        assert len(copies(strategy, variable)) == 1, variable.path


def accumulating():
    return optimizers.Adam(1e-2, gradient_accumulation_steps=2)


def overwriting():
    return optimizers.Adam(
        1e-2, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    )


OPTIMIZERS = {
    "adam": lambda: optimizers.Adam(1e-2),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adamw": lambda: optimizers.AdamW(1e-2, weight_decay=0.1),
    "nadam": lambda: optimizers.Nadam(1e-2),
    "adamax": lambda: optimizers.Adamax(1e-2),
    "adagrad": lambda: optimizers.Adagrad(1e-2),
    "adadelta": lambda: optimizers.Adadelta(0.5),
    "rmsprop": lambda: optimizers.RMSprop(1e-2, centered=True),
    "ftrl": lambda: optimizers.Ftrl(1e-2),
    "lion": lambda: optimizers.Lion(1e-2),
    "lamb": lambda: optimizers.Lamb(1e-2),
    # Its factors are made by `add_variable`, beside no weight.
    "adafactor": lambda: optimizers.Adafactor(1e-2),
    "accumulation": accumulating,
    "overwriting": overwriting,
    "average": lambda: optimizers.SGD(0.05, use_ema=True),
    "clipvalue": lambda: optimizers.Adam(1e-2, clipvalue=0.1),
    "clipnorm": lambda: optimizers.Adam(1e-2, clipnorm=0.1),
    "global_clipnorm": lambda: optimizers.Adam(1e-2, global_clipnorm=0.1),
}


def whole_and_sharded(strategy, optimizer, **options):
    return [run(strategy, optimizer, each, **options) for each in (False, True)]


@pytest.mark.slow
@pytest.mark.xslow_except("adafactor", "accumulation", "global_clipnorm")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_and_option(strategy, name):
    assert_equal_and_owned(strategy, *whole_and_sharded(strategy, OPTIMIZERS[name]))


@pytest.mark.xslow_except("float16")
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(optimizers, "Muon"), reason="needs Keras 3.10")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_muon(strategy, dtype):
    # It decays weights outside of its steps.
    def muon():
        return optimizers.Muon(0.125, weight_decay=0.25)

    assert_equal_and_owned(strategy, *whole_and_sharded(strategy, muon, dtype=dtype))


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(optimizers, "MultiOptimizer"), reason="needs Keras 3.15"
)
def test_several_optimizers(strategy):
    def several():
        adam, sgd = optimizers.Adam(1e-2), optimizers.SGD(0.05, momentum=0.9)
        return optimizers.MultiOptimizer(lambda v: sgd if "bias" in v.path else adam)

    assert_equal_and_owned(strategy, *whole_and_sharded(strategy, several))


COMPRESSED = {
    "adam": ("adam", INT8),
    "global_clipnorm": ("global_clipnorm", INT8),
    "clipnorm": ("clipnorm", INT8),
    "accumulation": ("accumulation", INT8),
    "overwriting": ("overwriting", INT8),
    "int8": ("adam", {"state": INT8["state"]}),
    "int4": ("adam", INT4),
    "remainders": ("adafactor", {"masters": "remainders"}),
    "lamb": ("lamb", {"masters": "remainders"}),
    "without_masters": ("adam", WITHOUT_MASTERS),
    "without_masters_overwriting": ("overwriting", WITHOUT_MASTERS),
}


@pytest.mark.slow
@pytest.mark.xslow_except("overwriting", "global_clipnorm", "without_masters")
@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_state(strategy, case):
    name, forms = COMPRESSED[case]
    both = whole_and_sharded(strategy, OPTIMIZERS[name], **forms)
    assert_equal_and_owned(strategy, *both)


MAX_NORM = {"constraint": keras.constraints.MaxNorm(0.5)}
OTHERS = {
    # Where replicas divide before they sum, so do owners: no power of two.
    "a scale of 1000": {"scale": 1000},
    "unscaled before apply": {"kind": "unscaled", "scale": 1000},
    "unscaled, compressed": {"kind": "unscaled", **INT8},
    "stochastic": {"rounding": "stochastic"},
    "float16 sums": {"all_reduce_dtype": "float16"},
    "constraints": MAX_NORM,
    "constraints of float32": {"dtype": "float32", **MAX_NORM},
    "constraints, compressed": {**MAX_NORM, **INT8},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, compressed": {"dtype": "bfloat16", **INT8},
    "float32": {"dtype": "float32"},
    "float32, compressed": {"dtype": "float32", **INT8},
    "float64": {"dtype": "float64"},
    "sparse": {"kind": "sparse"},
    "sparse, compressed": {"kind": "sparse", **INT8},
    "missing": {"kind": "missing"},
    "a norm": {"keeps_norm": True},
}


@pytest.mark.xslow_except(
    "a scale of 1000", "unscaled, compressed", "sparse, compressed", "a norm"
)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("case", OTHERS)
def test_scales_roundings_sums_and_dtypes(strategy, case):
    both = whole_and_sharded(strategy, OPTIMIZERS["adam"], **OTHERS[case])
    assert_equal_and_owned(strategy, *both)


# Through `fit`.


def make_model(strategy, optimizer, shard_state=True, policy="float16", **options):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = [
            keras.layers.Dense(WIDTH, "relu", dtype=policy),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(5, dtype=policy),
        ]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        wrapped = keras_mp.wrap(
            optimizer(),
            keras_mp.DynamicLossScale(2.0**8),
            shard_state=shard_state,
            **options,
        )
        model.compile(wrapped, "mse", jit_compile=False)
        wrapped.build(model.trainable_variables)
    return model


def fit(model):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * BATCH, WIDTH)).astype("float32")
    y = generator.normal(size=(STEPS * BATCH, 5)).astype("float32")
    x[6 * BATCH - 1, 0] = np.inf  # a row of the last replica
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)


FITS = {
    "float16": ("adam", {}),
    "mixed_float16": ("adam", {"policy": "mixed_float16"}),
    "compressed": ("adam", INT8),
    "average": ("average", {}),
    "accumulation": ("accumulation", {}),
    "global_clipnorm": ("global_clipnorm", {"policy": "mixed_float16"}),
    "compressed-overwriting": ("overwriting", INT8),
}


@pytest.mark.xslow_except("compressed")
@pytest.mark.slow
@pytest.mark.parametrize("case", FITS)
def test_twenty_steps_of_fit(strategy, case):
    name, options = FITS[case]
    models = [
        make_model(strategy, OPTIMIZERS[name], each, **options)
        for each in (False, True)
    ]
    for model in models:
        fit(model)
    whole, sharded = models
    assert_same_bits(strategy, whole.weights, sharded.weights)
    assert_same_bits(strategy, whole.optimizer.variables, sharded.optimizer.variables)
    assert int(sharded.optimizer.skipped_steps) == 1


# Bytes.


def bytes_by_device(strategy, variables):
    """What the buffers of all copies of variables hold on each device."""
    held = dict.fromkeys(strategy.extended.worker_devices, 0)
    for variable in variables:
        for copy in strategy.experimental_local_results(variable.value):
            held[copy.device] += copy.numpy().nbytes
    return list(held.values())


BYTES = {
    # Bytes a parameter of weights, of the gradient, and of the state that is shared.
    "float16": ("float16", {}, 2, 12),
    "compressed": ("float16", {"masters": "remainders", "state": "int8"}, 2, 4.0625),
    "int4": ("float16", {"masters": "int8_remainders", "state": "int4"}, 2, 2.0625),
    "mixed_float16": ("mixed_float16", {}, 4, 12),
    "float32 compressed": ("float32", {"state": "int8"}, 4, 2.0625),
}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_on_each_device(strategy, case):
    policy, forms, of_weight, of_state = BYTES[case]
    replicas = strategy.num_replicas_in_sync
    dtype = "float16" if policy == "float16" else "float32"
    for shapes in ([(64, 64)] * 12, [(64, 128)] * 3 + [(70, 64)] * 2 + [(64,), (5,)]):
        with strategy.scope():
            weights = [
                keras.Variable(np.zeros(shape), dtype=dtype, name=f"weight_{name}")
                for name, shape in zip("abcdefghijkl", shapes, strict=False)
            ]
            optimizer = keras_mp.wrap("adam", shard_state=True, **forms)
            optimizer.build(weights)
        sizes = [int(np.prod(shape)) for shape in shapes]
        assert bytes_by_device(strategy, weights) == [of_weight * sum(sizes)] * replicas
        shared = shared_state(optimizer, weights)
        held = bytes_by_device(strategy, shared)
        if len(set(shapes)) == 1:
            # Equal kernels are dealt out evenly: 12 divides by 2, 3 and 4.
            assert held == [of_state * sum(sizes) / replicas] * replicas
        of_each = {weight.path: 0 for weight in weights}
        for variable in shared:
            size = int(np.prod(variable.shape)) * variable.numpy().itemsize
            for path in of_each:
                of_each[path] += size if path in variable.path else 0
        largest = max(of_each.values())
        assert max(held) <= sum(held) / replicas + largest


# Files.


WAYS = ("weights", "keras", "Checkpoints", "tf.train.Checkpoint")


def save(model, way, folder):
    if way == "weights":
        model.save_weights(folder / "all.weights.h5")
    elif way == "keras":
        model.save(folder / "all.keras")
    elif way == "Checkpoints":
        keras_mp.Checkpoints(folder / "run").save(1, model)
    else:
        tf.train.Checkpoint(model=model).write(str(folder / "state"))


def load(model, way, folder):
    if way == "weights":
        model.load_weights(folder / "all.weights.h5")
    elif way == "keras":
        strategy = model.optimizer._distribution_strategy
        with strategy.scope():
            return keras.models.load_model(folder / "all.keras")
    elif way == "Checkpoints":
        assert keras_mp.Checkpoints(folder / "run").restore(model) == 1
    else:
        tf.train.Checkpoint(model=model).read(str(folder / "state")).assert_consumed()
    return model


FILES = {
    "float16": {},
    "mixed_float16": {"policy": "mixed_float16"},
    "compressed": INT8,
}


@pytest.mark.xslow_except("compressed-Checkpoints")
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FILES)
def test_files_do_not_depend_on_the_replicas(strategy, form, way, tmp_path):
    adam, options = OPTIMIZERS["adam"], FILES[form]
    replicas = strategy.num_replicas_in_sync
    fewer = [
        tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
        for count in range(1, replicas)
    ]
    for shard_state in (True, False):
        folder = tmp_path / str(shard_state)
        folder.mkdir()
        saved = make_model(strategy, adam, shard_state, **options)
        apply_on_each(strategy, saved.optimizer, saved.trainable_variables, 0)
        saved.set_weights([1.5 * weight for weight in saved.get_weights()])
        apply_on_each(strategy, saved.optimizer, saved.trainable_variables, 1)
        save(saved, way, folder)
        for other in (None, *fewer, strategy):
            for shards in (True, False):
                found = make_model(other, adam, shards, **options)
                found = load(found, way, folder)
                assert_same_bits(strategy, saved.weights, found.weights)
                ones, others = saved.optimizer, found.optimizer
                if form == "compressed" and way in ("weights", "keras"):
                    # The file has numbers: one may have two codes of 8 bits.
                    assert_same_numbers(ones, others)
                else:
                    assert_same_bits(strategy, ones.variables, others.variables)
        # The last is on as many replicas, and goes on as the one that was saved.
        for model in (saved, found):
            apply_on_each(strategy, model.optimizer, model.trainable_variables, 2)
        assert_same_bits(strategy, saved.weights, found.weights)
        ones, others = saved.optimizer.variables, found.optimizer.variables
        assert_same_bits(strategy, ones, others)
        assert_same_bits(strategy, saved.optimizer.variables, found.optimizer.variables)


# What users read and write.


def test_masters_are_read_outside_the_replicas(strategy):
    weights, optimizer = run(strategy, OPTIMIZERS["adam"], True)

    @tf.function
    def read():
        def on_replica():
            _ = optimizer.loss_scale + 1, optimizer.iterations + 1
            with pytest.raises(RuntimeError, match="on one replica, and the others"):
                _ = optimizer.master_weights
            with pytest.raises(RuntimeError, match="Read masters outside it"):
                optimizer.current_masters()
            with pytest.raises(RuntimeError), optimizer.fp32_weights():
                pass

        strategy.run(on_replica)

    read()
    for weight, master in zip(weights, optimizer.master_weights, strict=True):
        assert master.path == weight.path
        expected = master.numpy().astype(weight.dtype)
        np.testing.assert_array_equal(weight.numpy(), expected, strict=True)
    with optimizer.fp32_weights() as masters:
        for master in masters:
            master.assign(keras.ops.full(master.shape, 1 + 2.0**-12))
    for weight in weights:
        expected = 1 if weight.dtype == "float16" else 1 + 2.0**-12
        for copy in copies(strategy, weight):
            assert np.all(copy == expected)
    # With the copies of the FP32 weights that their owners have.
    assert optimizer.bytes_per_parameter()["masters"] == 4


@pytest.mark.slow
def test_weights_excluded_from_decay(strategy):
    def excluding():
        optimizer = optimizers.SGD(1.0, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["scale", "bias"])
        return optimizer

    assert_equal_and_owned(strategy, *whole_and_sharded(strategy, excluding))


def test_no_replicas_or_one_are_as_without_the_option():
    optimizer = keras_mp.wrap("adam", shard_state=True)
    weight = keras.Variable(np.ones((4, 2)), dtype="float32")
    optimizer.build([weight])
    assert optimizer.master_weights[0] is weight
    one = tf.distribute.MirroredStrategy(["CPU:0"])
    with one.scope():
        optimizer = keras_mp.wrap("adam", shard_state=True)
        weight = keras.Variable(np.ones((4, 2)), dtype="float32")
        optimizer.build([weight])
    assert optimizer.master_weights[0] is weight


def test_other_strategies_are_refused():
    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(RuntimeError, match=r"Received: OneDeviceStrategy\. Leave it"),
    ):
        keras_mp.wrap("adam", shard_state=True)
    several = tf.distribute.MultiWorkerMirroredStrategy
    assert not issubclass(several, tf.distribute.MirroredStrategy)


def test_gradients_that_replace_their_variable_are_refused(strategy):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float32")
        weight.overwrite_with_gradient = True
        optimizer = keras_mp.wrap("sgd", shard_state=True)
        with pytest.raises(ValueError, match="all_reduce_dtype and shard_state"):
            optimizer.build([weight])


@pytest.mark.slow
@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS)
def test_updates_without_merge_call(strategy, monkeypatch, forms):
    """With GPUs under XLA, TensorFlow updates variables without `merge_call`."""
    monkeypatch.setattr(strategy.extended, "_use_merge_call", lambda: False)
    with strategy.scope():
        weights = [keras.Variable(np.ones((4, 8)), dtype="float16") for _ in range(3)]
        inner = optimizers.SGD(0.5)
        optimizer = keras_mp.wrap(inner, 8, shard_state=True, **forms)
        optimizer.build(weights)

    @tf.function
    def step(overflows):
        def on_replica():
            optimizer.scale_loss(0.0)
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            bad = tf.logical_and(overflows, tf.equal(replica, 1))
            share = tf.where(bad, np.inf, 4.0 / strategy.num_replicas_in_sync)
            gradient = tf.cast(tf.fill((4, 8), share), "float16")
            optimizer.apply([gradient] * 3, weights)

        strategy.run(on_replica)

    for overflows in (False, True, False):
        step(tf.constant(overflows))
    for weight in weights:
        for copy in copies(strategy, weight):
            assert np.all(copy == 0.5)


@pytest.mark.xslow
@pytest.mark.parametrize("replicas", [3, 4])
def test_three_and_four_replicas(replicas):
    """In a process of its own: how many devices there are is set once."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [*command, __file__, "-m", "not xslow"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"KERAS_MP_TEST_REPLICAS": str(replicas)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
