"""Two replicas on two logical CPUs, through `fit` and a loop of one's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import (
    assert_equal_on_all_replicas,
    column,
    copies,
    fit,
    linear,
    mean_output,
    one_weight,
)

import keras_mp
from keras_mp import DynamicLossScale
from keras_mp.keras_internals import supports_no_merge_call

NEEDS_MULTI_OPTIMIZER = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="needs Keras 3.15"
)


def test_the_state_of_the_scale_is_read_as_python_numbers(strategy):
    with strategy.scope():
        model = one_weight(loss_scale=DynamicLossScale(8.0))
    fit(model, column(1, np.nan), 2)
    optimizer = model.optimizer
    assert float(optimizer.loss_scale) == float(optimizer.dynamic_scale) == 4.0
    for name in ("skipped_steps", "consecutive_skips"):
        value = int(getattr(optimizer, name))
        assert (type(value), value) == (int, 1)
    assert int(optimizer.step_counter) == int(optimizer.skips_at_minimum) == 0


# Overflows.


@pytest.mark.xslow_except("float16-1-inf", "mixed_float16-1-nan")
@pytest.mark.slow_except("float16-1-*")
@pytest.mark.parametrize(
    ("policy", "where", "bad"),
    [
        ("float16", 0, np.nan),
        ("float16", 1, np.inf),
        ("mixed_float16", 1, np.nan),
        ("float32", 1, np.inf),
    ],
)
def test_an_overflow_on_one_replica_is_seen_by_all(strategy, policy, where, bad):
    with strategy.scope():
        model = one_weight(policy)
    first, second, third = column(1, 1), column(1, 1), column(2, 0)
    second[where] = bad
    fit(model, np.concatenate([first, second, third]), 2)
    optimizer = model.optimizer
    assert_equal_on_all_replicas(strategy, model)
    # Two steps: the means of the first batch and of the third are 1.
    assert model.get_weights()[0].tolist() == [[0.5]]
    assert optimizer.iterations.numpy() == 2
    assert optimizer.loss_scale.numpy() == 4.0
    assert optimizer.skipped_steps.numpy() == 1
    assert optimizer.consecutive_skips.numpy() == 0
    assert optimizer.step_counter.numpy() == 1
    assert optimizer.last_overflow == model.trainable_variables[0].path


@pytest.mark.slow
def test_the_scale_moves_once_a_step(strategy):
    with strategy.scope():
        model = one_weight(loss_scale=DynamicLossScale(8.0, growth_interval=2))
    logged = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: logged.append(
            model.optimizer.loss_scale.numpy()
        )
    )
    fit(model, column(*[0] * 10, np.nan, 0, np.nan, np.nan), 2, record)
    # A step of two replicas counts as one step.
    assert logged == [8.0, 16.0, 16.0, 32.0, 32.0, 16.0, 8.0]
    assert model.optimizer.iterations.numpy() == 5
    assert model.optimizer.skipped_steps.numpy() == 2


@pytest.mark.slow
def test_one_replica_alone_may_overflow_in_float16(strategy):
    # An entry of x is multiplied by half the scale, the share of its replica: 2**14.
    # 4 times that is 2**16, which float16 cannot hold, but half of it can.
    with strategy.scope():
        model = one_weight(loss_scale=DynamicLossScale(2.0**15))
    fit(model, column(1, 4, 1, 4), 2)
    assert_equal_on_all_replicas(strategy, model)
    assert model.optimizer.skipped_steps.numpy() == 1
    assert model.get_weights()[0].tolist() == [[1.0 - 0.25 * 2.5]]


# Sparse gradients and stochastic rounding.


@pytest.mark.xslow_except("Adam-*")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "clipnorm"),
    [
        (keras.optimizers.SGD, None),
        (keras.optimizers.SGD, 0.25),
        (keras.optimizers.Adam, None),
    ],
)
def test_sparse_gradients_touch_the_rows_of_every_replica(
    strategy, optimizer, clipnorm
):
    def embedding():
        layers = [
            keras.layers.Embedding(
                6, 1, dtype="float16", embeddings_initializer="ones"
            ),
            keras.layers.Flatten(dtype="float16"),
        ]
        model = keras.Sequential([keras.Input((1,), dtype="int32"), *layers])
        wrapped = keras_mp.wrap(optimizer(1.0, clipnorm=clipnorm), 8)
        model.compile(wrapped, mean_output, jit_compile=False)
        return model

    # Rows 0 and 1 on replica 0, 2 and 3 on replica 1; then 2 and 4 on replica 0 and
    # twice 0 on replica 1; 5 on none.
    ids = np.array([[0], [1], [2], [3], [2], [4], [0], [0]])
    single = embedding()
    fit(single, ids, 4)
    with strategy.scope():
        mirrored = embedding()
    fit(mirrored, ids, 4)
    assert_equal_on_all_replicas(strategy, mirrored)
    (one,), (two,) = single.get_weights(), mirrored.get_weights()
    np.testing.assert_array_equal(two, one, strict=True)
    if optimizer is keras.optimizers.SGD:
        # Minus the share of the row in both batches: 1/4 and 2/4, ... Each share of 1/4
        # in a batch of four is clipped from a norm of 1/2 to one of 1/4.
        clipped = 0.5 if clipnorm else 1.0
        expected = 1 - clipped * np.array([0.75, 0.25, 0.5, 0.25, 0.25, 0.0])
        assert two.ravel().tolist() == expected.tolist()


@pytest.mark.xslow_except("on each")
@pytest.mark.slow
@pytest.mark.parametrize("clipvalue", [None, 100.0], ids=["on each", "joint"])
def test_stochastic_rounding_draws_the_same_on_every_replica(strategy, clipvalue):
    with strategy.scope():
        inner = keras.optimizers.SGD(2.0**-14, clipvalue=clipvalue)
        model = linear("float16", inner, "stochastic")
    x = np.random.default_rng(0).integers(1, 9, (40, 3)).astype("float32")
    fit(model, x, 2)
    rounded_up = 0
    for weight, master in zip(
        model.trainable_variables, model.optimizer.master_weights, strict=True
    ):
        first, second = copies(strategy, weight)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(*copies(strategy, master))
        # A rounding of the master, and not always the nearest.
        spacing = 2.0**-11 if "kernel" in weight.path else 2.0**-10
        assert np.all(np.abs(first - master.numpy()) < spacing)
        rounded_up += np.sum(first != master.numpy().astype(np.float16))
    assert rounded_up > 0


# The other parts of the package.


@pytest.mark.slow
def test_the_callback_logs_and_chooses_the_rule(strategy):
    with strategy.scope():
        model = one_weight(loss_scale=4)
    fit(model, column(1, 1), 2)
    rule = DynamicLossScale(64.0, backoff_factor=0.25)
    callback = keras_mp.LossScaleCallback(rule)
    history = fit(model, column(1, 1, 1, np.nan), 2, callback)
    assert history["loss_scale"] == [16.0]
    assert history["skipped_steps"] == [1]
    assert history["consecutive_skips"] == [1]
    assert model.get_weights()[0].tolist() == [[0.5]]


@pytest.mark.slow
def test_masters_follow_weights_that_were_set(strategy):
    with strategy.scope():
        model = one_weight()
    fit(model, column(1, 1), 2)
    model.set_weights([np.array([[3.0]])])
    fit(model, column(1, 1), 2)
    assert_equal_on_all_replicas(strategy, model)
    assert model.get_weights()[0].tolist() == [[2.75]]


def test_fp32_weights_are_written_to_all_replicas_outside_the_scope(strategy):
    with strategy.scope():
        model = one_weight()
        model.optimizer.build(model.trainable_variables)
    with model.optimizer.fp32_weights() as [fp32]:
        fp32.assign_sub([[2.0**-14]])
        fp32.assign_sub([[0.5]])
    assert_equal_on_all_replicas(strategy, model)
    assert model.get_weights()[0].tolist() == [[0.5]]
    assert fp32.numpy().tolist() == [[0.5 - 2.0**-14]]


@pytest.mark.slow
def test_export_and_files(strategy, tmp_path):
    with strategy.scope():
        model = one_weight()
    fit(model, column(2.0**-12, 2.0**-12, 1, np.nan), 2)
    # 1 - 2**-14 is a master, but no half.
    (exported,) = keras_mp.export_weights(model)
    assert exported.tolist() == [[1 - 2.0**-14]]
    path = tmp_path / "all.weights.h5"
    model.save_weights(path)

    with strategy.scope():
        again = one_weight()
        again.optimizer.build(again.trainable_variables)
    single = one_weight()
    single.optimizer.build(single.trainable_variables)
    for other in (again, single):
        other.load_weights(path)
        assert other.optimizer.master_weights[0].numpy() == exported
        assert other.optimizer.loss_scale.numpy() == 4.0
        assert other.optimizer.skipped_steps.numpy() == 1
    assert_equal_on_all_replicas(strategy, again)


# Loops of one's own.


@pytest.mark.slow
def test_a_loop_of_ones_own(strategy):
    with strategy.scope():
        model = one_weight()
        model.optimizer.build(model.trainable_variables)
        model.build((None, 1))
        optimizer = model.optimizer

        @tf.function
        def train(batch):
            def step():
                context = tf.distribute.get_replica_context()
                x = batch[context.replica_id_in_sync_group][None, None]
                with tf.GradientTape() as tape:
                    # Half, since the gradients of the replicas are added.
                    loss = optimizer.scale_loss(keras.ops.mean(model(x)) / 2)
                weights = model.trainable_variables
                gradients = tape.gradient(loss, [v.value for v in weights])
                optimizer.apply(gradients, weights)

            strategy.run(step)

        train(tf.constant([1.0, 3.0]))
        assert model.get_weights()[0].tolist() == [[0.5]]
        train(tf.constant([1.0, np.inf]))
        train(tf.constant([1.0, 1.0]))
    assert_equal_on_all_replicas(strategy, model)
    assert model.get_weights()[0].tolist() == [[0.25]]
    assert optimizer.loss_scale.numpy() == 4.0
    assert optimizer.skipped_steps.numpy() == 1


def test_accumulation_in_an_eager_loop(strategy):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        inner = keras.optimizers.SGD(0.25, gradient_accumulation_steps=2)
        optimizer = keras_mp.wrap(inner, 1)
        optimizer.build([weight])
    found = []
    for step in [[1.0, 2.0], [1.0, np.inf], [2.0, 3.0], [4.0, 4.0]]:
        gradients = tf.constant(step, "float16")

        def apply(gradients=gradients):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([gradients[replica][None]], [weight])

        strategy.run(apply)
        found.append([copy.item() for copy in copies(strategy, weight)])
    # One update: 1/4 of the mean of 3 and 5, the sums of two steps.
    assert found == [[1.0] * 2, [1.0] * 2, [0.0] * 2, [0.0] * 2]
    assert optimizer.skipped_steps.numpy() == 1


def test_in_an_uneven_batch_each_replica_counts_as_much(strategy):
    # As with bare Keras: replica 0 has the mean of two rows, replica 1 that of one.
    with strategy.scope():
        model = one_weight()
    fit(model, column(1, 1, 1, 1, 2, 4, 8), 4)
    assert_equal_on_all_replicas(strategy, model)
    mean = ((2 + 4) / 2 + 8) / 2
    assert model.get_weights()[0].tolist() == [[1.0 - 0.25 - 0.25 * mean]]


def test_an_optimizer_that_is_not_built_says_what_to_do(strategy):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        optimizer = keras_mp.wrap("sgd", 1)
        with pytest.raises(RuntimeError) as caught:
            strategy.run(lambda: optimizer.apply([tf.ones(1, "float16")], [weight]))
    message = str(caught.value)
    assert "must be built before it is applied" in message
    assert "Received: the first `apply` on 2 replicas" in message
    assert "optimizer.build(model.trainable_variables)" in message


@pytest.mark.parametrize("clipnorm", [None, 1.0])
def test_apply_outside_the_replicas_says_what_to_do(strategy, clipnorm):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        optimizer = keras_mp.wrap(keras.optimizers.SGD(clipnorm=clipnorm), 1)
        optimizer.build([weight])
        with pytest.raises(RuntimeError, match=r"Received: .*cross-replica.*run"):
            optimizer.apply([tf.ones(1, "float16")], [weight])


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "float32"])
def test_an_optimizer_made_outside_the_scope_is_refused(strategy, policy):
    # Its scale would not be mirrored, and move once for each replica.
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.25), 8)
    with pytest.raises(RuntimeError) as caught, strategy.scope():
        layer = keras.layers.Dense(1, dtype=policy)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(optimizer, mean_output, jit_compile=False)
        fit(model, column(1, 1), 2)
    message = str(caught.value)
    assert "Received: " in message
    assert "strategy.scope()" in message
    assert "keras_mp.wrap" in message


@pytest.mark.slow
def test_an_optimizer_is_built_in_the_scope_wherever_that_is_asked_for(strategy):
    with strategy.scope():
        model = one_weight(momentum=0.5)
    model.optimizer.build(model.trainable_variables)
    fit(model, column(1, 1), 2)
    assert_equal_on_all_replicas(strategy, model)
    assert model.get_weights()[0].tolist() == [[0.75]]


def test_an_inner_optimizer_made_outside_the_scope_is_refused(strategy):
    # Each replica would count its iterations.
    inner = keras.optimizers.SGD(0.25)
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        with pytest.raises(RuntimeError, match=r"Received: .* Create it, and call ker"):
            keras_mp.wrap(inner, 8).build([weight])


# Gradients that are summed in FP16.


def apply_on_each(strategy, shares, **arguments):
    """The weight, from 0, and the optimizer after a step of SGD(1): minus the sum."""
    shares = np.asarray(shares)
    with strategy.scope():
        weight = keras.Variable(np.zeros(shares.shape[1:]), dtype=shares.dtype.name)
        optimizer = keras_mp.wrap(keras.optimizers.SGD(1.0), 1, **arguments)
        optimizer.build([weight])

    def apply():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        optimizer.apply([tf.constant(shares)[replica]], [weight])

    strategy.run(apply)
    return copies(strategy, optimizer.master_weights[0]), optimizer


SUMS = {
    # Between 2,048 and 4,096 float16 has the even integers.
    "a rounding": ("float16", [2048, 1], "float16", 2048),
    "no rounding": ("float16", [2048, 1], "float32", 2049),
    "float32 gradients": ("float32", [2049, 3], "float16", 2052),
    "float32 gradients as they are": ("float32", [2049, 3.5], "float32", 2052.5),
    "an overflow": ("float16", [40000, 40000], "float16", None),
    "no overflow": ("float16", [40000, 40000], "float32", 80000),
    "an overflow in float32": ("float32", [3e38, 3e38], "float32", None),
    "a term that overflows": ("float32", [70000, -70000], "float16", None),
}


@pytest.mark.parametrize("case", SUMS)
def test_the_sum_of_two_replicas(strategy, case):
    dtype, shares, all_reduce_dtype, expected = SUMS[case]
    shares = np.array(shares, dtype)[:, None]
    masters, optimizer = apply_on_each(
        strategy, shares, all_reduce_dtype=all_reduce_dtype
    )
    assert [m.item() for m in masters] == [-(expected or 0.0)] * 2
    assert optimizer.skipped_steps.numpy() == (expected is None)


def test_the_bound_of_sums_in_float16(strategy):
    shares = np.random.default_rng(0).normal(size=(2, 10_000)).astype("float32")
    masters, _ = apply_on_each(strategy, shares, all_reduce_dtype="float16")
    exact, sizes = shares.astype("float64").sum(0), np.abs(shares).sum(0)
    # Each term is rounded once, and their sum, below (1 + 2**-11) `sizes`, once more;
    # below 2**-14 a rounding is up to 2**-25.
    bound = 2 * (1 + 2.0**-11) * 2.0**-11 * sizes + 3 * 2.0**-25
    for master in masters:
        assert np.all(np.abs(-master - exact) <= bound)
        assert np.any(-master != exact)


def test_gradients_that_are_summed_in_float16_stay_scaled(strategy):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        optimizer = keras_mp.wrap("sgd", all_reduce_dtype="float16")
        optimizer.build([weight])
    gradients = [tf.ones(1, "float16")]
    with pytest.raises(RuntimeError, match="summed in FP16 must be scaled"):
        strategy.run(lambda: optimizer.unscale_gradients(gradients))


@pytest.mark.parametrize(
    ("clipnorm", "all_reduce_dtype"), [(None, "float16"), (1.0, "float32")]
)
def test_gradients_that_replace_their_variable_are_not_summed(
    strategy, clipnorm, all_reduce_dtype
):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float32")
        weight.overwrite_with_gradient = True
        inner = keras.optimizers.SGD(clipnorm=clipnorm)
        optimizer = keras_mp.wrap(inner, all_reduce_dtype=all_reduce_dtype)
        with pytest.raises(ValueError, match="that replace their variables"):
            optimizer.build([weight])


# Optimizers whose run on each replica would differ.


def shares_of_a_long_gradient(strategy, optimizer):
    """The weight, from 0, after a step with the gradients (3, 0) and (0, 4)."""
    with strategy.scope():
        weight = keras.Variable([0.0, 0.0], dtype="float16")
        wrapped = keras_mp.wrap(optimizer(), 1)
        wrapped.build([weight])
    shares = tf.constant([[3.0, 0.0], [0.0, 4.0]], "float16")

    def apply():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        wrapped.apply([shares[replica]], [weight])

    strategy.run(apply)
    return copies(strategy, weight)


def clipping():
    return keras.optimizers.SGD(1.0, global_clipnorm=1.0)


def one_for_all():
    optimizer = clipping()
    return keras.optimizers.MultiOptimizer(lambda variable: optimizer)


@pytest.mark.parametrize(
    "optimizer", [clipping, pytest.param(one_for_all, marks=NEEDS_MULTI_OPTIMIZER)]
)
def test_the_joint_gradient_is_clipped(strategy, optimizer):
    for copy in shares_of_a_long_gradient(strategy, optimizer):
        # 3/5 and 4/5, rounded to float16: half a unit of 2**-11; Keras adds 1e-12.
        np.testing.assert_allclose(copy, [-0.6, -0.8], rtol=0, atol=2.0**-11)


def muon():
    return keras.optimizers.Muon(0.125, weight_decay=0.25, global_clipnorm=1.0)


def muon_for_all():
    optimizer = muon()
    return keras.optimizers.MultiOptimizer(lambda variable: optimizer)


# Where there is a MultiOptimizer, Muon runs, too; that of Keras 3.12 does not.
@pytest.mark.xslow_except("float32-muon", "mixed_float16-muon_for_all")
@pytest.mark.slow
@NEEDS_MULTI_OPTIMIZER
@pytest.mark.parametrize("optimizer", [muon, muon_for_all])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_muon_assigns_to_weights_on_all_replicas(strategy, policy, optimizer):
    # Its weight decay does so by itself, apart from the update.
    with strategy.scope():
        model = linear(policy, optimizer())
    start = model.get_weights()[0]
    fit(model, np.arange(24, dtype="float32").reshape(8, 3), 4)
    assert_equal_on_all_replicas(strategy, model)
    assert np.all(model.get_weights()[0] != start)


# Where TensorFlow updates variables without `merge_call`: several GPUs under XLA.


@pytest.fixture
def without_merge_call(strategy, monkeypatch):
    """The strategy, as it is with GPUs under XLA."""
    monkeypatch.setattr(strategy.extended, "_use_merge_call", lambda: False)
    return strategy


def test_who_updates_without_merging(strategy, monkeypatch):
    assert supports_no_merge_call()
    with strategy.scope():
        assert not supports_no_merge_call()
        monkeypatch.setattr(strategy.extended, "_use_merge_call", lambda: False)
        assert supports_no_merge_call()


# The weight after a step with a gradient of 1/2, one that overflows on the second
# replica, and another of 1/2.
WITHOUT_MERGE_CALL = {
    "each": ({}, "float32", 0.5),
    "joint_clipping": ({"clipvalue": 0.25}, "float32", 0.75),
    "joint_accumulation": ({"gradient_accumulation_steps": 2}, "float32", 0.75),
    "joint_average": (
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
        "float32",
        # The average of 0.75 and 0.5, the weights after the two steps.
        0.625,
    ),
    "joint_float16": ({}, "float16", 0.5),
}


@pytest.mark.slow_except("joint_*")
@pytest.mark.parametrize("case", WITHOUT_MERGE_CALL)
def test_all_replicas_are_updated_without_merge_call(without_merge_call, case):
    arguments, all_reduce_dtype, expected = WITHOUT_MERGE_CALL[case]
    strategy = without_merge_call
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        optimizer = keras_mp.wrap(
            keras.optimizers.SGD(0.5, **arguments), 8, all_reduce_dtype=all_reduce_dtype
        )
        optimizer.build([weight])

    @tf.function
    def step(overflows):
        def on_replica():
            optimizer.scale_loss(0.0)
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            bad = tf.logical_and(overflows, tf.equal(replica, 1))
            share = tf.where(bad, np.inf, 4.0 / strategy.num_replicas_in_sync)
            optimizer.apply([tf.cast(share[None], "float16")], [weight])

        strategy.run(on_replica)

    for overflows in (False, True, False):
        step(tf.constant(overflows))
    for variable in (weight, optimizer.master_weights[0]):
        assert copies(strategy, variable) == [expected] * strategy.num_replicas_in_sync
    assert set(map(int, copies(strategy, optimizer.skipped_steps))) == {1}
