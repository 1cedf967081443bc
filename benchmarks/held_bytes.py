"""How many bytes does a model hold between forward and backward pass?

`python benchmarks/held_bytes.py` prints a Markdown table: a block of ResNet and one of
a Transformer, of the layers of Keras and of keras_mp. A training step is traced, on a
CPU, and not run: counted are the tensors of the forward pass that operations of the
backward pass read. Weights are not among them, but their casts are. The table has two
counts, because a graph moves operations from the backward pass to the forward pass:
see `held_tensors`. XLA, which has its own order, is not counted.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
from dataclasses import dataclass
from itertools import chain

import keras
import tensorflow as tf
from machine import machine

import keras_mp

# An output of these is an input under another name.
ALIASES = {
    "CheckNumerics",
    "EnsureShape",
    "ExpandDims",
    "Identity",
    "IdentityN",
    "PreventGradient",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
# These read no elements of their input.
OF_SHAPES = {"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"}
WEIGHTS = {"Const", "ReadVariableOp"}


@dataclass(frozen=True)
class Held:
    """A tensor of the forward pass that the backward pass reads."""

    name: str
    made_by: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self):
        return tf.as_dtype(self.dtype).size * tf.TensorShape(self.shape).num_elements()


def held_tensors(layer, x, runs="eager"):
    """Returns what a layer or model holds, largest first.

    Args:
        layer: it is called with `x` and `training=True`; its trainable variables, and
            what of `x` is floating, get gradients.
        x: `tf.TensorSpec`, or a structure of several.
        runs: what the backward pass is. `"eager"`: the operations that `tape.gradient`
            adds. `"graph"`: those of them that need the gradient of the output. A graph
            runs each of the others as soon as it has its inputs, and only once if the
            forward pass has the same; so their results are held.
    """
    start = []

    @tf.function
    def step(x):
        given = [each for each in keras.tree.flatten(x) if each.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = layer(x, training=True)
        start.append(tf.ones(y.shape, y.dtype))
        return tape.gradient(y, [*given, *layer.trainable_variables], start[-1])

    graph = step.get_concrete_function(x).graph
    operations = graph.get_operations()
    backward = operations[operations.index(start[-1].op) :]
    if runs == "graph":
        backward = _dependent(backward)
    names = {op.name for op in backward}
    needed = {op.name for op in needed_by(graph.outputs)}
    read = {
        source.name: source
        for op in backward
        if op.name in needed and op.type not in OF_SHAPES
        for source in map(_source, op.inputs)
        if source.op.name not in names and _is_data(source)
    }
    held = [Held(name, x.op.type, x.dtype.name, _sizes(x)) for name, x in read.items()]
    return sorted(held, key=lambda tensor: -tensor.bytes)


def _dependent(operations):
    """Returns the first operation, and those that depend on it."""
    found = {operations[0].name: operations[0]}
    for op in operations[1:]:
        before = [*op.control_inputs, *(x.op for x in op.inputs)]
        if any(earlier.name in found for earlier in before):
            found[op.name] = op
    return list(found.values())


def needed_by(outputs):
    """Returns the operations that the outputs depend on."""
    needed, pending = {}, [x.op for x in outputs]
    while pending:
        op = pending.pop()
        if op.name not in needed:
            needed[op.name] = op
            pending += [*(x.op for x in op.inputs), *op.control_inputs]
    return needed.values()


def _source(x):
    """Returns the tensor of which this one is an alias."""
    while x.op.type in ALIASES:
        x = x.op.inputs[x.value_index if x.op.type == "IdentityN" else 0]
    return x


def _is_data(x):
    """Tells it from weights, numbers, shapes and permutations."""
    is_shape = x.dtype.is_integer and x.shape.rank == 1
    return not (
        x.op.type in WEIGHTS or x.dtype == tf.resource or x.shape.rank == 0 or is_shape
    )


def _sizes(x):
    if not x.shape.is_fully_defined():
        raise ValueError(
            "The sizes of what is held must be known. Received: "
            f"{x.name} of shape {x.shape}. Give the layer inputs of known sizes."
        )
    return tuple(x.shape)


def basic_block(make, x):
    """Two convolutions of ResNet-18, and the way around them."""
    y = make("Conv2D", x.shape[-1], 3, padding="same", use_bias=False)(x)
    y = make("ReLU")(make("BatchNormalization")(y))
    y = make("Conv2D", x.shape[-1], 3, padding="same", use_bias=False)(y)
    y = make("BatchNormalization")(y)
    return make("ReLU")(make("Add")([x, y]))


def transformer_block(make, x):
    """An encoder layer of the base Transformer."""
    size = x.shape[-1]
    y = make("MultiHeadAttention", 8, size // 8)(x, x)
    x = make("LayerNormalization")(make("Add")([x, make("Dropout", 0.1)(y)]))
    y = make("Dense", 4 * size, activation="relu")(x)
    y = make("Dropout", 0.1)(make("Dense", size)(y))
    return make("LayerNormalization")(make("Add")([x, y]))


BLOCKS = {
    "ResNet": (basic_block, (32, 56, 56, 64)),
    "Transformer": (transformer_block, (16, 128, 512)),
}
MODELS = {
    "Keras float32": (keras.layers, "float32"),
    "keras_mp float32": (keras_mp.layers, "float32"),
    "Keras mixed_float16": (keras.layers, "mixed_float16"),
    "keras_mp mixed_float16": (keras_mp.layers, "mixed_float16"),
    "keras_mp float16": (keras_mp.layers, "float16"),
}
RUNS = ("eager", "graph")
FP32 = ("Keras float32", "keras_mp float32")


def held_by(block, shape, package, policy, runs="eager"):
    """Returns what a block holds, made of the layers of a package.

    Args:
        block: `(make, x)`, where `make(name, ...)` makes a layer.
        shape: of the inputs.
        package: `keras.layers` or `keras_mp.layers`; what that lacks is of Keras.
        policy: name of a dtype policy.
        runs: see `held_tensors`.
    """

    def make(name, *args, **options):
        kind = getattr(package, name, getattr(keras.layers, name))
        return kind(*args, dtype=policy, **options)

    dtype = keras.DTypePolicy(policy).compute_dtype
    x = keras.Input(shape[1:], batch_size=shape[0], dtype=dtype)
    model = keras.Model(x, block(make, x))
    return held_tensors(model, tf.TensorSpec(shape, dtype), runs)


def total(held):
    return sum(tensor.bytes for tensor in held)


def rows(name, runs):
    """Yields the cells of each model of a block: MiB, ratios to those in FP32."""
    sums = {
        model: total(held_by(*BLOCKS[name], *made, runs))
        for model, made in MODELS.items()
    }
    for held in sums.values():
        ratios = (f"{held / sums[model]:.3f}" for model in FP32)
        yield [f"{held / 2**20:.1f}", *ratios]


def show(name):
    """Prints what the models of a block hold in a graph."""
    block, shape = BLOCKS[name]
    for model, made in MODELS.items():
        print(f"\n{name}, {model}, graph:\n")
        for tensor in held_by(block, shape, *made, "graph"):
            sizes = "x".join(map(str, tensor.shape))
            print(f"{tensor.bytes:>12,}  {tensor.dtype} {sizes}  {tensor.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="the tensors as well")
    arguments = parser.parse_args()
    route = keras_mp.ops.build_info()["route"]
    print(f"{machine()}; route {route}\n")
    columns = ["block", "inputs", "model"]
    for runs in RUNS:
        columns += [f"{runs}: MiB", *(f"/ {model}" for model in FP32)]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for name, (_, shape) in BLOCKS.items():
        eager, graph = (rows(name, runs) for runs in RUNS)
        for model, *counts in zip(MODELS, eager, graph, strict=True):
            cells = [name, "x".join(map(str, shape)), model, *chain(*counts)]
            print(f"| {' | '.join(cells)} |")
    if arguments.list:
        for name in BLOCKS:
            show(name)


if __name__ == "__main__":
    main()
