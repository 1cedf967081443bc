"""The size of the program that XLA compiles grows linearly with the layers."""

import resource

import keras
import pytest
import tensorflow as tf

from keras_mp import layers

IMAGES, ROWS = (2, 8, 8, 4), (2, 3, 16)
CASES = {
    "batch-training": ("BatchNormalization", {}, IMAGES, {"training": True}),
    "batch-inference": ("BatchNormalization", {}, IMAGES, {"training": False}),
    "layer": ("LayerNormalization", {}, ROWS, {}),
    "rms": ("RMSNormalization", {}, ROWS, {}),
    "group": ("GroupNormalization", {"groups": 2}, IMAGES, {}),
    "unit": ("UnitNormalization", {}, ROWS, {}),
    "softmax": ("Softmax", {}, ROWS, {}),
    "average": (
        "AveragePooling2D",
        {"pool_size": 2, "strides": 1, "padding": "same"},
        IMAGES,
        {},
    ),
    "dense": ("Dense", {"units": 16}, ROWS, {}),
}


def differentiated(stack, variables):
    """An XLA-compiled function: the gradients of the input and of the variables."""

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cast(stack(x), "float32")
            z = tf.reduce_sum(y * y)
        return tape.gradient(z, [x, *variables])

    return step


def instructions(name, arguments, shape, options, count):
    """The number of HLO instructions of a model of `count` layers in sequence."""
    stacked = [
        getattr(layers, name)(dtype="mixed_float16", **arguments) for _ in range(count)
    ]
    for layer in stacked:
        layer.build(shape)

    def stack(x):
        for layer in stacked:
            x = layer(x, **options)
        return x

    variables = [v for layer in stacked for v in layer.trainable_variables]
    x = tf.ones(shape, tf.float16)
    step = differentiated(stack, variables)
    # A branch of a graph is a function in its library.
    assert not step.get_concrete_function(x).graph.as_graph_def().library.function
    text = step.experimental_get_compiler_ir(x)(stage="hlo")
    return sum(" = " in line for line in text.splitlines())


@pytest.mark.slow_except("dense", "layer", "softmax")
@pytest.mark.parametrize(
    ("name", "arguments", "shape", "options"), CASES.values(), ids=CASES
)
def test_each_layer_adds_as_many_instructions(name, arguments, shape, options):
    one, two, four = (
        instructions(name, arguments, shape, options, n) for n in (1, 2, 4)
    )
    # The first and the last layer may have less to do than those between.
    assert four - two <= 2 * (two - one) + 8


@pytest.mark.slow
def test_xla_compiles_a_deep_model_in_seconds():
    # Branches in the graph made XLA compute with all numbers before them, one by one,
    # to find out what is constant: 30 s here, and more for larger inputs.
    keras.config.set_dtype_policy("mixed_float16")
    shape = (16, 16, 64)
    blocks = [
        (keras.layers.Dense(shape[-1]), layers.LayerNormalization()) for _ in range(4)
    ]

    def stack(x):
        for dense, norm in blocks:
            x = norm(x + dense(x))
        return x

    x = tf.ones(shape, tf.float16)
    stack(x)
    step = differentiated(stack, [])
    start = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    step(x)
    # CPU time, which other programs on the machine do not add to.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - start < 10.0
