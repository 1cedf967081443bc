"""What the tests over model families share: which 16-bit products a graph has left."""

import keras
import numpy as np
import tensorflow as tf

import keras_mp

PRODUCTS_AND_SUMS = {
    "AvgPool",
    "AvgPool3D",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Conv2D",
    "Conv2DBackpropInput",
    "Conv3D",
    "Conv3DBackpropInputV2",
    "Cumsum",
    "DepthwiseConv2dNative",
    "Einsum",
    "FusedBatchNormV3",
    "LogSoftmax",
    "MatMul",
    "Mean",
    "Softmax",
    "Sum",
    "UnsortedSegmentSum",
    "XlaConvV2",
}


def products_and_sums_in_16_bits(call):
    """Returns the names of those in a concrete function, without functions in it."""
    return [
        operation.name
        for operation in call.graph.get_operations()
        if operation.type in PRODUCTS_AND_SUMS
        and any(x.dtype in (tf.float16, tf.bfloat16) for x in operation.outputs)
    ]


def traced(model, inputs):
    return tf.function(lambda: model(inputs)).get_concrete_function()


def assert_family(make, inputs, left=()):
    """Converts a model under mixed_float16, and looks for what its graph has left.

    Args:
        make: function without arguments.
        inputs: of the model.
        left: names of the classes that may compute products and sums as in Keras.
    """
    keras.config.set_dtype_policy("mixed_float16")
    model = make()
    variables = model.variables
    keras_mp.convert(model, verbose=True)
    assert [id(v) for v in model.variables] == [id(v) for v in variables]
    report = keras_mp.conversion_report(model)
    assert {name for name, _ in report.not_converted} == set(left)
    names = [
        layer.name for layer in model._flatten_layers() if type(layer).__name__ in left
    ]
    call = traced(model, inputs)
    for operation in products_and_sums_in_16_bits(call):
        scopes = operation.split("/")
        assert any(scope.startswith(name) for name in names for scope in scopes)
    for output in keras.tree.flatten(call()):
        assert np.all(np.isfinite(output))
