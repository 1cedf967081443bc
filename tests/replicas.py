"""Small models for the tests of several replicas, and what must hold after training.

The loss is the mean output. With a layer that is linear in the data its gradient is the
mean of the data, so that with integers and powers of two nothing is rounded.
"""

import keras
import numpy as np
import tensorflow as tf

import keras_mp
from keras_mp import DynamicLossScale


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def one_weight(policy="float16", loss_scale=None, momentum=0.0):
    """A model of one weight, 1, and SGD(0.25)."""
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype=policy, name="only"
    )
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = keras_mp.wrap(
        keras.optimizers.SGD(0.25, momentum=momentum),
        loss_scale or DynamicLossScale(8.0),
    )
    model.compile(optimizer, mean_output, jit_compile=False)
    return model


def fit(model, rows, batch_size, *callbacks):
    """Fits on rows in their order: the first share of a batch is replica 0's."""
    x = np.asarray(rows)
    rows = tf.data.Dataset.from_tensor_slices((x, np.zeros((len(x), 1), "float32")))
    # The thread that tunes a dataset is joined when Python collects its iterator, which
    # may then sleep for up to a minute.
    options = tf.data.Options()
    options.autotune.enabled = False
    batches = rows.batch(batch_size).with_options(options)
    return model.fit(
        batches, shuffle=False, verbose=0, callbacks=list(callbacks)
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
        first, *others = copies(strategy, variable)
        assert len(others) == strategy.num_replicas_in_sync - 1
        for other in others:
            np.testing.assert_array_equal(first, other, err_msg=variable.path)
    for weight, master in zip(
        model.trainable_variables, optimizer.master_weights, strict=True
    ):
        rounded = master.numpy().astype(weight.dtype)
        np.testing.assert_array_equal(weight.numpy(), rounded, strict=True)


def linear(policy, optimizer, rounding="nearest", constraint=None):
    """A kernel and a bias."""
    layer = keras.layers.Dense(
        8, kernel_initializer="ones", kernel_constraint=constraint, dtype=policy
    )
    model = keras.Sequential([keras.Input((3,)), layer])
    wrapped = keras_mp.wrap(optimizer, DynamicLossScale(64.0), rounding)
    model.compile(wrapped, mean_output, jit_compile=False)
    return model
