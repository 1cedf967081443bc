"""`suggest_loss_scale`: the rule of the paper, and a model that it saves."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp


def model_of(size, **options):
    """A model whose largest gradient is `size`, of its one weight."""
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, "linear", False, "ones")]
    )
    model.compile(loss=lambda y, p: p[:, 0] * size, **options)
    return model


ONE = (np.ones((1, 1)), np.ones((1, 1)))


@pytest.mark.parametrize(
    ("size", "margin", "scale"),
    [
        # 65,504 / 2 is below 2^15: the product with 2^14 * 2 is the last below it.
        (1.0, 2.0, 2.0**14),
        (1.0, 1.0, 2.0**15),
        (2.0**-10, 2.0, 2.0**24),
        (2.0**-8, 2.0, 2.0**22),
        (3.0, 2.0, 2.0**13),
        (2.0**40, 2.0, 2.0**-14),
    ],
)
def test_rule_of_the_paper(size, margin, scale):
    suggested = keras_mp.suggest_loss_scale(
        model_of(size, optimizer="sgd"), [ONE], margin=margin
    )
    assert isinstance(suggested, keras_mp.ConstantLossScale)
    assert suggested.initial_scale == scale


def test_largest_of_the_batches_counts_and_no_more_are_run():
    batches = [(np.full((1, 1), x), np.ones((1, 1))) for x in (1.0, 8.0, 2.0, 1e6)]
    model = model_of(1.0, optimizer=keras_mp.wrap("adam"))
    suggested = keras_mp.suggest_loss_scale(model, batches, batches=3)
    assert suggested.initial_scale == 2.0**11
    dataset = tf.data.Dataset.from_tensor_slices(np.ones((6, 1), "float32"))
    dataset = dataset.map(lambda x: (x, x)).batch(2).repeat()
    suggested = keras_mp.suggest_loss_scale(model, dataset)
    assert suggested.initial_scale == 2.0**14


def exhausted():
    iterator = iter([ONE])
    next(iterator)
    return iterator


MISUSE = {
    "empty": ([], {}, "at least one batch"),
    "exhausted": (exhausted(), {}, "at least one batch"),
    "zeros": ([ONE], {"size": 0.0}, "not zero"),
    "NaN": ([(np.full((1, 1), np.nan), np.ones((1, 1)))], {}, "must be finite.*`x`"),
    "batches": ([ONE], {"batches": 0}, "`batches` must be at least 1"),
    "margin": ([ONE], {"margin": 0.0}, "`margin` must be positive"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_explained(name):
    dataset, arguments, message = MISUSE[name]
    model = model_of(arguments.get("size", 1.0), optimizer="sgd")
    arguments = {k: v for k, v in arguments.items() if k != "size"}
    with pytest.raises(ValueError, match=f"(?s){message}"):
        keras_mp.suggest_loss_scale(model, dataset, **arguments)


def train(policy, optimizer_of):
    """The last loss of a regression whose gradients FP16 rounds to zero."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    random = np.random.default_rng(0)
    x = random.normal(size=(512, 16)).astype("float32")
    y = np.tanh(x @ random.normal(size=(16, 1))).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras_mp.layers.Dense(32, "tanh"),
            keras_mp.layers.Dense(1, dtype="float32"),
        ]
    )

    def tiny(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1) * 2.0**-20

    model.compile(optimizer="sgd", loss=tiny)
    model.compile(optimizer=optimizer_of(model, x, y), loss=tiny)
    history = model.fit(x, y, batch_size=64, epochs=20, verbose=0)
    return history.history["loss"][-1] * 2.0**20


@pytest.mark.slow
def test_it_saves_a_model_that_does_not_learn_without():
    learning_rate = 0.1 * 2.0**20

    def wrapped(scale):
        def optimizer_of(model, x, y):
            chosen = scale or keras_mp.suggest_loss_scale(model, [(x, y)])
            sgd = keras.optimizers.SGD(learning_rate)
            return keras_mp.wrap(sgd, loss_scale=chosen)

        return optimizer_of

    fp32 = train("float32", lambda *_: keras.optimizers.SGD(learning_rate))
    suggested = train("mixed_float16", wrapped(None))
    without = train("mixed_float16", wrapped(1.0))
    assert suggested == pytest.approx(fp32, rel=0.05)
    assert without > 2 * fp32
