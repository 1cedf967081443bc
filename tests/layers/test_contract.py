"""What every layer of keras_mp promises, held to one table of cases."""

import functools
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp import Float16MatmulPolicy, layers
from keras_mp.layers.float16_matmul_policy import KeepsPolicy

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # half of the spacing above 1
# What FP32 adds to 16-bit roundings: sums have at most 40 terms here, each with a
# rounding of 2**-24, and a few operations follow.
FP32 = 64 * 2.0**-24
POLICIES = ("mixed_float16", "float16", "mixed_bfloat16", "bfloat16")
MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)


@dataclass
class Case:
    """A layer, how to call it, and its error bound in roundings.

    Args:
        name: of the class.
        options: of the constructor; a function makes an option of the dtype.
        shapes: of the inputs.
        call: `(layer, inputs)`, default `layer(*inputs)`.
        roundings: 16-bit roundings from the inputs to an output, and again as many
            from there to a gradient. Values and slopes on the way are at most 1 here:
            inputs and weights are below 1, and sums are over few terms. None: outputs
            and gradients of inputs are results in FP32 that are rounded once, whatever
            the slopes, and gradients of FP32 weights are not rounded at all.
        reference: the dtype of the Keras layer to compare with.
    """

    name: str
    options: dict[str, Any]
    shapes: list[tuple[int, ...]]
    call: Any = lambda layer, inputs: layer(*inputs)
    roundings: int | None = 2
    reference: str = "float64"

    def make(self, package, dtype):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        options = {
            name: value(dtype) if callable(value) else value
            for name, value in self.options.items()
        }
        return getattr(package, self.name)(dtype=dtype, **options)

    def bounds(self):
        """Roundings of an output, the gradient of a weight and that of an input."""
        if self.roundings is None:
            return 1, 0, 1
        return self.roundings, 2 * self.roundings, 2 * self.roundings

    def run(self, layer, inputs):
        return keras.tree.flatten(self.call(layer, inputs))


def listed(**arguments):
    return lambda layer, inputs: layer(list(inputs), **cut(arguments, inputs))


def called(**arguments):
    return lambda layer, inputs: layer(*inputs, **cut(arguments, inputs))


def cut(arguments, inputs):
    """Leaves the masks of as many examples as there are."""
    if keras.utils.is_keras_tensor(inputs[0]):
        return arguments
    count = keras.ops.shape(inputs[0])[0]
    return keras.tree.map_structure(
        lambda x: tf.constant(x)[:count] if isinstance(x, np.ndarray) else x, arguments
    )


def step(layer, inputs):
    return layer(inputs[0], list(inputs[1:]))


def recurrent(name, **options):
    """5 steps of at most 2 rounded states each, and the rounding of an input."""
    call = called(mask=MASK) if options.pop("masked", False) else called()
    options = {"units": 7, "recurrent_initializer": "glorot_uniform"} | options
    return Case(name, options, [(2, 5, 3)], call, roundings=12)


def convolved(rank, **options):
    """3 steps of at most 2 rounded states each, and the rounding of an input."""
    call = called(mask=MASK[:, :3]) if options.pop("masked", False) else called()
    options = {
        "filters": 3,
        "kernel_size": 2,
        "padding": "same",
        "recurrent_initializer": "glorot_uniform",
    } | options
    shape = (2, 3, *(4, 3, 2)[:rank], 2)
    return Case(f"ConvLSTM{rank}D", options, [shape], call, roundings=8)


def once(name, options, shape, **arguments):
    """A layer of one input that is computed in FP32 and rounded once."""
    # TensorFlow has no AvgPool3D of float64.
    no_float64 = ("AveragePooling3D", "AdaptiveAveragePooling3D")
    reference = "float32" if name in no_float64 else "float64"
    return Case(name, options, [shape], called(**arguments), None, reference)


RNN_OPTIONS = {
    "plain": {},
    "masked": {"masked": True, "return_sequences": True},
    "states": {"return_state": True, "return_sequences": True, "masked": True},
    "backwards": {"go_backwards": True, "return_sequences": True},
    "unrolled": {"unroll": True},
    "no-bias": {"use_bias": False},
    "relu": {"activation": "relu", "recurrent_activation": "hard_sigmoid"},
}
CASES = {
    "dense": Case("Dense", {"units": 7}, [(2, 17)]),
    "dense-relu": Case("Dense", {"units": 7, "activation": "relu"}, [(2, 5, 17)]),
    "dense-gelu": Case("Dense", {"units": 7, "activation": "gelu"}, [(2, 17)]),
    "dense-tanh": Case("Dense", {"units": 1, "activation": "tanh"}, [(1, 1)]),
    "dense-softmax": Case(
        "Dense", {"units": 7, "activation": "softmax"}, [(2, 17)], roundings=8
    ),
    "dense-no-bias": Case("Dense", {"units": 7, "use_bias": False}, [(2, 3, 4, 17)]),
    "einsum-heads": Case(
        "EinsumDense",
        {"equation": "abc,cde->abde", "output_shape": (None, 3, 2), "bias_axes": "de"},
        [(2, 5, 7)],
    ),
    "einsum-batch": Case(
        "EinsumDense",
        {"equation": "abc,bcd->abd", "output_shape": (5, 3), "bias_axes": "bd"},
        [(2, 5, 7)],
    ),
    "einsum-ellipsis": Case(
        "EinsumDense",
        {
            "equation": "...x,xy->...y",
            "output_shape": 3,
            "bias_axes": "y",
            "activation": "relu",
        },
        [(2, 5, 7)],
    ),
    **{f"lstm-{name}": recurrent("LSTM", **o) for name, o in RNN_OPTIONS.items()},
    # The loop over time is that of LSTM.
    **{
        f"gru-{name}": recurrent("GRU", **RNN_OPTIONS[name])
        for name in ("plain", "masked", "no-bias", "relu")
    },
    "gru-softmax": recurrent("GRU", recurrent_activation="softmax"),
    "gru-before": recurrent("GRU", reset_after=False, return_sequences=True),
    **{
        f"simple-{name}": recurrent("SimpleRNN", **RNN_OPTIONS[name])
        for name in ("plain", "masked", "states", "backwards", "no-bias")
    },
    "conv-lstm1d": convolved(1),
    "conv-lstm1d-masked": convolved(1, masked=True, return_sequences=True),
    "conv-lstm2d": convolved(2),
    "conv-lstm2d-valid": convolved(2, padding="valid", strides=(2, 1)),
    "conv-lstm2d-dilated": convolved(2, dilation_rate=2, use_bias=False),
    "conv-lstm2d-states": convolved(
        2, return_state=True, return_sequences=True, masked=True, go_backwards=True
    ),
    "conv-lstm2d-unrolled": convolved(2, unroll=True, activation="relu"),
    "conv-lstm3d": convolved(3),
    "simple-cell": Case(
        "SimpleRNNCell",
        {"units": 7, "recurrent_initializer": "glorot_uniform", "activation": "relu"},
        [(2, 3), (2, 7)],
        step,
        4,
    ),
    "lstm-cell": Case(
        "LSTMCell",
        {"units": 7, "recurrent_initializer": "glorot_uniform"},
        [(2, 3), (2, 7), (2, 7)],
        step,
        4,
    ),
    "gru-cell": Case(
        "GRUCell",
        {"units": 7, "recurrent_initializer": "glorot_uniform"},
        [(2, 3), (2, 7)],
        step,
        4,
    ),
    "attention": Case(
        "Attention", {"use_scale": True}, [(2, 3, 7), (2, 5, 7)], listed(), 6
    ),
    "attention-masked": Case(
        "Attention",
        {},
        [(2, 5, 7), (2, 5, 7), (2, 5, 7)],
        listed(mask=[MASK, MASK], use_causal_mask=False, return_attention_scores=True),
        6,
    ),
    "attention-concat": Case(
        "Attention",
        {"score_mode": "concat", "use_scale": True},
        [(2, 5, 7), (2, 5, 7)],
        listed(use_causal_mask=True),
        6,
    ),
    "additive": Case("AdditiveAttention", {}, [(2, 3, 7), (2, 5, 7)], listed(), 6),
    "additive-masked": Case(
        "AdditiveAttention",
        {"use_scale": False},
        [(2, 5, 7), (2, 5, 7)],
        listed(mask=[MASK, MASK]),
        6,
    ),
    "heads": Case(
        "MultiHeadAttention",
        {"num_heads": 2, "key_dim": 3},
        [(2, 3, 7), (2, 5, 7)],
        roundings=12,
    ),
    "heads-causal": Case(
        "MultiHeadAttention",
        {"num_heads": 2, "key_dim": 3, "value_dim": 4, "output_shape": 2},
        [(2, 5, 7), (2, 5, 7)],
        called(use_causal_mask=True),
        12,
    ),
    "heads-scores": Case(
        "MultiHeadAttention",
        {"num_heads": 2, "key_dim": 3, "use_bias": False},
        [(2, 5, 7), (2, 5, 7), (2, 5, 7)],
        called(return_attention_scores=True, attention_mask=MASK[:, None, :]),
        12,
    ),
    "heads-axes": Case(
        "MultiHeadAttention",
        {"num_heads": 1, "key_dim": 3, "attention_axes": (1, 2)},
        [(2, 2, 3, 4), (2, 3, 2, 4)],
        roundings=12,
    ),
    "groups": Case(
        "GroupQueryAttention",
        {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2},
        [(2, 3, 7), (2, 5, 7)],
        roundings=12,
    ),
    "groups-causal": Case(
        "GroupQueryAttention",
        {"head_dim": 3, "num_query_heads": 2, "num_key_value_heads": 1},
        [(2, 5, 7), (2, 5, 7)],
        called(use_causal_mask=True),
        12,
    ),
    "groups-scores": Case(
        "GroupQueryAttention",
        {
            "head_dim": 3,
            "num_query_heads": 2,
            "num_key_value_heads": 2,
            "use_bias": False,
        },
        [(2, 5, 7), (2, 5, 7), (2, 5, 7)],
        called(return_attention_scores=True, attention_mask=MASK[:, None, :]),
        12,
    ),
    "dot": Case("Dot", {"axes": (2, 1)}, [(2, 3, 5), (2, 5, 4)], listed()),
    "dot-vectors": Case("Dot", {"axes": -1}, [(2, 5), (2, 5)], listed()),
    "dot-normalized": Case(
        "Dot", {"axes": 1, "normalize": True}, [(2, 5), (2, 5, 3)], listed(), 6
    ),
    "add": Case("Add", {}, [(2, 5)] * 3, listed(), None),
    "add-two": Case("Add", {}, [(2, 5), (2, 1)], listed()),
    "average": Case("Average", {}, [(2, 5), (2, 5)], listed(), None),
    "reversible": Case(
        "ReversibleEmbedding",
        {"input_dim": 7, "output_dim": 5},
        [(2, 3, 5)],
        called(reverse=True),
    ),
    "reversible-capped": Case(
        "ReversibleEmbedding",
        {"input_dim": 7, "output_dim": 5, "logit_soft_cap": 0.5},
        [(2, 3, 5)],
        called(reverse=True),
    ),
    "conv1d-causal": Case(
        "Conv1D",
        {"filters": 7, "kernel_size": 3, "padding": "causal", "dilation_rate": 2},
        [(2, 7, 3)],
    ),
    "conv2d": Case(
        "Conv2D",
        {"filters": 7, "kernel_size": 3, "strides": 2, "activation": "relu"},
        [(2, 7, 5, 3)],
    ),
    "conv2d-pointwise": Case(
        "Conv2D",
        {"filters": 7, "kernel_size": 1, "activation": "tanh"},
        [(2, 4, 3, 5)],
    ),
    "conv1d-pointwise-causal": Case(
        "Conv1D",
        {
            "filters": 4,
            "kernel_size": 1,
            "padding": "causal",
            "dilation_rate": 2,
            "use_bias": False,
            "activation": "silu",
        },
        [(2, 5, 3)],
    ),
    "conv3d-pointwise": Case(
        "Conv3D", {"filters": 3, "kernel_size": 1}, [(1, 2, 3, 2, 4)]
    ),
    "conv2d-groups": Case(
        "Conv2D",
        {"filters": 4, "kernel_size": 2, "padding": "same", "groups": 2},
        [(1, 4, 5, 2)],
    ),
    "conv2d-depthwise": Case(
        "Conv2D",
        {"filters": 6, "kernel_size": 3, "groups": 3, "data_format": "channels_first"},
        [(2, 3, 5, 4)],
    ),
    "conv2d-depthwise-strides": Case(
        "Conv2D",
        {"filters": 3, "kernel_size": 2, "groups": 3, "strides": (1, 2)},
        [(2, 5, 4, 3)],
    ),
    "conv2d-depthwise-dilated": Case(
        "Conv2D",
        {
            "filters": 3,
            "kernel_size": 2,
            "groups": 3,
            "padding": "same",
            "dilation_rate": 2,
        },
        [(2, 5, 4, 3)],
    ),
    "conv1d-depthwise": Case(
        "Conv1D",
        {"filters": 6, "kernel_size": 3, "groups": 3, "padding": "causal"},
        [(2, 5, 3)],
    ),
    "conv3d-groups": Case(
        "Conv3D", {"filters": 4, "kernel_size": 2, "groups": 2}, [(1, 3, 3, 2, 2)]
    ),
    "conv3d": Case("Conv3D", {"filters": 2, "kernel_size": 2}, [(1, 3, 3, 4, 2)]),
    "conv2d-transpose": Case(
        "Conv2DTranspose",
        {"filters": 3, "kernel_size": 3, "strides": 2, "use_bias": False},
        [(2, 3, 3, 4)],
    ),
    "conv1d-transpose": Case(
        "Conv1DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2}, [(2, 5, 4)]
    ),
    "conv3d-transpose": Case(
        "Conv3DTranspose", {"filters": 2, "kernel_size": 2}, [(1, 2, 3, 2, 2)]
    ),
    "separable1d": Case(
        "SeparableConv1D", {"filters": 3, "kernel_size": 3}, [(2, 5, 2)]
    ),
    "depthwise1d": Case(
        "DepthwiseConv1D", {"kernel_size": 3, "depth_multiplier": 2}, [(2, 5, 3)]
    ),
    "separable": Case(
        "SeparableConv2D",
        {"filters": 3, "kernel_size": 3, "depth_multiplier": 2},
        [(2, 5, 5, 2)],
    ),
    "depthwise": Case(
        "DepthwiseConv2D",
        {"kernel_size": 3, "depth_multiplier": 2, "activation": "tanh"},
        [(2, 5, 5, 3)],
    ),
    "separable1d-one": Case(
        "SeparableConv1D",
        {"filters": 3, "kernel_size": 3, "padding": "same", "activation": "relu"},
        [(2, 5, 16)],
    ),
    "depthwise1d-one": Case(
        "DepthwiseConv1D", {"kernel_size": 3, "activation": "silu"}, [(2, 5, 17)]
    ),
    "depthwise-one": Case(
        "DepthwiseConv2D",
        {"kernel_size": 3, "strides": 2, "padding": "same", "activation": "tanh"},
        [(2, 5, 5, 17)],
    ),
    "depthwise-dilated": Case(
        "DepthwiseConv2D",
        {"kernel_size": 2, "dilation_rate": 2, "use_bias": False},
        [(2, 5, 4, 17)],
    ),
    "conv1d-depthwise-same": Case(
        "Conv1D",
        {"filters": 16, "kernel_size": 3, "groups": 16, "padding": "same"},
        [(2, 5, 16)],
    ),
    "batch-norm": once("BatchNormalization", {}, (5, 7, 3), training=True),
    "batch-norm-inference": once(
        "BatchNormalization", {"epsilon": 0.1}, (7, 3), training=False
    ),
    "batch-norm-inference-channels-first": once(
        "BatchNormalization", {"axis": 1, "scale": False}, (2, 3, 5), training=False
    ),
    "batch-norm-images": once(
        "BatchNormalization",
        {"axis": 1, "center": False, "momentum": 0.5},
        (2, 3, 4, 5),
        training=True,
    ),
    "batch-norm-volumes": once(
        "BatchNormalization",
        {"center": False, "scale": False},
        (2, 2, 2, 3, 3),
        training=True,
    ),
    "batch-norm-masked": once(
        "BatchNormalization", {}, (2, 5, 3), training=True, mask=MASK
    ),
    "batch-norm-synchronized": once(
        "BatchNormalization",
        {"synchronized": True, "axis": 2},
        (2, 5, 3),
        training=True,
    ),
    "batch-norm-renorm": once(
        "BatchNormalization",
        {
            "renorm": True,
            "renorm_clipping": {"rmax": 1.5, "rmin": 0.5, "dmax": 0.25},
            "renorm_momentum": 0.5,
        },
        (2, 5, 3),
        training=True,
    ),
    "batch-norm-renorm-masked": once(
        "BatchNormalization",
        {"renorm": True, "scale": False},
        (2, 5, 3),
        training=True,
        mask=MASK,
    ),
    "layer-norm": once("LayerNormalization", {}, (2, 5, 7)),
    "layer-norm-axis": once(
        "LayerNormalization", {"axis": 1, "scale": False}, (2, 5, 3)
    ),
    "layer-norm-axes": once(
        "LayerNormalization", {"axis": [1, -1], "center": False}, (2, 3, 4, 5)
    ),
    "group-norm": once("GroupNormalization", {"groups": 3}, (2, 5, 6)),
    "group-norm-instance": once(
        "GroupNormalization", {"groups": -1, "axis": 1, "center": False}, (2, 3, 4, 5)
    ),
    "group-norm-one": once("GroupNormalization", {"groups": 1, "scale": False}, (2, 7)),
    "rms-norm": once("RMSNormalization", {}, (2, 5, 7)),
    "rms-norm-axes": once(
        "RMSNormalization", {"axis": [1, 2], "epsilon": 0.1}, (2, 3, 4)
    ),
    "unit-norm": once("UnitNormalization", {}, (2, 5, 7)),
    "unit-norm-axes": once("UnitNormalization", {"axis": [1, 2]}, (2, 5, 3)),
    # The kernel, whose columns have a norm of at most 1, is rounded, and then outputs
    # that are its products with inputs of a norm of at most 5**0.5.
    "spectral": Case(
        "SpectralNormalization",
        {"layer": lambda dtype: layers.Dense(4, dtype=dtype), "power_iterations": 3},
        [(2, 5)],
        called(training=True),
        roundings=4,
    ),
    "spectral-inference": Case(
        "SpectralNormalization",
        {"layer": lambda dtype: layers.Conv1D(4, 3, dtype=dtype)},
        [(2, 5, 2)],
    ),
    "activation-softmax": once("Activation", {"activation": "softmax"}, (2, 7)),
    "activation-log-softmax": once(
        "Activation", {"activation": "log_softmax"}, (2, 5, 3)
    ),
    "activation-gelu": Case(
        "Activation", {"activation": "gelu"}, [(2, 7)], roundings=8
    ),
    "softmax": once("Softmax", {}, (2, 7)),
    "softmax-axis": once("Softmax", {"axis": 1}, (2, 5, 3)),
    "softmax-axes": once("Softmax", {"axis": [1, 2]}, (2, 5, 3)),
    "softmax-masked": once("Softmax", {"axis": [1]}, (2, 5), mask=MASK),
    "softmax-axes-masked": once(
        "Softmax", {"axis": (2, 1)}, (2, 5, 3), mask=np.float32(MASK[:, :, None])
    ),
    "global-pool1d": once("GlobalAveragePooling1D", {}, (2, 5, 3)),
    "global-pool1d-masked": once(
        "GlobalAveragePooling1D", {"keepdims": True}, (2, 5, 3), mask=MASK
    ),
    "global-pool1d-channels-first": once(
        "GlobalAveragePooling1D",
        {"data_format": "channels_first"},
        (2, 3, 5),
        mask=MASK,
    ),
    "global-pool2d": once("GlobalAveragePooling2D", {}, (2, 3, 5, 2)),
    "global-pool2d-channels-first": once(
        "GlobalAveragePooling2D",
        {"data_format": "channels_first", "keepdims": True},
        (2, 2, 3, 5),
    ),
    "global-pool3d": once(
        "GlobalAveragePooling3D", {"keepdims": True}, (2, 2, 3, 4, 2)
    ),
    "global-pool3d-channels-first": once(
        "GlobalAveragePooling3D", {"data_format": "channels_first"}, (2, 2, 2, 3, 4)
    ),
    "pool1d": once("AveragePooling1D", {"pool_size": 2}, (2, 7, 3)),
    "pool1d-channels-first": once(
        "AveragePooling1D",
        {
            "pool_size": 3,
            "strides": 2,
            "padding": "same",
            "data_format": "channels_first",
        },
        (2, 3, 5),
    ),
    "pool2d": once(
        "AveragePooling2D",
        {"pool_size": 3, "strides": 1, "padding": "same"},
        (2, 4, 5, 2),
    ),
    "pool2d-channels-first": once(
        "AveragePooling2D",
        {"pool_size": (2, 3), "data_format": "channels_first"},
        (2, 2, 5, 7),
    ),
    "pool3d": once(
        "AveragePooling3D", {"pool_size": 2, "padding": "same"}, (1, 3, 4, 5, 2)
    ),
    "pool3d-channels-first": once(
        "AveragePooling3D",
        {"pool_size": (1, 2, 3), "strides": 1, "data_format": "channels_first"},
        (1, 2, 3, 4, 5),
    ),
    "adaptive-pool1d": once("AdaptiveAveragePooling1D", {"output_size": 3}, (2, 7, 3)),
    "adaptive-pool1d-longer": once(
        "AdaptiveAveragePooling1D", {"output_size": 7}, (2, 5, 3)
    ),
    "adaptive-pool2d": once(
        "AdaptiveAveragePooling2D", {"output_size": (2, 3)}, (2, 4, 7, 2)
    ),
    "adaptive-pool2d-channels-first": once(
        "AdaptiveAveragePooling2D",
        {"output_size": 2, "data_format": "channels_first"},
        (2, 2, 5, 4),
    ),
    "adaptive-pool3d": once(
        "AdaptiveAveragePooling3D", {"output_size": (2, 1, 3)}, (1, 3, 2, 5, 2)
    ),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
# The first case of each layer stands for the others where a case takes long.
FIRST = list({case.name: name for name, case in reversed(CASES.items())}.values())


def half_of(policy):
    return policy.removeprefix("mixed_")


def rounded(x, half):
    return tf.cast(tf.cast(x, half), "float64").numpy()


def inputs_of(case, half="float16"):
    """Numbers below 1 that the 16-bit format holds."""
    rng = np.random.default_rng(1)
    return [rounded(rng.uniform(-1, 1, shape), half) for shape in case.shapes]


def pair(case, policy, reference, half="float16"):
    """Our layer and the Keras layer, built, with the same 16-bit numbers as weights."""
    made = case.make(layers, policy), case.make(keras.layers, reference)
    rng = np.random.default_rng(2)
    weights = []
    for layer in made:
        case.run(
            layer, [tf.cast(x, layer.compute_dtype) for x in inputs_of(case, half)]
        )
        for weight in layer.weights[len(weights) :]:
            # A variance or deviation is positive.
            lowest = 0.5 if weight.name.endswith(("variance", "stddev")) else -0.5
            weights.append(rounded(rng.uniform(lowest, lowest + 1, weight.shape), half))
        layer.set_weights(weights)
    return made


def gradients(case, layer, inputs, mode="eager"):
    """The outputs, the gradients of a weighted sum of them, and the weights left.

    Args:
        mode: `"eager"` or `"xla"`; test_training.py has graphs.
    """

    def run(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = case.run(layer, inputs)
            loss = 0.0
            for i, output in enumerate(outputs):
                # Slopes of at most 1/2, that every format holds.
                slope = np.cos(np.arange(output.shape.num_elements()) + i)
                slope = np.round(slope * 8) / 16
                slope = tf.reshape(tf.cast(slope, output.dtype), output.shape)
                loss += tf.reduce_sum(tf.cast(slope * output, "float64"))
        return outputs, tape.gradient(loss, [layer.trainable_variables, inputs])

    inputs = [tf.cast(x, layer.compute_dtype) for x in inputs]
    if mode == "xla":
        run = tf.function(run, jit_compile=True)
    outputs, (of_weights, of_inputs) = run(inputs)
    return outputs, of_weights, of_inputs, [tf.constant(w.value) for w in layer.weights]


def assert_close(actual, expected, roundings, unit, what):
    """Asserts that `actual` is off by so many roundings of the largest value."""
    actual, expected = np.float64(actual), np.float64(expected)
    size = max(1.0, np.max(np.abs(expected), initial=0.0))
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=(roundings * unit + FP32) * size, err_msg=what
    )


@pytest.mark.xslow_except(*FIRST)
@pytest.mark.slow_except(
    "batch-norm", "conv2d", "dense", "heads", "lstm-plain", "softmax"
)
@EVERY_CASE
def test_float32_is_what_keras_computes(case):
    ours, theirs = pair(case, "float32", "float32")
    found = gradients(case, ours, inputs_of(case))
    expected = gradients(case, theirs, inputs_of(case))
    for actual, wanted in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        assert actual.dtype == wanted.dtype == tf.float32
        np.testing.assert_array_equal(actual, wanted)


RUNS = {
    f"{name}-{policy}-{mode}": (name, policy, mode)
    for name in CASES
    for mode, policies in {
        "eager": POLICIES if name in FIRST else ("mixed_float16", "bfloat16"),
        "xla": ("mixed_float16",) if name in FIRST else (),
    }.items()
    for policy in policies
}


@functools.cache
def expected_of(name, half):
    """Float64 outputs, gradients and weights left, and the weights before."""
    case = CASES[name]
    oracle = pair(case, "float32", case.reference, half)[1]
    weights = oracle.get_weights()
    return gradients(case, oracle, inputs_of(case, half)), weights


# Before 3.12 Keras's own layer fails eagerly on masks.
SINCE = dict.fromkeys(("attention-masked", "additive-masked"), needs("Keras", 3, 12))


@pytest.mark.xslow_except(
    "*-mixed_float16-*", *(f"{name}-{half}-eager" for name in FIRST for half in UNIT)
)
@pytest.mark.slow_except(*(f"{name}-mixed_float16-eager" for name in FIRST))
@pytest.mark.parametrize(
    ("name", "policy", "mode"),
    [pytest.param(*run, marks=SINCE.get(run[0], ())) for run in RUNS.values()],
    ids=RUNS,
)
def test_16_bits_are_close_to_float64(name, policy, mode):
    case = CASES[name]
    half = half_of(policy)
    expected, weights = expected_of(name, half)
    ours = case.make(layers, policy)
    case.run(ours, [tf.cast(x, half) for x in inputs_of(case, half)])
    ours.set_weights(weights)
    found = gradients(case, ours, inputs_of(case, half), mode)
    outputs, of_weights, of_inputs, _ = found
    assert {x.dtype.name for x in [*outputs, *of_inputs]} == {half}
    for gradient, weight in zip(of_weights, ours.trainable_variables, strict=True):
        assert gradient.dtype == weight.dtype, weight.path
    for what, actual, wanted, roundings in zip(
        ("output", "gradient of a weight", "gradient of an input", "weight"),
        found,
        expected,
        # What a call writes is FP32, or rounded to a weight of 16 bits.
        (*case.bounds(), int(ours.variable_dtype == half)),
        strict=True,
    ):
        for a, b in zip(actual, wanted, strict=True):
            assert_close(a, b, roundings, UNIT[half], what)


PRODUCTS = {"plain": Float16MatmulPolicy(), "scaled": Float16MatmulPolicy(True)}
PRODUCT_RUNS = {
    f"{name}-{policy}-{mode}": (name, policy, mode)
    for name, case in CASES.items()
    if issubclass(getattr(layers, case.name, object), KeepsPolicy)
    for policy in PRODUCTS
    for mode in (("eager", "xla") if name in FIRST else ("eager",))
}


@pytest.mark.xslow_except("*-scaled-*", "*-plain-eager", "dense-plain-xla")
@pytest.mark.slow_except("dense-scaled-*", "dense-plain-eager", "heads-*-eager")
@pytest.mark.parametrize(
    ("name", "policy", "mode"), PRODUCT_RUNS.values(), ids=PRODUCT_RUNS
)
def test_float16_matmul_are_close_to_float64(name, policy, mode):
    case = CASES[name]
    expected, weights = expected_of(name, "float16")
    ours = case.make(layers, PRODUCTS[policy])
    case.run(ours, [tf.cast(x, "float32") for x in inputs_of(case)])
    ours.set_weights(weights)
    found = gradients(case, ours, inputs_of(case), mode)
    outputs, of_weights, of_inputs, _ = found
    results = [*outputs, *of_weights, *of_inputs]
    assert {x.dtype.name for x in results} == {"float32"}
    for what, actual, wanted, roundings in zip(
        ("output", "gradient of a weight", "gradient of an input", "weight"),
        found,
        expected,
        (*case.bounds(), 0),
        strict=True,
    ):
        for a, b in zip(actual, wanted, strict=True):
            assert_close(a, b, roundings, UNIT["float16"], what)


EMPTY = {
    f"{name}-{mode}": (name, mode)
    for name in CASES
    for mode in (("eager", "graph", "xla") if name in FIRST else ("eager", "graph"))
}


@pytest.mark.xslow_except(*(f"{name}-graph" for name in FIRST))
@pytest.mark.slow_except("conv-lstm2d-graph")
@pytest.mark.parametrize(("name", "mode"), EMPTY.values(), ids=EMPTY)
def test_a_batch_without_examples(name, mode):
    """The share of a replica where a batch has fewer examples than there are replicas.

    On a CPU TensorFlow's convolutions return it in the shape of their input.
    """
    case = CASES[name]
    layer = case.make(layers, "mixed_float16")
    some = [tf.cast(x, "float16") for x in inputs_of(case)]
    shapes = [(0, *y.shape[1:]) for y in case.run(layer, some)]
    empty = [x[:0] for x in some]

    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = case.run(layer, inputs)
            loss = sum(tf.reduce_sum(tf.cast(y, "float32")) for y in outputs)
        return outputs, tape.gradient(loss, [layer.trainable_variables, list(inputs)])

    if mode != "eager":
        # XLA compiles for the shapes it is given; a graph runs for any number.
        signature = [tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in empty]
        run = tf.function(run, signature, jit_compile=mode == "xla")
    outputs, (of_weights, of_inputs) = run(*empty)
    assert [y.shape for y in outputs] == shapes
    assert [g.shape for g in of_inputs] == [x.shape for x in empty]
    assert {x.dtype.name for x in [*outputs, *of_inputs]} == {"float16"}
    for gradient, weight in zip(of_weights, layer.trainable_variables, strict=True):
        expected = np.zeros(weight.shape, weight.dtype)
        np.testing.assert_array_equal(gradient, expected, weight.path, strict=True)
    assert all(np.all(np.isfinite(weight)) for weight in layer.get_weights())


def described(case, package):
    """What a user can see of a layer, after a symbolic call."""
    layer = case.make(package, "mixed_float16")
    outputs = case.run(layer, [keras.Input(shape[1:]) for shape in case.shapes])
    return {
        "outputs": [(x.shape, x.dtype) for x in outputs],
        "weights": [(w.path, w.shape, w.dtype, w.trainable) for w in layer.weights],
        "initial values": [w.tolist() for w in layer.get_weights()],
        "config": layer.get_config(),
        "masking": layer.supports_masking,
    }


@pytest.mark.slow_except(*FIRST)
@EVERY_CASE
def test_weights_config_and_shapes_are_those_of_keras(case):
    assert issubclass(getattr(layers, case.name), getattr(keras.layers, case.name))
    assert described(case, layers) == described(case, keras.layers)


def model_of(case, layer):
    """A functional model of one layer; a cell is put into an RNN."""
    if case.name.endswith("Cell"):
        inputs = keras.Input((5, case.shapes[0][-1]))
        return keras.Model(inputs, keras.layers.RNN(layer)(inputs))
    inputs = [keras.Input(shape[1:], batch_size=shape[0]) for shape in case.shapes]
    outputs = case.call(layer, inputs)
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], outputs)


def output_of(case, model):
    shapes = case.shapes
    if case.name.endswith("Cell"):
        shapes = [(2, 5, shapes[0][-1])]
    inputs = [np.float32(np.sin(np.arange(np.prod(s)))).reshape(s) for s in shapes]
    return keras.tree.flatten(model(inputs if len(inputs) > 1 else inputs[0]))


@pytest.mark.slow_except("dense*", "conv2d*", "lstm*", "heads*")
@pytest.mark.parametrize("name", FIRST)
def test_a_saved_model_is_restored(name, tmp_path):
    case = CASES[name]
    model = model_of(case, case.make(layers, "mixed_float16"))
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    classes = [type(layer) for layer in restored.layers]
    assert classes == [type(layer) for layer in model.layers]
    for a, b in zip(output_of(case, model), output_of(case, restored), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow_except("dense*", "conv2d*", "gru*", "groups*")
@pytest.mark.parametrize("name", FIRST)
def test_weights_are_exchanged_with_keras(name, tmp_path):
    case = CASES[name]
    path = tmp_path / "model.weights.h5"
    ours, theirs = (
        model_of(case, case.make(package, "mixed_float16"))
        for package in (layers, keras.layers)
    )
    for source, target in ((theirs, ours), (ours, theirs)):
        target.set_weights([weight + 1 for weight in source.get_weights()])
        source.save_weights(path)
        target.load_weights(path)
        for a, b in zip(source.get_weights(), target.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
