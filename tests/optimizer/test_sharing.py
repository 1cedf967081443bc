"""Two optimizers that share one loss scale, as those of a GAN do."""

import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp
from keras_mp import DynamicLossScale, FP32MasterOptimizer

MODES = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])


def run_as(mode, function):
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "xla")


def shared(count, rule, learning_rate=0.25):
    """Optimizers that share a scale, each built on a weight of 1 of its own."""
    weights = [keras.Variable([1.0], dtype="float16") for _ in range(count)]
    first = keras_mp.wrap(optimizers.SGD(learning_rate), rule)
    others = [keras_mp.wrap(optimizers.SGD(learning_rate), first) for _ in weights[1:]]
    for optimizer, weight in zip((first, *others), weights, strict=True):
        optimizer.build([weight])
    return (first, *others), weights


def gradients_of(overflows):
    return tf.constant([[np.inf if each else 0.0] for each in overflows], "float16")


# Each optimizer's loss is scaled before any of them applies, or right before its own
# does, or one loss is for all of them.
def simultaneous(users, gradients):
    for user in users:
        user.scale_loss(0.0)
    for user, gradient in zip(users, gradients, strict=True):
        user.apply([gradient])


def alternating(users, gradients):
    for user, gradient in zip(users, gradients, strict=True):
        user.scale_loss(0.0)
        user.apply([gradient])


def one_loss(users, gradients):
    users[0].scale_loss(0.0)
    for user, gradient in zip(users, gradients, strict=True):
        user.apply([gradient])


@pytest.mark.parametrize(
    ("count", "step", "mode"),
    [
        (2, simultaneous, "graph"),
        (2, alternating, "eager"),
        (2, one_loss, "xla"),
        (3, simultaneous, "eager"),
    ],
)
def test_four_steps_of_all_grow_the_scale_once(count, step, mode):
    users, _ = shared(count, DynamicLossScale(8.0, growth_interval=4))
    act = run_as(mode, lambda gradients: step(users, gradients))
    scales = []
    for _ in range(8):
        act(list(gradients_of([False] * count)))
        scales.append(float(users[0].loss_scale))
    assert scales == [8, 8, 8, 16, 16, 16, 16, 32]
    assert [int(user.iterations) for user in users] == [8] * count
    assert int(users[-1].step_counter) == 8


# Which of two optimizers overflow in each step, and what follows: scale, skipped and
# consecutive skipped steps after each.
OVERFLOWS = {
    "both": (1, ["11"], [(512, 1, 1)]),
    "first": (1, ["10"], [(512, 1, 1)]),
    "second": (1, ["01"], [(512, 1, 1)]),
    "second_then_none": (1, ["01", "00"], [(512, 1, 1), (512, 1, 0)]),
    "first_then_second": (1, ["10", "01"], [(512, 1, 1), (256, 2, 2)]),
    "forgiven_once": (
        2,
        ["01", "00", "01"],
        [(1024, 1, 1), (1024, 1, 0), (1024, 2, 1)],
    ),
    "twice_the_second": (2, ["01", "01"], [(1024, 1, 1), (512, 2, 2)]),
    "twice_in_turn": (2, ["01", "10"], [(1024, 1, 1), (512, 2, 2)]),
    "both_is_once": (2, ["11", "11"], [(1024, 1, 1), (512, 2, 2)]),
}


RUNS = [(case, step, "eager") for case in OVERFLOWS for step in (alternating, one_loss)]
RUNS += [("twice_in_turn", simultaneous, mode) for mode in ("eager", "graph", "xla")]


@pytest.mark.slow_except("*-eager")
@pytest.mark.parametrize(("case", "step", "mode"), RUNS)
def test_a_step_backs_off_once_whoever_overflowed(case, step, mode):
    hysteresis, steps, expected = OVERFLOWS[case]
    users, weights = shared(2, DynamicLossScale(1024.0, hysteresis=hysteresis))
    act = run_as(mode, lambda gradients: step(users, gradients))
    found = []
    for overflows in steps:
        act(list(gradients_of([each == "1" for each in overflows])))
        one, other = (
            (
                float(user.loss_scale),
                int(user.skipped_steps),
                int(user.consecutive_skips),
            )
            for user in users
        )
        assert one == other
        found.append(one)
    assert found == expected
    # Each one's own steps, and its own overflow.
    for i, user in enumerate(users):
        finite = sum(overflows[i] == "0" for overflows in steps)
        assert int(user.iterations) == finite
        assert (user.last_overflow is None) == (finite == len(steps))
        assert float(weights[i][0]) == 1.0


@MODES
def test_a_late_overflow_takes_back_the_growth(mode):
    users, _ = shared(2, DynamicLossScale(8.0, growth_interval=1))
    act = run_as(mode, lambda gradients: simultaneous(users, gradients))
    # The first one's step would have doubled the scale.
    act(list(gradients_of([False, True])))
    assert float(users[0].loss_scale) == 4.0
    assert int(users[0].step_counter) == 0


def test_one_of_them_steps_more_often():
    # As the critic of a WGAN: the generator's step belongs to the critic's last one.
    (critic, generator), _ = shared(2, DynamicLossScale(8.0, growth_interval=5))
    zero = [tf.zeros(1, "float16")]
    for user in (*[critic] * 5, generator, *[critic] * 4, generator, critic):
        user.scale_loss(0.0)
        user.apply(zero)
    assert float(critic.loss_scale) == 32.0
    assert int(critic.step_counter) == 10


def test_one_of_them_stops():
    (first, second), _ = shared(2, DynamicLossScale(8.0, growth_interval=2))
    zero = [tf.zeros(1, "float16")]
    simultaneous((first, second), [*zero, *zero])
    for _ in range(3):
        second.scale_loss(0.0)
        second.apply(zero)
    assert float(first.loss_scale) == 32.0


@MODES
def test_one_loss_is_unscaled_by_its_own_scale_for_all(mode):
    users, weights = shared(2, DynamicLossScale(8.0, growth_interval=1))
    weights = [weight.value for weight in weights]

    def step():
        with tf.GradientTape() as tape:
            loss = users[0].scale_loss(tf.reduce_sum(weights[0] + weights[1]))
        gradients = tape.gradient(loss, weights)
        for user, gradient in zip(users, gradients, strict=True):
            user.apply([gradient])

    step = run_as(mode, step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
        step()
    # The first one's step doubles the scale; the gradients were scaled before.
    assert [float(weight[0]) for weight in weights] == [0.5, 0.5]
    assert float(users[0].loss_scale) == 32.0


@MODES
def test_a_loss_scaled_for_another_does_not_replace_ones_own(mode):
    users, weights = shared(2, DynamicLossScale(8.0, growth_interval=1))
    (critic, generator), gradient = users, tf.constant([8.0], "float16")

    def step():
        generator.scale_loss(0.0)
        unscaled = generator.unscale_gradients([gradient])
        for _ in range(2):
            scale = critic.scale_loss(1.0)
            critic.apply([tf.cast(scale, "float16")[None]])
        generator.apply(unscaled)

    run_as(mode, step)()
    assert [float(weight[0]) for weight in weights] == [0.5, 0.75]


def test_a_new_rule_between_the_two_holds():
    (first, second), _ = shared(2, DynamicLossScale(8.0, growth_interval=1))
    first.scale_loss(0.0)
    second.scale_loss(0.0)
    first.apply([tf.zeros(1, "float16")])
    second.loss_scale = DynamicLossScale(64.0, growth_interval=5)
    second.apply([tf.constant([np.inf], "float16")])
    assert float(first.loss_scale) == 32.0


def test_replicas_move_a_shared_scale_once(strategy):
    with strategy.scope():
        users, _ = shared(2, DynamicLossScale(8.0, growth_interval=2))

    @tf.function
    def step(overflows):
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            bad = tf.logical_and(overflows, tf.equal(replica, 1))
            gradient = tf.where(bad, np.inf, 8.0) * tf.ones(1)
            simultaneous(users, [tf.zeros(1, "float16"), tf.cast(gradient, "float16")])

        strategy.run(on_replica)

    scales = []
    for overflows in (False, False, True, False, False):
        step(tf.constant(overflows))
        scales.append(float(users[0].loss_scale.numpy()))
    assert scales == [8, 16, 8, 8, 16]
    assert int(users[0].skipped_steps.numpy()) == 1
    assert [int(user.iterations.numpy()) for user in users] == [5, 4]


# Saving.


@keras.saving.register_keras_serializable(package="tests")
class GAN(keras.Model):
    """Two players of one weight each; both losses are the weight times x."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        player = {"use_bias": False, "kernel_initializer": "ones", "dtype": "float16"}
        self.generator = keras.layers.Dense(1, name="generator", **player)
        self.discriminator = keras.layers.Dense(1, name="discriminator", **player)

    def build(self, shape):
        self.generator.build(shape)
        self.discriminator.build(shape)
        self.built = True

    def compile(self, d_optimizer, g_optimizer, **arguments):
        super().compile(optimizer=None, **arguments)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_optimizer.build(self.discriminator.trainable_variables)
        self.g_optimizer.build(self.generator.trainable_variables)

    def get_compile_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            "d_optimizer": serialize(self.d_optimizer),
            "g_optimizer": serialize(self.g_optimizer),
        }

    def compile_from_config(self, config):
        deserialize = keras.saving.deserialize_keras_object
        self.compile(**{name: deserialize(each) for name, each in config.items()})

    def train_step(self, data):
        for player, optimizer in (
            (self.discriminator, self.d_optimizer),
            (self.generator, self.g_optimizer),
        ):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_sum(player(data)))
            weights = player.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def gan():
    model = GAN()
    model.build((None, 1))
    generator = keras_mp.wrap(optimizers.SGD(0.25), DynamicLossScale(8.0, 2.0, 0.5, 4))
    model.compile(keras_mp.wrap(optimizers.SGD(0.25), generator), generator)
    return model


def by_file(model, folder):
    model.save(folder / "gan.keras")
    return keras.saving.load_model(folder / "gan.keras")


def by_pickle(model, folder):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.slow_except("by_pickle")
@pytest.mark.parametrize("copy", [by_file, by_pickle])
def test_a_saved_gan_shares_its_scale(copy, tmp_path):
    model = gan()
    rows = np.zeros((6, 1), "float32")
    model.fit(rows, batch_size=1, verbose=0)
    loaded = copy(model, tmp_path)
    one, other = loaded.d_optimizer, loaded.g_optimizer
    assert one.loss_scale is other.loss_scale
    assert one.loss_scale_rule is other.loss_scale_rule
    assert one.loss_scale_rule == model.g_optimizer.loss_scale_rule
    assert (float(one.loss_scale), int(one.step_counter)) == (16.0, 6)
    # The copy and the model go on alike, and apart.
    for each in (loaded, model):
        each.fit(rows[:2], batch_size=1, verbose=0)
        assert float(each.g_optimizer.loss_scale) == 32.0
        assert int(each.d_optimizer.iterations) == 8


def test_one_of_two_is_saved_alone(tmp_path):
    (first, _), _ = shared(2, DynamicLossScale(8.0))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras_mp.wrap("sgd", loss_scale=first), "mse")
    model.fit(np.zeros((3, 1)), np.zeros((3, 1)), batch_size=1, verbose=0)
    loaded = by_file(model, tmp_path)
    assert loaded.optimizer.loss_scale_rule == DynamicLossScale(8.0)
    assert int(loaded.optimizer.step_counter) == 3


def test_who_joins_after_rounds_of_others_begins_one():
    """The state before the rounds in the file is not the one before this step."""
    rule = DynamicLossScale(8.0, growth_interval=4)
    (first, second), _ = shared(2, rule)
    for _ in range(4):
        alternating((first, second), gradients_of([False, False]))
    assert float(first.loss_scale) == 16
    (alone,), _ = shared(1, rule)
    for new, old in zip(alone.variables, first.variables, strict=True):
        new.assign(old)
    for _ in range(8):
        alternating((alone,), gradients_of([False]))
    assert float(alone.loss_scale) == 64
    joined = keras_mp.wrap("sgd", alone)
    joined.build([keras.Variable([1.0], dtype="float16")])
    alternating((joined,), gradients_of([True]))
    assert float(alone.loss_scale) == 32
    assert int(joined.skipped_steps) == 1


def test_a_config_alone_cannot_share_and_says_how():
    (first, second), _ = shared(2, DynamicLossScale(8.0))
    config = second.get_config()
    with pytest.warns(
        UserWarning, match=r"(?s)scale was shared.*\"loss_scale\": other"
    ):
        alone = FP32MasterOptimizer.from_config(config)
    assert alone.loss_scale_rule == DynamicLossScale(8.0)
    assert alone.loss_scale is not first.loss_scale
    again = FP32MasterOptimizer.from_config({**config, "loss_scale": first})
    assert again.loss_scale is first.loss_scale


def test_a_pickled_optimizer_that_shares_warns():
    first = keras_mp.wrap("sgd", loss_scale=8)
    pickle.dumps(first)
    second = keras_mp.wrap("sgd", loss_scale=first)
    for each in (first, second):
        with pytest.warns(UserWarning, match="(?s)shares its loss scale.*the model"):
            copy = pickle.loads(pickle.dumps(each))
        assert float(copy.loss_scale) == 8.0


def test_the_config_of_one_that_does_not_share_is_that_of_its_rule():
    rule = DynamicLossScale(8.0)
    config = keras_mp.wrap("sgd", loss_scale=rule).get_config()
    assert config["loss_scale"] == keras.saving.serialize_keras_object(rule)


@pytest.mark.parametrize("of", ["tf.train.Checkpoint", "Checkpoints"])
def test_a_checkpoint_in_the_middle_of_a_step(of, tmp_path):
    def pair():
        return shared(2, DynamicLossScale(8.0, growth_interval=1))

    def half(user, value=0.0):
        user.scale_loss(0.0)
        user.apply([tf.constant([value], "float16")])

    (first, second), _ = pair()
    half(first)
    keras.utils.clear_session(free_memory=False)
    (first_copy, second_copy), _ = pair()
    if of == "Checkpoints":
        keras_mp.Checkpoints(tmp_path).save(1, first, second)
        keras_mp.Checkpoints(tmp_path).restore(first_copy, second_copy)
    else:
        path = tf.train.Checkpoint(a=first, b=second).save(tmp_path / "x")
        restored = tf.train.Checkpoint(a=first_copy, b=second_copy).restore(path)
        restored.assert_existing_objects_matched()
    half(second_copy, np.inf)
    assert float(first_copy.loss_scale) == 4.0
