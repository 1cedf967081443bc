"""Calls kernels as XLA does, with buffers that do not fit.

A program, as misuse.py. The kernels are registered with XLA by name, so a SavedModel
can hold a module of StableHLO that calls them, past the ops and all that these check.
"""

import tensorflow as tf

from keras_mp.ops.kernels import native

DTYPES = {
    "f32": tf.float32,
    "f16": tf.float16,
    "bf16": tf.bfloat16,
    "i1": tf.bool,
    "i8": tf.int8,
    "i16": tf.int16,
    "i32": tf.int32,
    "ui8": tf.uint8,
}

SPACING = "strides = array<i64: 1, 2>, dilations = array<i64: 1, 1>"
LAYER = 'kind = "layer", epsilon = 1.0e-03 : f32'
QUERY_KEY_VALUE = ["3x4x4x5xf16", "3x6x2x5xf16", "3x6x2x7xf16"]
LOGITS = ["3x4xf16", "4x5xf16", "3xi32", "5xf32"]
MATRIX, HALF_MATRIX = "3x4xf32", "3x4xf16"

# Name: the types of the operands and of the results, the attributes, and the operand
# whose memory the first result has: each result that of the next one.
CALLS = {
    "check_gradients": (
        ["f32", "3xf16"],
        ["1xf32", "f32"],
        "compute_sum_of_squares = true",
        None,
    ),
    "unscale_gradients": (
        ["f32", "3xf16"],
        ["3xf32", "1xf32", "f32"],
        "compute_sum_of_squares = true",
        None,
    ),
    "sync_masters_from_weights": (
        ["3xf32", "3xf16"],
        ["3xf32", "3xf16"],
        "is_stochastic = false",
        0,
    ),
    "cast_masters": (
        ["3xf32", "3xf16", "3xf32"],
        ["3xf32", "3xf16"],
        "is_stochastic = true",
        0,
    ),
    "update_variables": (
        # finite, hyperparameters, gradient, master, slot, weight, uniform
        ["i1", "24xf32", "3xf16", "3xf32", "3xf32", "3xf16", "3xf32"],
        ["3xf32", "3xf32", "3xf16"],
        "rule = 1 : i64, is_stochastic = true, weight_of = array<i64: 0>, "
        "exponent_of = array<i64>, code_bits = 8 : i64, power_of = array<i64>, "
        "apply_weight_decay = array<i64: 0>",
        3,
    ),
    "update_variables of compressed state": (
        # finite, hyperparameters, gradient, remainder, codes, weight, exponents
        ["i1", "24xf32", "3xf16", "3xi16", "3xui8", "3xf16", "1xui8"],
        ["3xi16", "3xui8", "3xf16", "1xui8"],
        "rule = 1 : i64, is_stochastic = false, weight_of = array<i64: 0>, "
        "exponent_of = array<i64: 0>, code_bits = 8 : i64, power_of = array<i64>, "
        "apply_weight_decay = array<i64: 0>",
        3,
    ),
    "update_variables of pairs": (
        # finite, hyperparameters, gradient, remainder, pairs, weight, exponents
        ["i1", "24xf32", "3xf16", "3xi8", "16xui8", "3xf16", "1xui8"],
        ["3xi8", "16xui8", "3xf16", "1xui8"],
        "rule = 1 : i64, is_stochastic = false, weight_of = array<i64: 0>, "
        "exponent_of = array<i64: 0>, code_bits = 4 : i64, power_of = array<i64>, "
        "apply_weight_decay = array<i64: 0>",
        3,
    ),
    "update_variables of two codes": (
        # finite, hyperparameters, gradient, remainder, two codes, weight, two exponents
        ["i1", "24xf32", "3xf16", "3xi16", "3xui8", "3xui8", "3xf16", "1xui8", "1xui8"],
        ["3xi16", "3xui8", "3xui8", "3xf16", "1xui8", "1xui8"],
        "rule = 3 : i64, is_stochastic = false, weight_of = array<i64: 0>, "
        "exponent_of = array<i64: 0, 1>, code_bits = 8 : i64, power_of = array<i64>, "
        "apply_weight_decay = array<i64: 0>",
        3,
    ),
    "update_variables of a weight alone": (
        # finite, hyperparameters, gradient, weight, slot
        ["i1", "24xf32", "3xf16", "3xf16", "3xf32"],
        ["3xf16", "3xf32"],
        "rule = 1 : i64, is_stochastic = false, weight_of = array<i64>, "
        "exponent_of = array<i64>, code_bits = 8 : i64, power_of = array<i64>, "
        "apply_weight_decay = array<i64: 0>",
        3,
    ),
    "update_variables of matrices": (
        # finite, hyperparameters, gradient, master, three slots, weight
        ["i1", "24xf32", HALF_MATRIX, MATRIX, MATRIX, "3xf32", "4xf32", HALF_MATRIX],
        [MATRIX, MATRIX, "3xf32", "4xf32", HALF_MATRIX],
        "rule = 16 : i64, is_stochastic = false, weight_of = array<i64: 0>, "
        "exponent_of = array<i64>, code_bits = 8 : i64, power_of = array<i64>, "
        "apply_weight_decay = array<i64: 0>",
        3,
    ),
    "update_variables by powers": (
        # finite, hyperparameters, gradient, master, slot, weight, powers
        ["i1", "24xf32", "3xf16", "3xf32", "3xf32", "3xf16", "3xf32"],
        ["3xf32", "3xf32", "3xf16"],
        "rule = 8 : i64, is_stochastic = false, weight_of = array<i64: 0>, "
        "exponent_of = array<i64>, code_bits = 8 : i64, power_of = array<i64: 0>, "
        "apply_weight_decay = array<i64: 0>",
        3,
    ),
    "depthwise_conv": (
        ["3x5x6x3xf16", "3x3x3x1xf32", "3xf16"],
        ["3x3x2x3xf32"],
        f"{SPACING}, is_same = false",
        None,
    ),
    "depthwise_conv_grad_x": (
        ["3x3x3x1xf16", "3x3x2x3xf16"],
        ["3x5x6x3xf16"],
        f"{SPACING}, is_same = false",
        None,
    ),
    "depthwise_conv_grad_kernel": (
        ["3x5x6x3xf16", "3x3x2x3xf16"],
        ["3x3x3x1xf32"],
        f"{SPACING}, is_same = false",
        None,
    ),
    "row_norm": (
        [HALF_MATRIX, "4xf32", "4xf32"],
        [HALF_MATRIX],
        f"{LAYER}, num_gamma = 1 : i64, num_beta = 1 : i64",
        None,
    ),
    "row_norm_gradient": (
        [HALF_MATRIX, HALF_MATRIX, "4xf32"],
        [HALF_MATRIX, "4xf32", "4xf32"],
        f"{LAYER}, num_gamma = 1 : i64, num_beta = 1 : i64",
        None,
    ),
    "sum": (["2x3x4xf16"], ["2x4xf32"], "", None),
    "attention": (
        [*QUERY_KEY_VALUE, "3x1x4x6xi1"],
        ["3x4x4x7xf16", "3x4x4xf32"],
        "scale = 5.0e-01 : f32, is_causal = true",
        None,
    ),
    "attention with dropout": (
        [*QUERY_KEY_VALUE, "3x1x4x6xi1", "2xi32"],
        ["3x4x4x7xf16", "3x4x4xf32"],
        "scale = 5.0e-01 : f32, is_causal = true, dropout = 2.5e-01 : f32",
        None,
    ),
    "attention_gradient": (
        [*QUERY_KEY_VALUE, "3x4x4x7xf16", "3x4x4xf32", "3x4x4x7xf16", "3x1x4x6xi1"],
        QUERY_KEY_VALUE,
        "scale = 5.0e-01 : f32, is_causal = true",
        None,
    ),
    "gemm": (
        ["3x4xf16", "4x5xf16", "f32", "5xf32"],
        ["3x5xf16"],
        'transpose_a = false, transpose_b = false, activation = "relu"',
        None,
    ),
    "fp16_gemm_gelu_gradient": (
        ["3x4xf16", "4x5xf16", "f32", "5xf32", "3x5xf16"],
        ["3x5xf16", "5xf32"],
        "transpose_a = false, transpose_b = false",
        None,
    ),
    "logit_statistics": (
        LOGITS,
        ["3xf32", "3xf32", "3xf32", "3xi32"],
        "transpose = false, soft_cap = 2.0e+00 : f32",
        None,
    ),
    "logit_statistics_gradient": (
        [*LOGITS[:3], "3xf32", "3xf32", "3xf32", "3xf32", "5xf32"],
        ["3x4xf16", "4x5xf16", "5xf32"],
        "transpose = false, soft_cap = 2.0e+00 : f32",
        None,
    ),
}

# The last operand of these is optional.
WITH_OPTION = {
    "attention",
    "attention_gradient",
    "depthwise_conv",
    "gemm",
    "logit_statistics",
}

# An operand that must not have another 16-bit dtype than the first.
OF_THE_FIRST_DTYPE = {"row_norm_gradient": 1, "fp16_gemm_gelu_gradient": 4}

# Uniforms are for masters in FP32 alone: beside a remainder the call has one too many.
UNIFORMS = "update_variables of compressed state"

CODED = "exponent_of = array<i64: 0>"

ATTRIBUTES = {
    "rule": ("rule = 1", "rule = 99"),
    "negative-rule": ("rule = 1", "rule = -1"),
    "rule-of-two-slots": ("rule = 1", "rule = 3"),
    "rule-without-codes": ("rule = 3", "rule = 10"),
    "not-stochastic": ("is_stochastic = true", "is_stochastic = false"),
    "stochastic": ("is_stochastic = false", "is_stochastic = true"),
    "weight-of-none": ("weight_of = array<i64: 0>", "weight_of = array<i64: 5>"),
    "negative-weight": ("weight_of = array<i64: 0>", "weight_of = array<i64: -1>"),
    "weight-twice": ("weight_of = array<i64: 0>", "weight_of = array<i64: 0, 0>"),
    "exponents-of-none": ("exponent_of = array<i64: 0>", "exponent_of = array<i64: 5>"),
    "no-exponents": ("exponent_of = array<i64: 0>", "exponent_of = array<i64>"),
    "exponents-of-one": ("exponent_of = array<i64>", "exponent_of = array<i64: 0>"),
    "4-bits": (f"{CODED}, code_bits = 8", f"{CODED}, code_bits = 4"),
    "8-bits": ("code_bits = 4", "code_bits = 8"),
    "7-bits": ("code_bits = 8", "code_bits = 7"),
    "rule-without-powers": ("rule = 8", "rule = 1"),
    "powers-of-none": ("power_of = array<i64: 0>", "power_of = array<i64: 5>"),
    "powers-twice": ("power_of = array<i64: 0>", "power_of = array<i64: 0, 0>"),
    "no-powers": ("power_of = array<i64: 0>", "power_of = array<i64>"),
    "powers-of-one": ("power_of = array<i64>", "power_of = array<i64: 0>"),
    "two-decays": ("decay = array<i64: 0>", "decay = array<i64: 0, 0>"),
    "stride-0": ("strides = array<i64: 1,", "strides = array<i64: 0,"),
    "negative-stride": ("strides = array<i64: 1,", "strides = array<i64: -1,"),
    "one-stride": ("strides = array<i64: 1, 2>", "strides = array<i64: 1>"),
    "dilation": ("dilations = array<i64: 1, 1>", "dilations = array<i64: 2, 1>"),
    "three-dilations": ("dilations = array<i64:", "dilations = array<i64: 1,"),
    "same": ("is_same = false", "is_same = true"),
    "no-scale": ("scale = 5.0e-01 : f32, ", ""),
    "dropout-of-all": ("dropout = 2.5e-01", "dropout = 1.0"),
    "negative-dropout": ("dropout = 2.5e-01", "dropout = -2.5e-01"),
    "dropout-of-a-bool": ("dropout = 2.5e-01 : f32", "dropout = true"),
    "transposed-a": ("transpose_a = false", "transpose_a = true"),
    "transposed-b": ("transpose_b = false", "transpose_b = true"),
    "activation-of-none": ('activation = "relu"', 'activation = "softmax"'),
    "kind-of-none": ('kind = "layer"', 'kind = "batch"'),
    "negative-epsilon": ("epsilon = 1.0e-03", "epsilon = -1.0e-03"),
    "no-gamma": ("num_gamma = 1", "num_gamma = 0"),
    "two-gammas": ("num_gamma = 1", "num_gamma = 2"),
    "negative-gammas": ("num_gamma = 1", "num_gamma = -1"),
    "no-beta": ("num_beta = 1", "num_beta = 0"),
    "transposed": ("transpose = false", "transpose = true"),
    "negative-cap": ("soft_cap = 2.0e+00", "soft_cap = -2.0e+00"),
    "cap-of-a-bool": ("soft_cap = 2.0e+00 : f32", "soft_cap = true"),
    "no-decays": ("decay = array<i64: 0>", "decay = array<i64>"),
}


def tensor(text):
    """The number 1 as a tensor of a type such as `3xf16`."""
    *size, dtype = text.split("x")
    return tf.ones([int(n) for n in size], DTYPES[dtype])


def module(name, operands, results, attributes, first):
    """A module that makes one call."""

    def listed(types):
        return ", ".join(f"tensor<{text}>" for text in types)

    taken = [f"%arg{i}" for i in range(len(operands))]
    given = [f"%0#{i}" if len(results) > 1 else "%0" for i in range(len(results))]
    declared = ", ".join(
        f"{x}: tensor<{text}>" for x, text in zip(taken, operands, strict=True)
    )
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{i}], "
        f"operand_index = {first + i}, operand_tuple_indices = []>"
        for i in range(0 if first is None else len(results))
    )
    return f"""
module {{
  func.func public @main({declared}) -> ({listed(results)}) {{
    %0{f":{len(results)}" if len(results) > 1 else ""} =
      stablehlo.custom_call @keras_mp.{name.partition(" ")[0]}({", ".join(taken)})
      {{api_version = 4 : i32, backend_config = {{{attributes}}},
        output_operand_aliases = [{aliases}]}}
      : ({listed(operands)}) -> ({listed(results)})
    return {", ".join(given)} : {listed(results)}
  }}
}}"""


def run(name, operands, results, attributes, first=None):
    """Runs the module by the op that SavedModels hold such modules in."""
    graph = tf.compat.v1.GraphDef()
    call = graph.node.add(name="call", op="XlaCallModule")
    for key in ("Tin", "Tout", "Sout"):
        call.attr[key].list.SetInParent()
    tensors = {f"x{i}": tensor(text) for i, text in enumerate(operands)}
    for key, x in tensors.items():
        node = graph.node.add(name=key, op="Placeholder")
        node.attr["dtype"].type = x.dtype.as_datatype_enum
        call.input.append(key)
        call.attr["Tin"].list.type.append(x.dtype.as_datatype_enum)
    for text in results:
        x = tensor(text)
        call.attr["Tout"].list.type.append(x.dtype.as_datatype_enum)
        shape = call.attr["Sout"].list.shape.add()
        for size in x.shape:
            shape.dim.add(size=size)
    call.attr["version"].i = 5
    call.attr["module"].s = module(name, operands, results, attributes, first).encode()
    call.attr["platforms"].list.s.append(b"CPU")
    call.attr["disabled_checks"].list.s.extend([b"platform", b"custom_call"])
    names = [f"call:{i}" for i in range(len(results))]

    @tf.function
    def function(*given):
        inputs = dict(zip(tensors, given, strict=True))
        return tf.graph_util.import_graph_def(graph, inputs, names)

    function(*tensors.values())


def other_types(text):
    *size, dtype = text.split("x")
    yield "x".join(["0", *size[1:], dtype])
    yield "x".join(["2", *size[1:], dtype])
    yield "x".join(["1", *size, dtype])
    yield "x".join([*size, "i32"])


def mistakes(name):
    """Names and arguments of calls that do not fit."""
    operands, results, attributes, _ = CALLS[name]
    # A gradient may have any size where its result has.
    free = name == "check_gradients"
    for i, text in enumerate(operands):
        for other in other_types(text):
            fits = free and i == 1 and other.endswith("f16")
            if other != text and not fits:
                changed = [*operands[:i], other, *operands[i + 1 :]]
                yield f"operand {i} {other}", (changed, results, attributes)
    for i, text in enumerate(results):
        for other in other_types(text):
            makes_no_call = len(results) == 1 and other.startswith("0x")
            if other == text or makes_no_call:
                continue
            changed = [*results[:i], other, *results[i + 1 :]]
            yield f"result {i} {other}", (operands, changed, attributes)
    if name == "update_variables of matrices":
        # Without the dimension of 0 the number of elements overflows.
        huge = f"{2**40}x0x{2**40}"
        first = [*operands[:2], f"{huge}xf16", f"{huge}xf32", f"{huge}xf32"]
        changed = [*first, f"{2**40}x0xf32", "4xf32", f"{huge}xf16"]
        made = [*changed[3:7], changed[7]]
        yield "huge sizes", (changed, made, attributes)
    if name in OF_THE_FIRST_DTYPE:
        changed = list(operands)
        i = OF_THE_FIRST_DTYPE[name]
        changed[i] = changed[i].replace("f16", "bf16")
        yield "two dtypes", (changed, results, attributes)
    yield "no operands", ([], results, attributes)
    if name not in WITH_OPTION:
        yield "too few operands", (operands[:-1], results, attributes)
    yield "too many operands", ([*operands, "3xf32"], results, attributes)
    if name == UNIFORMS:
        stochastic = attributes.replace("is_stochastic = false", "is_stochastic = true")
        yield "uniforms", ([*operands, "3xf32"], results, stochastic)
    yield "too few results", (operands, results[:-1], attributes)
    yield "too many results", (operands, [*results, "3xf32"], attributes)
    for key, (old, new) in ATTRIBUTES.items():
        fits = (name, key) == ("sync_masters_from_weights", "stochastic")
        if old in attributes and not fits:
            yield key, (operands, results, attributes.replace(old, new))


def outcome(name, arguments):
    try:
        run(name, *arguments)
    except tf.errors.InvalidArgumentError:
        return "told"
    except Exception as error:
        return repr(error)
    return "ran"


def report(case, name, arguments, expected):
    print("case", case, flush=True)
    found = outcome(name, arguments)
    print("done" if found == expected else f"wrong: {case}: {found}", flush=True)


def main():
    native.library()
    for name, call in CALLS.items():
        report(name, name, call, "ran")
        for what, arguments in mistakes(name):
            report(f"{name} {what}", name, arguments, "told")
    print("all done")


if __name__ == "__main__":
    main()
