"""Small problems with known answers, and ways to look at what a step did to them."""

import keras
import numpy as np

import keras_mp

# How a step can be made: JAX compiles a function of all variables.
MODES = ["eager", "jit"] if keras.backend.backend() == "jax" else ["eager"]


def value(variable):
    """The value of a variable or tensor as a NumPy array of the same dtype."""
    return np.asarray(keras.ops.convert_to_numpy(variable))


def assert_same_bits(actual, expected, what=""):
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    same = np.ascontiguousarray(actual).tobytes() == expected.tobytes()
    assert same, f"{what}: {actual!r} is not to the bit {expected!r}"


def snapshot(*variables):
    """The path and value of each variable, to be compared later."""
    return [(variable.path, value(variable).copy()) for variable in variables]


def assert_snapshot(before, *variables):
    for (path, expected), variable in zip(before, variables, strict=True):
        assert_same_bits(value(variable), expected, path)


def variables_of(weights, optimizer):
    """All that a skipped step must leave alone."""
    return [*weights, *optimizer.master_weights, *optimizer.inner_optimizer.variables]


def make_weights(dtype):
    """A kernel and a bias between 0.5 and 2, with more digits than 16 bits have."""
    generator = np.random.default_rng(0)
    return [
        keras.Variable(
            generator.uniform(0.5, 2.0, shape).astype("float32"), dtype=dtype, name=name
        )
        for name, shape in (("kernel", (2, 3)), ("bias", (3,)))
    ]


def make_gradients(seed):
    """Gradients of 1/8 to 1 in size that any 16-bit format holds, also scaled by 64."""
    generator = np.random.default_rng(seed)
    return [
        (generator.integers(4, 32, shape) * generator.choice([-1, 1], shape) / 32)
        for shape in ((2, 3), (3,))
    ]


def tensors(arrays, dtype):
    return [
        None if a is None else keras.ops.convert_to_tensor(a, dtype) for a in arrays
    ]


def make_step(optimizer, weights, mode):
    """Returns `step(gradients)`, eager or as one compiled function of all variables."""
    optimizer.build(weights)
    if mode == "eager":
        return lambda gradients: optimizer.apply(gradients, weights)
    import jax

    compiled = jax.jit(optimizer.stateless_apply)

    def step(gradients):
        after = compiled(
            [variable.value for variable in optimizer.variables],
            gradients,
            [weight.value for weight in weights],
        )
        for variables, values in zip(
            (weights, optimizer.variables), after, strict=True
        ):
            for variable, new in zip(variables, values, strict=True):
                variable.assign(new)

    return step


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def one_weight(policy="float16", loss_scale=None, optimizer=None, **options):
    """A model of one weight, 1, whose gradient is the mean of the data; SGD(0.25)."""
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype=policy, name="only"
    )
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = keras_mp.wrap(
        optimizer or keras.optimizers.SGD(0.25),
        loss_scale or keras_mp.DynamicLossScale(8.0),
    )
    model.compile(optimizer, mean_output, **options)
    return model


def linear(policy, optimizer, rounding="nearest", **forms):
    """A model of a kernel and a bias, whose gradients are means of the data."""
    layer = keras.layers.Dense(8, kernel_initializer="ones", dtype=policy, name="only")
    model = keras.Sequential([keras.Input((3,)), layer])
    scale = keras_mp.DynamicLossScale(64.0)
    wrapped = keras_mp.wrap(optimizer, scale, rounding, **forms)
    model.compile(wrapped, mean_output)
    return model


def integer_rows():
    """Six batches of 8 rows; the sums of a batch are exact. The third overflows."""
    rows = np.random.default_rng(0).integers(-4, 5, (48, 3)).astype("float32")
    rows[21, 1] = np.nan  # of the second device
    return rows


def column(*numbers):
    return np.array(numbers, "float32").reshape(-1, 1)


def rows_with_an_overflow(where, bad=np.inf):
    """Three batches of two rows, with means of 1; `bad` is a row of the second."""
    rows = column(1, 1, 1, 1, 2, 0)
    rows[2 + where] = bad
    return rows


def fit(model, rows, batch_size, *callbacks, epochs=1):
    """Fits on rows in their order, and returns what was logged."""
    return model.fit(
        rows,
        np.zeros((len(rows), 1), "float32"),
        batch_size=batch_size,
        shuffle=False,
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
    ).history
