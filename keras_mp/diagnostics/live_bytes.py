"""The most bytes that the tensors of a traced graph hold at once.

The operations are taken in the order in which TensorFlow runs them on several cores. A
tensor holds memory from the start of the operation that makes it to the end of the last
one that reads it.
"""

import collections
import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from keras_mp import keras_internals

# An output of these is an input under another name.
_ALIASES = frozenset(
    {"CheckNumerics", "EnsureShape", "ExpandDims", "Identity", "IdentityN"}
    | {"PreventGradient", "ReadVariableOp", "Reshape", "Squeeze", "StopGradient"}
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
_CALLS = frozenset(
    {"Case", "If", "StatelessCase", "StatelessIf"}
    | {"PartitionedCall", "StatefulPartitionedCall"}
)
_LOOPS = frozenset({"StatelessWhile", "While"})
# Which input they put in a list.
_PUT_IN_LISTS = {"TensorListPushBack": 1, "TensorListSetItem": 2}
# A part of the names of operations that multiply matrices or convolve.
_PRODUCTS = ("Conv", "Einsum", "Gemm", "MatMul")
# Those that TensorFlow computes in FP32.
_IN_FP32 = frozenset({"BatchMatMulV2", "BatchMatMulV3", "MatMul"})
# How much longer they take than others, for each byte that they read or write.
_TIME_OF_PRODUCTS = 4.0


@dataclass
class Operation:
    """An operation that runs.

    Attributes:
        kind: str, its type.
        reads: list of the names of the tensors that it reads.
        makes: dict from the name of each tensor that it makes to its bytes.
        after: set of the positions of operations that have to end before it starts.
        time: float, how long it takes, in bytes that are read or written meanwhile.
    """

    kind: str
    reads: list[str] = field(default_factory=list)
    makes: dict[str, int] = field(default_factory=dict)
    after: set[int] = field(default_factory=set)
    time: float = 0.0


class LiveBytes:
    """The tensors of a graph, their bytes, and when they are held.

    The inputs of the graph are held from beginning to end, and its outputs until the
    end. Variables and constants are not counted, nor tensors of unknown shapes.

    Args:
        graph: `tf.Graph` of a function.
        cores: int, how many operations run at once.
        tried: int, how many orders are tried. TensorFlow's differs from step to step.
    """

    def __init__(self, graph: Any, cores: int = 1, tried: int = 1) -> None:
        self._cores = cores
        self._operations: list[Operation] = []
        self._sources: dict[str, str] = {}
        self._makers: dict[str, int] = {}
        self._elements: dict[str, tuple[str, ...]] = {}
        self._lengths: dict[str, int] = {}
        self._pass = 0
        self._inputs = {x.name: _bytes(x) for x in graph.inputs}
        self._add_graph(graph, "", set())
        self._outputs = {self._source(x.name) for x in graph.outputs}
        self._orders = [list(self._run(seed)) for seed in range(tried)]

    def most(self, left_out: Iterable[Any] = ()) -> int:
        """Returns the most bytes that are held at once.

        Args:
            left_out: tensors of the graph that are not counted.
        """
        not_counted = {self._source(x.name) for x in left_out}
        return max(self._most_of(order, not_counted) for order in self._orders)

    def _most_of(
        self, order: list[tuple[Operation, bool]], not_counted: set[str]
    ) -> int:
        """Returns the most bytes that are held when operations run in an order."""
        held = {k: v for k, v in self._inputs.items() if k not in not_counted}
        most = now = sum(held.values())
        needed = self._needed_by()

        def release(name: str) -> int:
            needed[name] -= 1
            if needed[name] > 0:
                return 0
            return held.pop(name, 0) + sum(map(release, self._elements.get(name, ())))

        for operation, starts in order:
            if starts:
                sizes = operation.makes.items()
                made = {k: v for k, v in sizes if k not in not_counted}
                if operation.kind in _IN_PLACE:
                    size = max(made.values(), default=0)
                    for name in operation.reads:
                        if needed[name] == 1 and held.get(name) == size:
                            now -= held.pop(name)
                            break
                held |= made
                now += sum(made.values())
                most = max(most, now)
            else:
                names = [*operation.reads, *operation.makes]
                now -= sum(map(release, names))
        return most

    def _needed_by(self) -> collections.Counter[str]:
        """Returns by how many operations and lists each tensor is needed."""
        needed = collections.Counter([*self._inputs, *self._outputs])
        for operation in self._operations:
            # What it makes is needed at least until it ends.
            needed.update([*operation.reads, *operation.makes])
        for name, elements in self._elements.items():
            if needed[name]:
                needed.update(elements)
        return needed

    def _run(self, seed: int) -> Iterator[tuple[Operation, bool]]:
        """Yields each operation twice, with True as it starts and False as it ends.

        As in TensorFlow, a core takes one of those that its last operation made ready,
        and else what waited least. A core that has nothing takes what waits longest at
        another.

        Args:
            seed: int, of the choice among those that are ready at once.
        """
        choice = random.Random(seed)
        waits = [len(operation.after) for operation in self._operations]
        followers: list[list[int]] = [[] for _ in self._operations]
        for i, operation in enumerate(self._operations):
            for earlier in operation.after:
                followers[earlier].append(i)
        queues = [collections.deque[int]() for _ in range(self._cores)]
        queues[0].extend(i for i in reversed(range(len(waits))) if not waits[i])
        idle = set(range(self._cores))
        running: list[tuple[float, int, int]] = []
        now = 0.0
        while running or any(queues):
            for core in sorted(idle):
                longest = max(queues, key=len)
                if longest:
                    own = queues[core]
                    i = own.pop() if own else longest.popleft()
                    idle.remove(core)
                    heapq.heappush(running, (now + self._operations[i].time, core, i))
                    yield self._operations[i], True
            now, core, i = heapq.heappop(running)
            idle.add(core)
            yield self._operations[i], False
            for following in followers[i]:
                waits[following] -= 1
            ready = [each for each in followers[i] if not waits[each]]
            choice.shuffle(ready)
            queues[core].extend(ready)

    def _source(self, name: str) -> str:
        """Returns the name of the tensor that another name stands for."""
        return self._sources.get(name, name)

    def _show(self, name: str, shown: str) -> None:
        """Makes a name stand for a tensor that has another name already."""
        self._sources[name] = self._source(shown)
        if shown in self._makers:
            self._makers[name] = self._makers[shown]

    def _makers_of(self, names: list[str]) -> set[int]:
        """Returns the positions of the operations that make tensors."""
        return {self._makers[name] for name in names if name in self._makers}

    def _add(self, operation: Operation) -> int:
        """Adds an operation, and returns its position."""
        self._operations.append(operation)
        return len(self._operations) - 1

    def _add_graph(self, graph: Any, prefix: str, after: set[int]) -> None:
        """Adds the operations of a graph that run.

        Args:
            graph: `tf.Graph`.
            prefix: str, before the names of its tensors.
            after: positions of operations that have to end before.
        """
        positions: dict[str, int] = {}
        for traced in _needed(graph):
            if traced.type in ("Const", "Placeholder"):
                continue
            read = [prefix + x.name for x in traced.inputs]
            made = [prefix + x.name for x in traced.outputs]
            if traced.type in _OF_SHAPES:
                read = []
            names = [each.name for each in traced.control_inputs]
            earlier = {positions[name] for name in names if name in positions}
            operation = Operation(traced.type, after=after | earlier)
            if traced.type in _ALIASES:
                # With several inputs, each output is one of them.
                for name, shown in zip(made, read, strict=False):
                    self._show(name, shown)
            elif traced.type in _CALLS:
                self._add_largest_branch(traced, made, read, operation)
            elif traced.type in _LOOPS:
                self._add_passes(traced, made, read, operation)
            else:
                operation.reads = [self._source(name) for name in read]
                sizes = map(_bytes, traced.outputs)
                operation.makes = dict(zip(made, sizes, strict=True))
                # Nothing reads that name: it is held while the operation runs.
                copies = f"{prefix}{traced.name} in FP32"
                operation.makes[copies] = _bytes_in_fp32(traced)
                operation.time = _time(traced)
                self._count_list(traced, made, operation)
            operation.after |= self._makers_of(read)
            positions[traced.name] = self._add(operation)
            # Without other conditions, TensorFlow leaves an alias out.
            if traced.type not in (_CALLS | _LOOPS | _ALIASES) or traced.control_inputs:
                self._makers |= dict.fromkeys(made, positions[traced.name])

    def _add_largest_branch(
        self, traced: Any, made: list[str], read: list[str], call: Operation
    ) -> None:
        """Adds the operations of a branch or function, as part of the graph."""
        graph, *others = keras_internals.graphs_inside(traced).values()
        if others:
            graph = max((graph, *others), key=lambda branch: LiveBytes(branch).most())
        # The input before those of a branch says which one it is.
        which, values = read[: -len(graph.inputs)], read[-len(graph.inputs) :]
        after = call.after | self._makers_of(which)
        start = len(self._operations)
        results = self._add_inside(graph, f"{start}/", values, after)
        call.after |= set(range(start, len(self._operations)))
        for name, result in zip(made, results, strict=True):
            self._show(name, result)

    def _add_passes(
        self, traced: Any, made: list[str], read: list[str], loop: Operation
    ) -> None:
        """Adds the passes of a loop: as many as its longest list has elements.

        A pass may begin before those before it have ended, up to a number of them.
        """
        graph = keras_internals.graphs_inside(traced)["body"]
        at_once = traced.get_attr("parallel_iterations")
        values = read
        starts: list[int] = []
        passes = max(1, *(self._length(self._source(value)) for value in values))
        for self._pass in range(passes):
            after = loop.after
            if self._pass >= at_once:
                ended = set(range(*starts[self._pass - at_once :][:2]))
                after = {self._add(Operation("NextIteration", after=ended | after))}
            starts.append(len(self._operations))
            values = self._add_inside(graph, f"{starts[-1]}/", values, after)
        loop.after = set(range(starts[0], len(self._operations)))
        for name, result in zip(made, values, strict=True):
            self._show(name, result)

    def _add_inside(
        self, graph: Any, prefix: str, values: list[str], after: set[int]
    ) -> list[str]:
        """Adds the operations of a graph with these inputs, and returns its outputs."""
        for x, value in zip(graph.inputs, values, strict=True):
            self._show(prefix + x.name, value)
        self._add_graph(graph, prefix, after)
        return [prefix + x.name for x in graph.outputs]

    def _count_list(self, traced: Any, names: list[str], operation: Operation) -> None:
        """Notes the elements of the list that an operation makes or reads."""
        lists = [self._elements.get(name, ()) for name in operation.reads]
        if traced.type == "TensorListFromTensor":
            # Each element is a copy.
            length = max(traced.inputs[0].shape[0] or 1, 1)
            size = _bytes(traced.inputs[0]) // length
            copies = {f"{names[0]}/{i}": size for i in range(length)}
            operation.makes |= copies
            self._elements[names[0]] = tuple(copies)
        elif traced.type == "TensorListReserve":
            self._lengths[names[0]] = _reserved(traced)
        elif traced.type in _PUT_IN_LISTS:
            put = operation.reads[_PUT_IN_LISTS[traced.type]]
            self._elements[names[0]] = (*lists[0], put)
            self._lengths[names[0]] = self._lengths.get(operation.reads[0], 0)
        elif traced.type == "TensorListPopBack" and lists[0]:
            del operation.makes[names[1]]
            self._sources[names[1]] = lists[0][-1]
            self._elements[names[0]] = lists[0][:-1]
        elif traced.type == "TensorListGetItem" and lists[0]:
            del operation.makes[names[0]]
            self._sources[names[0]] = lists[0][min(self._pass, len(lists[0]) - 1)]
        elif traced.outputs and traced.outputs[0].dtype.name == "variant":
            self._elements[names[0]] = tuple(dict.fromkeys(sum(lists, ())))

    def _length(self, name: str) -> int:
        """Returns the length of a list, 0 if it is not known or not a list."""
        return max(len(self._elements.get(name, ())), self._lengths.get(name, 0))


def _reserved(traced: Any) -> int:
    """Returns how many elements a list is made for, 0 if it is not known."""
    import tensorflow as tf

    return int(tf.get_static_value(traced.inputs[1]) or 0)


def _bytes_in_fp32(traced: Any) -> int:
    """Returns the bytes of the copies in FP32 that a product of FP16 or BF16 makes.

    TensorFlow converts what it reads, and converts back what it makes.
    """
    if traced.type not in _IN_FP32:
        return 0
    tensors = (*traced.inputs, *traced.outputs)
    return 2 * sum(_bytes(x) for x in tensors if x.dtype.size == 2)


def _time(traced: Any) -> float:
    """Returns how long an operation takes, in bytes that are read or written."""
    is_list = any(x.dtype.name == "variant" for x in traced.outputs)
    if is_list and traced.type != "TensorListFromTensor":
        return 0.0
    moved = sum(map(_bytes, [*traced.inputs, *traced.outputs]))
    is_product = any(part in traced.type for part in _PRODUCTS)
    return moved * (_TIME_OF_PRODUCTS if is_product else 1.0)


def _needed(graph: Any) -> list[Any]:
    """Returns the operations that run, each behind those that it needs.

    They are those that results or variables depend on.
    """
    pending = [each for each in graph.get_operations() if each.op_def.is_stateful]
    pending += [x.op for x in graph.outputs]
    pending.reverse()
    needed: dict[str, Any] = {}
    while pending:
        earlier = [x for x in _earlier(pending[-1]) if x.name not in needed]
        if earlier:
            pending += earlier
        else:
            operation = pending.pop()
            needed[operation.name] = operation
    return list(needed.values())


def _earlier(operation: Any) -> list[Any]:
    """Returns the operations that an operation waits for."""
    inputs = [] if operation.type in _OF_SHAPES else [x.op for x in operation.inputs]
    return [*operation.control_inputs, *inputs]


def _bytes(x: Any) -> int:
    """Returns the bytes of a tensor, 0 if its shape is not known or it is a handle."""
    is_handle = x.dtype.name in ("resource", "string", "variant")
    return 0 if is_handle else (x.shape.num_elements() or 0) * x.dtype.size
