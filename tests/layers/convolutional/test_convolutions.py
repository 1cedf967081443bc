"""The convolutions: tests beyond those of tests/layers/test_contract.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp import layers
from keras_mp.ops.depthwise_conv import depthwise_conv
from keras_mp.ops.kernels import dispatch, native

# Name: options, shape of the inputs.
LAYERS = {
    "Conv1D": ({"filters": 2, "kernel_size": 2}, (1, 3, 2)),
    "Conv2D": ({"filters": 2, "kernel_size": 2}, (1, 3, 3, 2)),
    "Conv3D": ({"filters": 2, "kernel_size": 2}, (1, 3, 3, 3, 2)),
    "Conv2DTranspose": ({"filters": 2, "kernel_size": 2}, (1, 3, 3, 2)),
    # With a depth multiplier of 1 the native library convolves.
    "SeparableConv2D": (
        {"filters": 2, "kernel_size": 2, "depth_multiplier": 2},
        (1, 3, 3, 2),
    ),
    "DepthwiseConv2D": ({"kernel_size": 2, "depth_multiplier": 2}, (1, 3, 3, 2)),
}
EACH = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture(autouse=True)
def on_a_cpu():
    if tf.config.list_logical_devices("GPU"):
        pytest.skip("needs a machine without a GPU")


def types_of_convolutions(graph):
    operations = graph.get_operations()
    return {
        op.get_attr("T") for op in operations if op.type.startswith(("Conv", "Dep"))
    }


@EACH
def test_it_computes_in_fp32(name):
    options, shape = LAYERS[name]
    layer = getattr(layers, name)(dtype="mixed_float16", **options)
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec(shape, tf.float16))
    assert types_of_convolutions(graph.graph) == {tf.float32}


@EACH
def test_small_gradients_of_a_kernel_are_not_flushed(name):
    # 2**-15 * 2**-15, for each of the places where the kernel is applied.
    options, shape = LAYERS[name]
    x = tf.fill(shape, tf.constant(2.0**-15, "float16"))
    layer = getattr(layers, name)(dtype="mixed_float16", use_bias=False, **options)
    layer(x)
    layer.set_weights([np.ones(w.shape) for w in layer.weights])
    with tf.GradientTape() as tape:
        y = layer(x)
    slopes = tf.fill(y.shape, tf.constant(2.0**-15, "float16"))
    gradients = tape.gradient(y, layer.trainable_variables, slopes)
    for gradient in gradients:
        assert gradient.dtype == tf.float32
        assert np.min(gradient) >= 2.0**-30


def test_a_kernel_is_rounded_to_16_bits():
    # 1 + 2**-11 is between two FP16 numbers; times 2048 it would be 2049, then 2048.
    layer = layers.Conv1D(1, 2, use_bias=False, dtype="mixed_float16")
    layer.build((None, 2, 1))
    layer.set_weights([np.full((2, 1, 1), 1 + 2.0**-12)])
    x = np.float16([[[2048], [-2047]]])
    assert layer(x).numpy().item() == 1.0


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_bias_of_either_data_format(data_format):
    # Under XLA, which has both on a CPU.
    shape = (1, 3, 3, 2) if data_format == "channels_last" else (1, 2, 3, 3)
    layer = layers.Conv2D(
        2, 3, data_format=data_format, kernel_initializer="zeros", dtype="float16"
    )
    layer.build(shape)
    layer.bias.assign([1.0, 2.0])
    run = tf.function(layer, jit_compile=True)
    assert run(tf.ones(shape, "float16")).numpy().ravel().tolist() == [1.0, 2.0]


def test_lora_is_that_of_keras():
    x = np.float16(np.random.default_rng(0).uniform(-1, 1, (1, 4, 4, 2)))
    made = [
        package.Conv2D(2, 2, lora_rank=1, dtype="mixed_float16")
        for package in (keras.layers, layers)
    ]
    for layer in made:
        layer.build(x.shape)
        layer.set_weights([np.full(w.shape, 0.5) for w in layer.weights])
    theirs, ours = (layer(x) for layer in made)
    # Of numbers of few bits; at most a rounding of a result, in each.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * 8 * 2.0**-11)


@pytest.mark.parametrize("data_format", ["channels_first", "channels_last"])
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_do_not_ask_for_the_global_data_format(groups, data_format):
    layer = layers.Conv2D(
        4, 1, groups=groups, data_format=data_format, dtype="mixed_float16"
    )
    is_first = data_format == "channels_first"
    x = np.arange(4.0).reshape((1, 4, 1, 1) if is_first else (1, 1, 1, 4))
    x = np.broadcast_to(x, (1, 4, 3, 5) if is_first else (1, 3, 5, 4))
    expected = layer(x)
    usual = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        found = layer(x)
    finally:
        keras.config.set_image_data_format(usual)
    assert found.shape == x.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("groups", [2, 4])
def test_the_forward_pass_of_a_grouped_convolution_runs_once(groups):
    """The gradient computes it again, and TensorFlow drops what nothing reads there.

    Not so what Keras compiles with XLA, which is a call of a function.
    """
    layer = layers.Conv2D(4, 2, groups=groups, use_bias=False, dtype="mixed_float16")
    x = tf.ones((1, 3, 3, 4), "float16")
    layer(x)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, layer.kernel.value])

    graph = step.get_concrete_function(x).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert not [kind for kind in kinds if "Call" in kind]
    assert {"Conv2D", "DepthwiseConv2dNative", "KerasMp>DepthwiseConv"} & {*kinds}


GROUPS = {"filters": 16, "groups": 16, "kernel_size": 2}
PICTURES, SEQUENCES = (1, 3, 3, 16), (1, 3, 16)
# Name: layer, options, shape of the inputs, whether the native library convolves.
NATIVE_DEPTHWISE = {
    "DepthwiseConv2D": ("DepthwiseConv2D", {"kernel_size": 2}, PICTURES, True),
    "strides": (
        "DepthwiseConv2D",
        {"kernel_size": 2, "strides": (1, 2), "dilation_rate": (2, 1)},
        PICTURES,
        True,
    ),
    "DepthwiseConv1D": ("DepthwiseConv1D", {"kernel_size": 2}, SEQUENCES, True),
    "SeparableConv1D": (
        "SeparableConv1D",
        {"filters": 4, "kernel_size": 2},
        SEQUENCES,
        True,
    ),
    "Conv1D": ("Conv1D", GROUPS, SEQUENCES, True),
    "Conv2D": ("Conv2D", GROUPS, PICTURES, True),
    "causal": ("Conv1D", GROUPS | {"padding": "causal"}, SEQUENCES, False),
    "Conv3D": ("Conv3D", GROUPS, (1, 3, 3, 3, 16), False),
    "multiplier": (
        "DepthwiseConv2D",
        {"kernel_size": 2, "depth_multiplier": 2},
        PICTURES,
        False,
    ),
    "more-filters": ("Conv2D", GROUPS | {"filters": 32}, PICTURES, False),
    "few-channels": ("DepthwiseConv2D", {"kernel_size": 2}, (1, 3, 3, 15), False),
    "large-kernel": ("DepthwiseConv1D", {"kernel_size": 122}, (1, 130, 16), False),
}


@pytest.mark.parametrize(
    ("name", "options", "shape", "is_native"),
    NATIVE_DEPTHWISE.values(),
    ids=NATIVE_DEPTHWISE,
)
def test_which_channels_the_native_library_convolves(name, options, shape, is_native):
    layer = getattr(layers, name)(dtype="mixed_float16", **options)
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec(shape, tf.float16))
    kinds = {operation.type for operation in graph.graph.get_operations()}
    has_library = native.library() is not None
    assert ("KerasMp>DepthwiseConv" in kinds) is (is_native and has_library)


@pytest.mark.slow_except("*-mixed_float16-graph", "*-float16-xla")
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    ("channels", "strides"), [(16, 1), (17, 2), (24, 1), (24, 2)], ids=str
)
def test_a_depthwise_convolution_and_its_gradients(
    channels, strides, padding, dtype, jit_compile
):
    """Against TensorFlow's FP32 convolution of the same 16-bit numbers."""
    layer = layers.DepthwiseConv2D(3, strides, padding, dtype=dtype)
    half = layer.compute_dtype
    rng = np.random.default_rng(channels)
    x = tf.cast(rng.uniform(-1, 1, (2, 7, 6, channels)), half)
    layer.build(x.shape)
    layer.set_weights([rng.uniform(-1, 1, w.shape) for w in layer.weights])
    weights = [variable.value for variable in layer.trainable_variables]

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, [x, *weights], upstream)

    # The kernel is rounded to 16 bits, the bias is not.
    wide = [
        tf.cast(tf.cast(tensor, dtype), "float32")
        for tensor, dtype in zip(
            [x, *weights], [half, half, weights[1].dtype], strict=True
        )
    ]
    with tf.GradientTape() as tape:
        tape.watch(wide)
        expected_y = wide[2] + tf.nn.depthwise_conv2d(
            *wide[:2], [1, strides, strides, 1], padding.upper()
        )
    upstream = tf.cast(rng.uniform(-1, 1, expected_y.shape), half)
    y, gradients = step(x)
    expected = tape.gradient(expected_y, wide, tf.cast(upstream, "float32"))
    # Sums of at most 84 products of numbers below 1 in FP32 err by 84**2 * 2**-24, and
    # both that of the oracle and ours round once to 16 bits, or to FP32.
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
    for actual, wanted in [(y, expected_y), *zip(gradients, expected, strict=True)]:
        wanted = tf.cast(wanted, "float32").numpy()
        rounding = 2 * unit.get(actual.dtype.name, 0.0)
        np.testing.assert_allclose(
            tf.cast(actual, "float32"), wanted, rtol=rounding, atol=84**2 * 2.0**-23
        )
    assert y.dtype == half
    assert [g.dtype for g in gradients[1:]] == [w.dtype for w in weights]


@pytest.mark.parametrize("data_format", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("DepthwiseConv2D", {}), ("SeparableConv2D", {"filters": 3})],
    ids=str,
)
def test_pictures_of_any_size(name, options, data_format):
    sizes: list[int | None] = [None] * 4
    sizes[1 if data_format == "channels_first" else 3] = 16
    layer = getattr(layers, name)(
        kernel_size=3, data_format=data_format, dtype="mixed_float16", **options
    )
    layer.build(sizes)
    traced = tf.function(layer).get_concrete_function(tf.TensorSpec(sizes, tf.float16))
    sizes[sizes.index(16)] = options.get("filters", 16)
    assert traced.structured_outputs.shape.as_list() == sizes


@pytest.mark.slow_except("*-two")
@pytest.mark.parametrize("keep", [(1, 0, 1, 0), (0, 0, 0, 0)], ids=["two", "none"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("DepthwiseConv2D", {}),
        ("Conv2D", {"filters": 2, "activation": "relu"}),
        ("Conv2DTranspose", {"filters": 2, "strides": 2}),
    ],
)
def test_xla_finds_the_size_of_the_batch_at_run_time(name, options, keep):
    layer = getattr(layers, name)(
        kernel_size=3, padding="same", dtype="mixed_float16", **options
    )
    rng = np.random.default_rng(0)
    x = tf.cast(rng.integers(-2, 3, (4, 5, 5, 16)), "float16")
    keep = tf.cast(keep, "bool")
    layer.build(x.shape)
    layer.set_weights([rng.integers(-2, 3, w.shape) for w in layer.weights])

    def step(x, keep):
        weights = [variable.value for variable in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(tf.boolean_mask(x, keep))
            total = tf.reduce_sum(tf.cast(y, "float32") ** 2)
        return total, tape.gradient(total, [x, *weights])

    # Of small integers, which every order of sums gives exactly.
    expected = step(x, keep)
    found = tf.function(step, jit_compile=True)(x, keep)
    for actual, wanted in zip(
        tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
    ):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("name", ["kernel", "bias"])
@needs("TensorFlow", 2, 20)
def test_xla_finds_no_size_of_a_weight_at_run_time(name):
    weights = {"kernel": tf.ones((3, 1, 16, 1)), "bias": tf.ones(16)}

    @tf.function(jit_compile=True)
    def run(x, keep):
        masked = {name: tf.boolean_mask(weights[name], keep)}
        return depthwise_conv(
            x,
            **weights | masked,
            strides=(1, 1),
            padding="same",
            dilation_rate=(1, 1),
            output_dtype="float16",
        )

    keep = tf.range(len(weights[name])) > 0
    with pytest.raises(tf.errors.UnimplementedError, match="but no other size"):
        run(tf.ones((2, 3, 3, 16), "float16"), keep)


SAME = {"padding": "same"}
FIRST = {"data_format": "channels_first", "groups": 2}
# Name: layer, options, shape of the inputs, and that of the result.
EMPTY = {
    "batch": ("Conv2D", {}, (0, 5, 5, 2), (0, 3, 3, 6)),
    "channels-first": ("Conv2D", FIRST, (0, 2, 5, 5), (0, 6, 3, 3)),
    "batch-and-rows": ("Conv2D", SAME, (0, 0, 5, 2), (0, 0, 5, 6)),
    "columns": ("Conv2D", SAME | {"strides": 2}, (1, 5, 0, 2), (1, 3, 0, 6)),
    "groups": ("Conv2D", SAME | {"groups": 2}, (1, 0, 5, 2), (1, 0, 5, 6)),
    "voxels": ("Conv3D", SAME, (1, 0, 0, 0, 2), (1, 0, 0, 0, 6)),
    "time": ("Conv1D", {"padding": "causal"}, (2, 0, 2), (2, 0, 6)),
    "patches": ("Conv1D", {"kernel_size": 4, "strides": 4}, (2, 0, 2), (2, 0, 6)),
    "separable": ("SeparableConv1D", SAME, (2, 0, 2), (2, 0, 6)),
    "transposed-batch": ("Conv2DTranspose", SAME, (0, 2, 2, 2), (0, 2, 2, 6)),
    "transposed-same": ("Conv1DTranspose", SAME, (2, 0, 2), (2, 0, 6)),
    # What no input reaches has the bias alone: 3 - 2 elements.
    "transposed": ("Conv1DTranspose", {"strides": 2}, (2, 0, 2), (2, 1, 6)),
    "transposed-2d": ("Conv2DTranspose", {"strides": 2}, (1, 0, 2, 2), (1, 1, 5, 6)),
    "transposed-3d": ("Conv3DTranspose", SAME, (1, 2, 0, 2, 2), (1, 2, 0, 2, 6)),
}


@pytest.mark.xslow_except("*-float16-*", "*-bfloat16-eager")
@pytest.mark.slow_except(
    "batch-float16-graph",
    "groups-float16-graph",
    "separable-float16-graph",
    "transposed-*-float16-graph",
)
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "options", "shape", "expected"), EMPTY.values(), ids=EMPTY
)
def test_an_empty_convolution_has_its_own_shape(
    name, options, shape, expected, dtype, mode
):
    options = {"filters": 6, "kernel_size": 3} | options
    layer = getattr(layers, name)(
        dtype=f"mixed_{dtype}", bias_initializer="ones", **options
    )
    channels = 1 if layer.data_format == "channels_first" else len(shape) - 1
    unknown = [2 if axis == channels else None for axis in range(len(shape))]
    layer.build(unknown)

    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, *(w.value for w in layer.trainable_variables)])

    results = []
    for function in (layer, slopes):
        if mode != "eager":
            spec = [tf.TensorSpec(unknown, dtype)]
            function = tf.function(function, spec, jit_compile=mode == "xla")
        results.append(function(tf.zeros(shape, dtype)))
    y, (of_x, *of_weights) = results
    np.testing.assert_array_equal(y, tf.ones(expected, dtype), strict=True)
    assert of_x.shape == shape and of_x.dtype == dtype
    for slope, weight in zip(of_weights, layer.trainable_variables, strict=True):
        of_one = y.shape.num_elements() // 6 if weight.name == "bias" else 0.0
        np.testing.assert_array_equal(slope, np.full(weight.shape, np.float32(of_one)))


def test_a_kernel_has_to_fit_into_the_inputs():
    layer = layers.Conv2D(6, (3, 1), dtype="mixed_float16")
    layer.build((None, None, None, 2))
    with pytest.raises(ValueError, match=r"sizes \[2, 4\], which must be \[3, 1\] or"):
        layer(tf.zeros((1, 2, 4, 2), "float16"))


def test_sizes_that_are_known_add_nothing_to_a_graph():
    layer = layers.Conv2D(6, 3, dtype="mixed_float16")
    for batch, expected in ((2, set()), (None, {"PadV2", "Slice"})):
        spec = tf.TensorSpec((batch, 5, 5, 2), tf.float16)
        graph = tf.function(layer).get_concrete_function(spec).graph
        kinds = {operation.type for operation in graph.get_operations()}
        assert kinds & {"Pad", "PadV2", "Slice"} == expected


@EACH
def test_bfloat16_is_left_to_a_cpu_that_multiplies_it(name, monkeypatch):
    monkeypatch.setattr(dispatch, "multiplies_bfloat16", lambda: True)
    options, shape = LAYERS[name]
    layer = getattr(layers, name)(dtype="mixed_bfloat16", **options)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = layer(x)
        return tape.gradient(y, layer.trainable_variables)

    graph = step.get_concrete_function(tf.TensorSpec(shape, tf.bfloat16))
    assert types_of_convolutions(graph.graph) == {tf.bfloat16}
    assert {gradient.dtype for gradient in graph.structured_outputs} == {tf.float32}


STRIDES = {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same"}
# Name: layer, options, shape, and whether the width may be below its stride.
NARROW = {
    "narrow": ("Conv2D", STRIDES, (1, 5, 1, 2), True),
    "unknown": ("Conv2D", STRIDES, (1, 5, None, 2), True),
    "wide": ("Conv2D", STRIDES, (1, 1, 2, 2), False),
    "valid": ("Conv2D", STRIDES | {"padding": "valid"}, (1, 5, None, 2), False),
    "stride-of-1": ("Conv2D", STRIDES | {"strides": (2, 1)}, (1, 5, 1, 2), False),
    "kernel-of-1": ("Conv2D", STRIDES | {"kernel_size": 1}, (1, 5, 1, 2), False),
    "sequence": ("Conv1D", STRIDES, (1, 1, 2), True),
    "volume": ("Conv3D", STRIDES, (1, 3, 3, 1, 2), True),
    "transposed": ("Conv1DTranspose", STRIDES, (1, 1, 2), False),
    "output-padding": (
        "Conv1DTranspose",
        STRIDES | {"output_padding": 1},
        (1, 1, 2),
        True,
    ),
}


@pytest.mark.parametrize(
    ("name", "options", "shape", "is_narrow"), NARROW.values(), ids=NARROW
)
def test_bfloat16_that_onednn_gets_wrong_is_computed_in_fp32(
    name, options, shape, is_narrow, monkeypatch
):
    # Its gradient of such a kernel has NaN, where the memory that it leaves has.
    monkeypatch.setattr(dispatch, "multiplies_bfloat16", lambda: True)
    layer = getattr(layers, name)(dtype="mixed_bfloat16", **options)
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec(shape, tf.bfloat16))
    expected = tf.float32 if is_narrow else tf.bfloat16
    assert types_of_convolutions(graph.graph) == {expected}


def test_sums_of_bfloat16_are_fp32():
    # In bfloat16 a sum of ones ends at 256, and 3,000 is between two numbers.
    layer = layers.Conv2D(1, 3, kernel_initializer="ones", dtype="mixed_bfloat16")
    x = tf.ones((3, 22, 52, 512), "bfloat16")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = layer(x)
        return y, tape.gradient(y, layer.bias)

    y, of_bias = step(x)
    np.testing.assert_array_equal(tf.cast(y, "float32"), 9 * 512)
    assert of_bias.numpy() == [3000.0]


@pytest.mark.parametrize(
    ("environment", "instructions", "expected"),
    [
        ({}, "avx512_bf16", True),
        ({}, "amx_bf16", True),
        ({}, "amx_fp16", True),
        ({}, "avx512", False),
        ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "avx512_bf16", False),
        ({"TF_ENABLE_ONEDNN_OPTS": "False"}, "avx512_bf16", False),
        ({"TF_ENABLE_ONEDNN_OPTS": "1"}, "avx512_bf16", True),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "avx512_bf16", False),
        ({"DNNL_MAX_CPU_ISA": "AVX2"}, "avx512_bf16", False),
    ],
    ids=str,
)
def test_which_cpu_multiplies_bfloat16(
    environment, instructions, expected, monkeypatch
):
    for name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dispatch.native, "library", object)
    monkeypatch.setattr(dispatch.native, "cpu_instructions", lambda: instructions)
    assert dispatch.multiplies_bfloat16() is expected


@pytest.mark.parametrize(
    ("options", "is_product"),
    [
        ({}, True),
        ({"padding": "same", "dilation_rate": 2}, True),
        ({"kernel_size": (1, 2)}, False),
        ({"strides": 2}, False),
        ({"groups": 2}, False),
        ({"data_format": "channels_first"}, False),
    ],
    ids=str,
)
def test_a_convolution_of_one_position_is_a_product(options, is_product):
    options = {"filters": 4, "kernel_size": 1} | options
    layer = layers.Conv2D(**options, dtype="mixed_float16")
    graph = tf.function(layer).get_concrete_function(
        tf.TensorSpec((None, 6, 6, 6), "float16")
    )
    ops = {operation.type for operation in graph.graph.get_operations()}
    products = {"KerasMp>Fp16Gemm", "MatMul", "BatchMatMulV2"}
    assert bool(ops & products) == is_product
    assert ("Conv2D" in ops) != is_product
