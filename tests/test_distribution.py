"""Two replicas on two logical CPUs against one process, bit for bit where exact.

The loss is the mean output. With a layer that is linear in the data its gradient is the
mean of the data, so that with integers and powers of two nothing is rounded.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp import DynamicLossScale


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def one_weight(policy="float16", loss_scale=None, **arguments):
    """A model of one weight, 1, and SGD(0.25)."""
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype=policy, name="only"
    )
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = keras_mp.wrap(
        keras.optimizers.SGD(0.25), loss_scale or DynamicLossScale(8.0), **arguments
    )
    model.compile(optimizer, mean_output, jit_compile=False)
    return model


def fit(model, rows, batch_size, *callbacks, epochs=1):
    """Fits on rows in their order: the first half of a batch is replica 0's."""
    x = np.asarray(rows)
    return model.fit(
        x,
        np.zeros((len(x), 1), "float32"),
        batch_size=batch_size,
        shuffle=False,
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
    ).history


def column(*numbers):
    return np.array(numbers, "float32").reshape(-1, 1)


def copies(strategy, variable):
    """The value of a variable on each replica."""
    native = variable.value if isinstance(variable, keras.Variable) else variable
    return [copy.numpy() for copy in strategy.experimental_local_results(native)]


def assert_equal_on_all_replicas(strategy, model):
    optimizer = model.optimizer
    for variable in [
        *model.variables,
        *optimizer.variables,
        *optimizer.inner_optimizer.variables,
    ]:
        first, second = copies(strategy, variable)
        np.testing.assert_array_equal(first, second, err_msg=variable.path)
    for weight, master in zip(
        model.trainable_variables, optimizer.master_weights, strict=True
    ):
        rounded = master.numpy().astype(weight.dtype)
        np.testing.assert_array_equal(weight.numpy(), rounded, strict=True)


# Overflows.


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


def test_one_replica_alone_may_overflow_in_float16(strategy):
    # An entry of x is multiplied by half the scale, the share of its replica: 2**14.
    # 4 times that is 2**16, which float16 cannot hold, but half of it can.
    with strategy.scope():
        model = one_weight(loss_scale=DynamicLossScale(2.0**15))
    fit(model, column(1, 4, 1, 4), 2)
    assert_equal_on_all_replicas(strategy, model)
    assert model.optimizer.skipped_steps.numpy() == 1
    assert model.get_weights()[0].tolist() == [[1.0 - 0.25 * 2.5]]


# Against one process on the joint batch.

OPTIMIZERS = {
    "float16-momentum": lambda: keras.optimizers.SGD(0.125, momentum=0.5),
    "float16-adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.25),
    "float16-global-clipnorm": lambda: keras.optimizers.SGD(0.125, global_clipnorm=1.0),
    "mixed_float16-adam": lambda: keras.optimizers.Adam(0.1, clipnorm=1.0),
}


def linear(policy, optimizer, rounding="nearest"):
    """A kernel and a bias."""
    layer = keras.layers.Dense(8, kernel_initializer="ones", dtype=policy)
    model = keras.Sequential([keras.Input((3,)), layer])
    wrapped = keras_mp.wrap(optimizer, DynamicLossScale(64.0), rounding)
    model.compile(wrapped, mean_output, jit_compile=False)
    return model


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_training_equals_that_of_one_process(strategy, case):
    policy, optimizer = case.partition("-")[0], OPTIMIZERS[case]
    # Small integers, batches of 8, 8 outputs: every gradient is a sum of integers
    # below 2**11 times a power of two, and exact in float16 and float32, in whatever
    # order it is summed. Hence what the optimizer makes of it is the same, too.
    x = np.random.default_rng(0).integers(-4, 5, (48, 3)).astype("float32")
    x[21, 1] = np.nan  # the third batch, replica 1
    single = linear(policy, optimizer())
    fit(single, x, 8)
    with strategy.scope():
        mirrored = linear(policy, optimizer())
    fit(mirrored, x, 8)

    assert_equal_on_all_replicas(strategy, mirrored)
    for one, two in zip(
        single.optimizer.variables + single.variables,
        mirrored.optimizer.variables + mirrored.variables,
        strict=True,
    ):
        np.testing.assert_array_equal(two.numpy(), one.numpy(), err_msg=one.path)
    assert mirrored.optimizer.skipped_steps.numpy() == 1
    assert mirrored.optimizer.iterations.numpy() == 5
    changed = [np.any(w != np.round(w)) for w in mirrored.get_weights()]
    assert all(changed)


def perceptron():
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.0625), DynamicLossScale(64.0))
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def test_training_on_real_numbers_equals_that_of_one_process(strategy):
    # An entry of a gradient is a sum of 8 products, below `size` in all. The two runs
    # differ in the order of the sum, 8 roundings of float32 of that size. A step moves
    # a weight by the gradient divided by 16, so after 10 steps the weights differ by
    # 10 / 16 of that, and twice that for the later gradients that differ with them.
    size, steps = 4.0, 10
    tolerance = 2 * (steps / 16) * 8 * 2.0**-23 * size
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (8 * steps, 4)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    single = perceptron()
    start = single.get_weights()
    with strategy.scope():
        mirrored = perceptron()
    for model in (single, mirrored):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert_equal_on_all_replicas(strategy, mirrored)
    assert mirrored.optimizer.iterations.numpy() == steps
    for one, two, before in zip(
        single.get_weights(), mirrored.get_weights(), start, strict=True
    ):
        np.testing.assert_allclose(two, one, rtol=0, atol=tolerance)
        # Far less than what training changed.
        assert np.max(np.abs(one - before)) > 100 * tolerance


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_sparse_gradients_touch_the_rows_of_every_replica(strategy, optimizer):
    def embedding():
        layers = [
            keras.layers.Embedding(
                6, 1, dtype="float16", embeddings_initializer="ones"
            ),
            keras.layers.Flatten(dtype="float16"),
        ]
        model = keras.Sequential([keras.Input((1,), dtype="int32"), *layers])
        wrapped = keras_mp.wrap(optimizer(1.0), 8)
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
        # Minus the share of the row in both batches: 1/4 and 2/4, ...
        assert two.ravel().tolist() == [0.25, 0.75, 0.5, 0.75, 0.75, 1.0]


def test_stochastic_rounding_draws_the_same_on_every_replica(strategy):
    with strategy.scope():
        model = linear("float16", keras.optimizers.SGD(2.0**-14), "stochastic")
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


def test_masters_follow_weights_that_were_set(strategy):
    with strategy.scope():
        model = one_weight()
    fit(model, column(1, 1), 2)
    model.set_weights([np.array([[3.0]])])
    fit(model, column(1, 1), 2)
    assert_equal_on_all_replicas(strategy, model)
    assert model.get_weights()[0].tolist() == [[2.75]]


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


def test_apply_outside_the_replicas_says_what_to_do(strategy):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        optimizer = keras_mp.wrap("sgd", 1)
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
