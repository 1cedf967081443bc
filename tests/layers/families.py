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
    "XlaConvV2",
}


def products_and_sums_in_16_bits(model, inputs):
    """Returns the names of those in the graph of a call, without functions in it."""
    graph = tf.function(lambda: model(inputs)).get_concrete_function().graph
    return [
        operation.name
        for operation in graph.get_operations()
        if operation.type in PRODUCTS_AND_SUMS
        and any(x.dtype in (tf.float16, tf.bfloat16) for x in operation.outputs)
    ]


def assert_family(make, inputs, left=()):
    """Converts a model under mixed_float16, and looks for what its graph has left.

    The outputs are as close to those in FP32 as the layers of Keras are, or closer: a
    few layers round to 2**-11 each, of values that normalizations keep near 1.

    Args:
        make: function without arguments.
        inputs: of the model.
        left: names of classes that may compute products and sums as in Keras, sorted.
    """
    keras.config.set_dtype_policy("mixed_float16")
    model = make()
    assert products_and_sums_in_16_bits(model, inputs)
    variables = model.variables
    keras_mp.convert(model, verbose=True)
    assert [id(v) for v in model.variables] == [id(v) for v in variables]
    report = keras_mp.conversion_report(model)
    assert sorted({name for name, _ in report.left}) == sorted(left)
    names = [
        layer.name for layer in model._flatten_layers() if type(layer).__name__ in left
    ]
    for operation in products_and_sums_in_16_bits(model, inputs):
        scopes = operation.split("/")
        assert any(scope.startswith(name) for name in names for scope in scopes)
    for output in keras.tree.flatten(model(inputs)):
        assert np.all(np.isfinite(output))
