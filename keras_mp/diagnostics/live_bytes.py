"""The most bytes that the tensors of a traced graph hold at once.

The operations are taken in the order in which they were traced. A tensor holds memory
from the operation that makes it to the last one that reads it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from keras_mp import keras_internals

# An output of these is an input under another name. The elements of a list are the
# tensors that were put in it, or parts of the one that it was made from.
_ALIASES = frozenset(
    {"CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "IdentityN"}
    | {"PreventGradient", "ReadVariableOp", "Reshape", "Squeeze", "StopGradient"}
    | {"TensorListFromTensor", "TensorListGetItem"}
)
# These write their result over an input that nothing else reads.
_IN_PLACE = frozenset(
    {"Add", "AddN", "AddV2", "BiasAdd", "Exp", "Log", "Maximum", "Minimum", "Mul"}
    | {"Neg", "RealDiv", "Reciprocal", "Relu", "Relu6", "Relu6Grad", "ReluGrad"}
    | {"Rsqrt", "SelectV2", "Sigmoid", "SigmoidGrad", "Softmax"}
    | {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
    | {"Sqrt", "Square", "Sub", "Tanh", "TanhGrad"}
)
# These read no elements of their inputs: they are computed before a step runs.
_OF_SHAPES = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
# Which input they put in a list.
_PUT_IN_LISTS = {"TensorListPushBack": 1, "TensorListSetItem": 2}
_CALLS = frozenset(
    {"Case", "If", "StatelessCase", "StatelessIf"}
    | {"PartitionedCall", "StatefulPartitionedCall"}
)
_LOOPS = frozenset({"StatelessWhile", "While"})


@dataclass
class Operation:
    """An operation that runs.

    Attributes:
        kind: str, its type.
        reads: list of the names of the tensors that it reads.
        makes: dict from the name of each tensor that it makes to its bytes.
        inside: int, the bytes that it holds while it runs, besides those.
    """

    kind: str
    reads: list[str] = field(default_factory=list)
    makes: dict[str, int] = field(default_factory=dict)
    inside: int = 0


class LiveBytes:
    """The tensors of a graph, their bytes, and when they are held.

    The inputs of the graph are held from beginning to end, and its outputs until the
    end. Variables and constants are not counted, nor tensors of unknown shapes.

    Args:
        graph: `tf.Graph` of a function.
    """

    def __init__(self, graph: Any) -> None:
        self._operations: list[Operation] = []
        self._sources: dict[str, str] = {}
        self._lengths: dict[str, int] = {}
        self._inputs = {x.name: _bytes(x) for x in graph.inputs}
        self._add_graph(graph, "")
        self._outputs = {self._source(x.name) for x in graph.outputs}

    def most(self, left_out: Iterable[Any] = ()) -> int:
        """Returns the most bytes that are held at once.

        Args:
            left_out: tensors of the graph that are not counted.
        """
        not_counted = {self._source(x.name) for x in left_out}
        held = {k: v for k, v in self._inputs.items() if k not in not_counted}
        most = now = sum(held.values())
        for operation, freed in zip(self._operations, self._freed(), strict=True):
            made = {k: v for k, v in operation.makes.items() if k not in not_counted}
            if operation.kind in _IN_PLACE:
                overwritten = [k for k in freed if held.get(k) in made.values()]
                now -= sum(held.pop(k) for k in overwritten[:1])
            held |= made
            now += sum(made.values())
            most = max(most, now + operation.inside)
            now -= sum(held.pop(k, 0) for k in freed)
        return most

    def _freed(self) -> list[list[str]]:
        """Returns the tensors that nothing needs after each operation."""
        last: dict[str, int] = {}
        for step, operation in enumerate(self._operations):
            last |= dict.fromkeys([*operation.makes, *operation.reads], step)
        freed: list[list[str]] = [[] for _ in self._operations]
        for name, step in last.items():
            if name not in self._outputs and name not in self._inputs:
                freed[step].append(name)
        return freed

    def _source(self, name: str) -> str:
        """Returns the name of the tensor that another name stands for."""
        return self._sources.get(name, name)

    def _add_graph(self, graph: Any, prefix: str) -> None:
        """Adds the operations of a graph that run.

        Args:
            graph: `tf.Graph`.
            prefix: str, before the names of its tensors.
        """
        for traced in _needed(graph):
            if traced.type in ("Const", "Placeholder"):
                continue
            operation = Operation(traced.type)
            if traced.type not in _OF_SHAPES:
                names = (prefix + x.name for x in traced.inputs)
                operation.reads = [self._source(name) for name in names]
            if traced.type in _ALIASES:
                for i, x in enumerate(traced.outputs):
                    shown = operation.reads[i if traced.type == "IdentityN" else 0]
                    self._sources[prefix + x.name] = shown
            elif traced.type in _CALLS:
                self._add_largest_branch(traced, prefix)
                operation.reads = []
            elif traced.type in _LOOPS:
                self._count_loop(traced, prefix, operation)
            else:
                operation.makes = {prefix + x.name: _bytes(x) for x in traced.outputs}
            self._operations.append(operation)
            if _length(traced):
                self._lengths[prefix + traced.outputs[0].name] = _length(traced)

    def _add_largest_branch(self, traced: Any, prefix: str) -> None:
        """Adds the operations of a branch or function, as part of the graph."""
        branches = keras_internals.graphs_inside(traced).values()
        graph = max(branches, key=lambda branch: LiveBytes(branch).most())
        inner = f"{prefix}{traced.name}/"
        # The input before those of a branch says which one it is.
        given = list(traced.inputs)[len(traced.inputs) - len(graph.inputs) :]
        for x, outer in zip(graph.inputs, given, strict=True):
            self._sources[inner + x.name] = self._source(prefix + outer.name)
        self._add_graph(graph, inner)
        for x, result in zip(traced.outputs, graph.outputs, strict=True):
            self._sources[prefix + x.name] = self._source(inner + result.name)

    def _count_loop(self, traced: Any, prefix: str, operation: Operation) -> None:
        """Counts a loop: each list that it fills has an element for each pass.

        TensorFlow begins a pass before those before it have ended, up to a number of
        them: gradients of weights wait to be added up.
        """
        graph = keras_internals.graphs_inside(traced)["body"]
        body = LiveBytes(graph)
        lengths = (self._lengths.get(prefix + x.name, 0) for x in traced.inputs)
        passes = max(1, *lengths)
        lists = body._bytes_put_in_lists(graph)
        for i, x in enumerate(traced.outputs):
            name = prefix + x.name
            if body._source(graph.outputs[i].name) == graph.inputs[i].name:
                self._sources[name] = operation.reads[i]
            else:
                operation.makes[name] = passes * lists.get(i, 0) or _bytes(x)
                self._lengths[name] = passes
        at_once = min(passes, traced.get_attr("parallel_iterations"))
        operation.inside = at_once * body.most(graph.inputs)

    def _bytes_put_in_lists(self, graph: Any) -> dict[int, int]:
        """Returns what a pass of a loop puts in each list, by its position.

        A tensor that is put in several is counted once.
        """
        put = {
            name: operation.reads[_PUT_IN_LISTS[operation.kind]]
            for operation in self._operations
            if operation.kind in _PUT_IN_LISTS
            for name in operation.makes
        }
        sizes = {k: v for each in self._operations for k, v in each.makes.items()}
        results = [self._source(x.name) for x in graph.outputs]
        # What a pass is given is what the one before has returned.
        given = (x.name for x in graph.inputs)
        returned = dict(zip(given, results, strict=True))
        found = {}
        for i, result in enumerate(results):
            if result in put:
                element = returned.get(put[result], put[result])
                found[i] = sizes.pop(element, 0)
        return found


def _length(traced: Any) -> int:
    """Returns the length of the list that an operation makes, 0 if it is not known."""
    if traced.type == "TensorListFromTensor":
        return traced.inputs[0].shape[0] or 0
    if traced.type == "TensorListReserve":
        import tensorflow as tf

        return int(tf.get_static_value(traced.inputs[1]) or 0)
    return 0


def _needed(graph: Any) -> list[Any]:
    """Returns the operations that run: those that results or variables depend on."""
    operations = graph.get_operations()
    pending = [x.op for x in graph.outputs]
    pending += [each for each in operations if each.op_def.is_stateful]
    needed = set()
    while pending:
        operation = pending.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            pending += operation.control_inputs
            if operation.type not in _OF_SHAPES:
                pending += [x.op for x in operation.inputs]
    return [each for each in operations if each.name in needed]


def _bytes(x: Any) -> int:
    """Returns the bytes of a tensor, 0 if its shape is not known or it is a handle."""
    is_handle = x.dtype.name in ("resource", "string", "variant")
    return 0 if is_handle else (x.shape.num_elements() or 0) * x.dtype.size
