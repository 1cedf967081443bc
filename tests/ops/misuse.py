"""Calls every op of the native library with invalid arguments.

A program: a crash ends it, and what it printed last tells the case. Each case is one
argument of a call that fits, changed in one way; it runs eagerly, where nothing but the
kernel sees the shapes, in a graph, where the shape function does, and compiled by XLA.
Lines: `case NAME`, then `done` or `wrong: WHAT`. Arguments: some of these three modes.
"""

import random
import sys

import numpy as np
import tensorflow as tf

from keras_mp.ops.kernels import native

# What an invalid argument may raise: in a kernel or XLA, a shape function, a wrapper.
ERRORS = (tf.errors.InvalidArgumentError, ValueError, TypeError)
NO_XLA_KERNEL = "Detected unsupported operations"
# Of a variable without a value.
NO_VALUE = (tf.errors.FailedPreconditionError, tf.errors.NotFoundError)
PREFIX = "keras_mp_"


def half(*shape):
    return np.ones(shape, "float16")


def single(*shape):
    return np.ones(shape, "float32")


def variables(count, dtype="float32"):
    return [tf.Variable(tf.ones((2, 3), dtype)) for _ in range(count)]


CONV = {"strides": [1, 2], "dilations": [1, 1], "padding": "valid"}
LOGITS = {
    "inputs": half(2, 3),
    "kernel": half(3, 5),
    "targets": np.ones(2, "int32"),
    "bias": [single(5)],
    "transpose": False,
    "soft_cap": 2.0,
}
ATTENTION = {
    "query": half(2, 3, 4, 5),
    "key": half(2, 6, 2, 5),
    "value": half(2, 6, 2, 7),
    "mask": [np.ones((2, 4, 3, 6), bool)],
    "seed": [np.ones(2, "int32")],
    "scale": 0.5,
    "is_causal": True,
    "dropout": 0.25,
}
POOL = {"window": [1, 2, 2], "strides": [1, 2, 2], "padding": "valid"}


GRADIENTS = [half(2, 3), single(2, 3)]
UNIFORMS = [single(2, 3) / 2] * 2


def pairs():
    return {"masters": variables(2), "weights": variables(2, "float16")}


# Valid arguments by op, made anew for each case: some ops write to their variables.
# What follows a space in a name tells two calls of an op apart.
CALLS = {
    "fp16_gemm": lambda: {
        "a": half(2, 3),
        "b": half(3, 4),
        "alpha": single(),
        "bias": [single(4)],
    },
    "fp16_gemm_gelu_gradient": lambda: {
        "a": half(2, 3),
        "b": half(3, 4),
        "alpha": single(),
        "bias": [single(4)],
        "upstream": half(2, 4),
    },
    "softmax": lambda: {"x": half(2, 3)},
    "softmax_gradient": lambda: {"x": half(2, 3), "grad_y": half(2, 3)},
    "float_softmax": lambda: {"x": single(2, 3), "T": "float16"},
    "float_softmax_gradient": lambda: {"y": half(2, 3), "grad_y": half(2, 3)},
    "row_norm": lambda: {
        "x": half(2, 3),
        "gamma": [single(3)],
        "beta": [single(3)],
        "kind": "layer",
        "epsilon": 1e-3,
    },
    "row_norm_gradient": lambda: {
        "x": half(2, 3),
        "grad_y": half(2, 3),
        "gamma": [single(3)],
        "num_beta": 1,
        "kind": "layer",
        "epsilon": 1e-3,
    },
    "batch_norm": lambda: {
        "x": half(2, 3, 4),
        "gamma": single(3),
        "beta": single(3),
        "epsilon": 1e-3,
    },
    "batch_norm_inference": lambda: {
        "x": half(2, 3, 4),
        "gamma": single(3),
        "beta": single(3),
        "mean": single(3),
        "variance": single(3),
        "epsilon": 1e-3,
    },
    "batch_norm_gradient": lambda: {
        "x": half(2, 3, 4),
        "grad_y": half(2, 3, 4),
        "gamma": single(3),
        "mean": single(3),
        "variance": single(3),
        "epsilon": 1e-3,
        "inference": False,
    },
    "average_pool": lambda: {"x": half(2, 3, 4, 5, 2), **POOL},
    "average_pool_gradient": lambda: {
        "shape": np.array([2, 3, 4, 5, 2], "int32"),
        "grad_y": half(2, 3, 2, 2, 2),
        **POOL,
    },
    "depthwise_conv": lambda: {
        "x": half(2, 3, 4, 2),
        "kernel": single(2, 2, 2, 1),
        "bias": [single(2)],
        "Tout": "float16",
        **CONV,
    },
    "depthwise_conv_grad_x": lambda: {
        "x": half(2, 3, 4, 2),
        "kernel": single(2, 2, 2, 1),
        "grad_y": half(2, 2, 2, 2),
        **CONV,
    },
    "depthwise_conv_grad_kernel": lambda: {
        "x": half(2, 3, 4, 2),
        "grad_y": half(2, 2, 2, 2),
        "kernel_size": [2, 2],
        **CONV,
    },
    "attention": lambda: ATTENTION,
    "attention_gradient": lambda: {
        **ATTENTION,
        "result": half(2, 3, 4, 7),
        "log_sum_exp": single(2, 4, 3),
        "grad": half(2, 3, 4, 7),
    },
    "logit_statistics": lambda: LOGITS,
    "logit_statistics_gradient": lambda: {
        **LOGITS,
        "logsumexp": single(2),
        "grad_logsumexp": single(2),
        "grad_target": single(2),
        "grad_total": single(2),
    },
    "sum": lambda: {"x": half(2, 3, 4)},
    "exponent_histogram": lambda: {"x": half(2, 3)},
    "check_gradients": lambda: {
        "scale": single(),
        "gradients": GRADIENTS,
        "compute_sum_of_squares": True,
    },
    "unscale_gradients": lambda: {
        "scale": single(),
        "gradients": GRADIENTS,
        "count": 2,
        "compute_sum_of_squares": True,
    },
    "sync_masters_from_weights": lambda: {**pairs(), "is_stochastic": False},
    "cast_masters": lambda: {**pairs(), "uniforms": UNIFORMS},
    "update_variables": lambda: {
        "finite": np.array(True),
        "hyperparameters": single(24),
        "gradients": GRADIENTS,
        **pairs(),
        "slots": variables(4),
        "exponents": [],
        "uniforms": UNIFORMS,
        "powers": UNIFORMS[:1],
        "weight_of": [0, 1],
        "exponent_of": [],
        "power_of": [1],
        "apply_weight_decay": [True, False],
        "rule": "adam",
    },
    "update_variables of matrices": lambda: {
        "finite": np.array(True),
        "hyperparameters": single(24),
        "gradients": GRADIENTS,
        **pairs(),
        "slots": [tf.Variable(tf.ones(s)) for s in ((2, 3), (2, 3), 2, 2, 3, 3)],
        "exponents": [],
        "uniforms": UNIFORMS,
        "powers": [],
        "weight_of": [0, 1],
        "apply_weight_decay": [True, False],
        "rule": "adafactor",
    },
    "update_variables of pairs": lambda: {
        "finite": np.array(True),
        "hyperparameters": single(24),
        "gradients": GRADIENTS,
        "masters": variables(2, "int8"),
        "weights": variables(2, "float16"),
        "slots": [tf.Variable(tf.ones(16, "uint8")) for _ in range(2)],
        "exponents": [tf.Variable(tf.ones(1, "uint8")) for _ in range(2)],
        "uniforms": [],
        "powers": [],
        "weight_of": [0, 1],
        "exponent_of": [0, 1],
        "code_bits": 4,
        "apply_weight_decay": [True, False],
        "rule": "momentum",
    },
    "update_variables of compressed state": lambda: {
        "finite": np.array(True),
        "hyperparameters": single(24),
        "gradients": GRADIENTS,
        "masters": variables(2, "int16"),
        "weights": variables(2, "float16"),
        "slots": variables(2, "uint8"),
        "exponents": [tf.Variable(tf.ones(1, "uint8")) for _ in range(2)],
        "uniforms": [],
        "powers": [],
        "weight_of": [0, 1],
        "exponent_of": [0, 1],
        "apply_weight_decay": [True, False],
        "rule": "momentum",
    },
}


def of_tensor(x):
    """Tensors of another rank, size or dtype, some of them without numbers."""
    rank, dtype = x.ndim, x.dtype
    yield "no-numbers", np.zeros([0] * max(rank, 1), dtype)
    yield "one-rank-more", x[None]
    yield "longer", np.concatenate([x, x], -1) if rank else np.stack([x, x])
    yield "float64", x.astype("float64")
    yield "int16", x.astype("int16")
    if rank:
        yield "scalar", np.zeros((), dtype)
        yield "shorter", x[..., :-1]
    if rank > 1:
        yield "vector", x.ravel()
        # Without numbers; but the size of a result may not fit into 64 bits.
        yield "huge", tf.zeros(([1 << 40, 0] * rank)[:rank], dtype)
    if dtype == "int32":
        yield "negative", -x
        yield "too-large", np.full_like(x, 2**31 - 1)
        yield "large-and-empty", np.array([0, *[2**31 - 1] * (x.size - 1)], "int32")


def of_variables(given):
    """Lists of variables that are too short, too long or hold what does not fit."""
    first, *rest = given
    dtype = first.dtype
    other = "float16" if dtype == tf.float32 else "float32"
    uninitialized = tf.raw_ops.VarHandleOp(
        dtype=dtype, shape=(2, 3), shared_name="none"
    )
    table = tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
    for name, one in {
        "of-another-shape": tf.Variable(tf.ones((3, 2), dtype)),
        "larger": tf.Variable(tf.ones((2, 4), dtype)),
        "scalar": tf.Variable(tf.ones((), dtype)),
        "empty": tf.Variable(tf.ones((0, 3), dtype)),
        "of-another-dtype": tf.Variable(tf.ones((2, 3), other)),
        "of-integers": tf.Variable(tf.ones((2, 3), "int64")),
        "uninitialized": uninitialized,
        "no-variable": table,
        "no-handle": tf.reshape(first.handle, [1])[:0],
        "two-handles": tf.stack([first.handle] * 2),
        "twice": rest[0],
    }.items():
        yield name, [one, *rest]
    yield "none", []
    yield "too-few", rest
    yield "too-many", [*given, tf.Variable(first)]


def of_list(given):
    """Lists that are too short or too long."""
    yield "none", []
    yield "too-few", given[1:]
    yield "too-many", [*given, given[-1]]


def of_numbers(given):
    yield from of_list(given)
    for number in (-1, 0, 2, 2**31, 2**63 - 1, -(2**63)):
        yield f"with-{number}", [*given[:-1], number]


def mutations(value):
    """Yields names and invalid values for a valid argument."""
    if isinstance(value, np.ndarray):
        yield from of_tensor(value)
    elif value == []:
        return
    elif isinstance(value, bool):
        yield "none", None
    elif isinstance(value, int):
        for number in (-1, 0, value + 1, 1000):
            yield f"as-{number}", number
    elif isinstance(value, float):
        for number in (-1.0, float("nan"), float("inf")):
            yield f"as-{number}", number
    elif isinstance(value, str):
        yield "unknown", "unknown"
    elif isinstance(value[0], tf.Variable):
        yield from of_variables(value)
    elif isinstance(value[0], np.ndarray):
        yield from of_list(value)
        for name, changed in of_tensor(value[0]):
            yield f"with-{name}", [changed, *value[1:]]
    elif isinstance(value[0], bool):
        yield from of_list(value)
    else:
        yield from of_numbers(value)


# What may fit, by op and argument.
SIZES = {"no-numbers", "longer", "shorter", "huge"}
GRADIENT = {
    f"with-{change}" for change in (*SIZES, "one-rank-more", "scalar", "vector")
}
POOLS = {"window": {"with-2"}, "strides": {"with-2"}}
SEEDS = {f"with-{change}" for change in ("negative", "too-large", "large-and-empty")}
LABELS = {"negative", "too-large", "large-and-empty"}
SCALES = {"as--1.0", "as-nan", "as-inf"}
FITS = {
    "fp16_gemm": {
        "a": {"one-rank-more"},
        "b": {"one-rank-more"},
        "bias": {"none", "too-few"},
    },
    "fp16_gemm_gelu_gradient": {"bias": {"none", "too-few"}},
    "softmax": {"x": SIZES},
    "float_softmax": {"x": SIZES},
    "row_norm": {
        "gamma": {"none", "too-few"},
        "beta": {"none", "too-few"},
        "epsilon": {"as-inf"},
    },
    "row_norm_gradient": {
        "gamma": {"none", "too-few"},
        "num_beta": {"as-0"},
        "epsilon": {"as-inf"},
    },
    "batch_norm": {"x": SIZES, "epsilon": {"as-inf"}},
    "batch_norm_inference": {"x": SIZES, "epsilon": {"as-inf"}},
    "batch_norm_gradient": {"epsilon": {"as-inf"}},
    "average_pool": {"x": SIZES, **POOLS},
    "average_pool_gradient": POOLS,
    "depthwise_conv": {
        "bias": {"none", "too-few"},
        "strides": {"with-2"},
        "dilations": {"with-2"},
    },
    "depthwise_conv_grad_x": {"strides": {"with-2"}},
    "depthwise_conv_grad_kernel": {"kernel_size": {"with-2"}, "strides": {"with-2"}},
    "attention": {
        "value": {"longer", "shorter"},
        "mask": {"none", "too-few"},
        "seed": SEEDS,
        "scale": SCALES,
    },
    "attention_gradient": {
        "mask": {"none", "too-few"},
        "seed": SEEDS,
        "scale": SCALES,
    },
    "logit_statistics": {"targets": LABELS, "bias": {"none", "too-few"}},
    "logit_statistics_gradient": {"targets": LABELS, "bias": {"none", "too-few"}},
    "sum": {"x": SIZES},
    "exponent_histogram": {"x": {*SIZES, "one-rank-more", "scalar", "vector"}},
    "check_gradients": {"gradients": GRADIENT | {"too-few", "too-many"}},
    "unscale_gradients": {"gradients": GRADIENT},
    "cast_masters": {"uniforms": {"none"}},
    "update_variables": {"uniforms": {"none"}, "power_of": {"with-0"}},
    "update_variables of matrices": {"uniforms": {"none"}},
    # An FP32 master and its weight may stand beside a remainder.
    "update_variables of compressed state": {"masters": {"of-another-dtype"}},
    "update_variables of pairs": {"masters": {"of-another-dtype"}},
}
# What XLA has to know while it compiles.
CONSTANTS = {"shape"}
# XLA takes the first of two handles.
FITS_IN_XLA = {"two-handles"}


def call(op, arguments):
    """Calls an op; what has no results returns None, as a function in a graph must."""
    result = op(**arguments)
    return None if isinstance(result, tf.Operation) else result


def inputs(arguments):
    """The arguments as an op takes them: it would cast an array, but not a tensor."""

    def convert(x):
        if isinstance(x, tf.Variable):
            return x.handle
        return tf.constant(x) if isinstance(x, np.ndarray) else x

    return tf.nest.map_structure(convert, arguments)


def run_eagerly(op, arguments):
    call(op, inputs(arguments))


def run_graph(op, arguments):
    tf.function(lambda: call(op, inputs(arguments)))()


def run_xla(op, arguments):
    """Compiles a function that was traced without shapes."""
    constants = {name: x for name, x in arguments.items() if name in CONSTANTS}
    arguments = {name: x for name, x in arguments.items() if name not in CONSTANTS}
    arrays = [x for x in tf.nest.flatten(arguments) if isinstance(x, np.ndarray)]
    signature = [tf.TensorSpec(None, x.dtype) for x in arrays]

    @tf.function(input_signature=signature, jit_compile=True)
    def compiled(*tensors):
        left = iter(tensors)

        def take(x):
            return next(left) if isinstance(x, np.ndarray) else x

        traced = tf.nest.map_structure(take, arguments)
        return call(op, inputs(traced | constants))

    compiled(*map(tf.constant, arrays))


MODES = {"eager": run_eagerly, "graph": run_graph, "xla": run_xla}


def outcome(run, op, arguments):
    """Returns None, or the error."""
    try:
        run(op, arguments)
    except Exception as error:
        return error
    return None


def is_told(error, change):
    """Tells whether this error reports an invalid argument."""
    if change == "uninitialized":
        return isinstance(error, (*ERRORS, *NO_VALUE))
    return isinstance(error, ERRORS)


def ops():
    """The ops of the library, by name without the prefix."""
    library = native.library()
    return {
        name.removeprefix(PREFIX): getattr(library, name)
        for name in dir(library)
        if name.startswith(PREFIX) and not name.endswith("_eager_fallback")
    }


def report(case, run):
    """Runs a case; it returns what is wrong, or nothing."""
    print("case", case, flush=True)
    wrong = run()
    print(f"wrong: {case}: {wrong}" if wrong else "done", flush=True)


def try_each(name, op, mode):
    """Changes one argument at a time."""
    for argument in CALLS[name]():
        fitting = FITS.get(name, {}).get(argument, set())
        if mode == "xla":
            fitting = fitting | FITS_IN_XLA
        for number, (change, _) in enumerate(mutations(CALLS[name]()[argument])):

            def run(argument=argument, change=change, number=number, fitting=fitting):
                arguments = CALLS[name]()
                changed = list(mutations(arguments[argument]))[number][1]
                error = outcome(MODES[mode], op, {**arguments, argument: changed})
                if is_told(error, change) or (change in fitting and not error):
                    return ""
                return f"not told, but {error!r}"

            report(f"{name} {mode} {argument} {change}", run)


def try_together(name, op, count):
    """Changes two arguments at a time, which may fit: nothing else may happen."""
    choose = random.Random(name)
    for _ in range(count):
        arguments = CALLS[name]()
        changes = {key: list(mutations(value)) for key, value in arguments.items()}
        changing = [key for key, listed in changes.items() if listed]
        chosen = {
            argument: choose.choice(changes[argument])
            for argument in choose.sample(changing, min(2, len(changing)))
        }

        def run(arguments=arguments, chosen=chosen):
            changed = {argument: value for argument, (_, value) in chosen.items()}
            error = outcome(run_eagerly, op, arguments | changed)
            return "" if not error or is_told(error, "uninitialized") else repr(error)

        report(f"{name} {[(a, change) for a, (change, _) in chosen.items()]}", run)


def try_op(name, op, modes):
    """Runs all cases of an op."""
    for mode in modes:
        error = outcome(MODES[mode], op, CALLS[name]())
        if mode == "xla" and NO_XLA_KERNEL in str(error):
            continue
        report(f"{name} {mode}", lambda error=error: repr(error) if error else "")
        try_each(name, op, mode)
    if "eager" in modes and CALLS[name]():
        try_together(name, op, 25)


def main(modes):
    found = ops()
    named = {name: name.partition(" ")[0] for name in CALLS}
    if found.keys() != set(named.values()):
        print(f"wrong: CALLS must have each op. Received: {sorted(found)}")
    for name, op in named.items():
        if op in found:
            try_op(name, found[op], modes)
    print("all done")


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODES))
