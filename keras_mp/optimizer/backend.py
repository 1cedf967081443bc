"""Keras's backend, as an optimizer uses it: TensorFlow, or a single program."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.backend_tf import Runner, TensorFlowBackend
from keras_mp.typing import Gradient, Strategy, Tensor, Variable


class SingleProgramBackend:
    """What a step asks of Keras's backend, where one program does all of it.

    JAX and PyTorch have no sparse gradients, native ops or replicas. On JAX a program
    computes with whole arrays, wherever `keras.distribution` has put their parts: a sum
    over an array is one over all devices. PyTorch trains in one process.

    `TensorFlowBackend` has the same methods. TensorFlow has sparse gradients, traced
    functions with side effects, and replicas (`tf.distribute`): each executes the
    training step. A `strategy` is a `tf.distribute.Strategy` there, and None here.
    """

    def is_sparse(self, gradient: Gradient) -> bool:
        """Tells whether `gradient` is a `tf.IndexedSlices`: some rows of a matrix."""
        return False

    def as_dense(self, gradient: Gradient) -> Any:
        """Returns a gradient as a tensor of the shape of its variable.

        The rows of one index of a sparse gradient are added up in FP32.
        """
        return gradient

    def with_shapes(
        self, gradients: list[Gradient], variables: Sequence[Variable]
    ) -> list[Any]:
        """Returns gradients; sparse ones know the shape of their variables.

        Args:
            gradients: list of tensors, `tf.IndexedSlices` or None.
            variables: list of their variables.
        """
        return gradients

    def can_update(self, variables: Sequence[Variable]) -> bool:
        """Tells whether the native ops of the update step can be used here.

        Args:
            variables: list of those that one call of an op is to write to.
        """
        return False

    def current_function(self) -> Any:
        """Returns an object that identifies the function being traced.

        Equal to the one of another call only inside the same trace; None in eager
        execution and on PyTorch.
        """
        if keras.backend.backend() != "jax":
            return None
        from jax.extend.core import get_opaque_trace_state

        return get_opaque_trace_state()

    def is_inside(self, function: Any) -> bool:
        """Tells whether the code runs in `function` or in a branch or loop body of it.

        A `tf.function` that it calls is not a part of it: another function may call
        that one too.

        Args:
            function: what `current_function` returned.
        """
        return bool(self.current_function() == function)

    def traced_operations(self) -> int:
        """Returns how many operations the function being traced has, by now.

        0 in eager execution, on several replicas, on JAX and on PyTorch.
        """
        return 0

    def traced_assignments(
        self, variables: Sequence[Variable], start: int
    ) -> list[int]:
        """Returns how often the function being traced assigns to each variable.

        Args:
            variables: list of `keras.Variable` or `tf.Variable`.
            start: int, how many of its operations are left out, from the first; fewer
                than `traced_operations` returns.
        """
        return [0] * len(variables)

    def have_values(self, variables: list[Variable]) -> bool:
        """Tells whether all variables can be read outside the function being traced.

        A variable that a `tf.function` creates has no value before the trace ends; then
        TensorFlow initializes it, and traces the function again before it runs it.
        """
        return True

    def run_eagerly(self, act: Callable[[], None]) -> None:
        """Calls `act` eagerly, outside any `tf.function` that is being traced."""
        act()

    def strategy_of(self, optimizer: keras.Optimizer) -> None:
        """Returns the strategy that an optimizer was created in."""
        return None

    def check_scope(self, strategy: Strategy) -> None:
        """Checks that no other strategy than `strategy` is in force.

        Elsewhere than on TensorFlow, Keras itself warns where devices are mixed.

        Raises:
            RuntimeError: another one is.
        """

    def scope_of(self, strategy: Strategy) -> AbstractContextManager[None]:
        """Returns a context in which variables are created on all replicas.

        The scope of `strategy`, or a null context where it has been entered already.
        """
        return contextlib.nullcontext()

    def check_shards_state(self) -> None:
        """Checks that state can be sharded here, if there are several devices.

        Raises:
            RuntimeError: it cannot.
        """
        if keras.backend.backend() != "jax":
            raise RuntimeError(
                "`shard_state=True` shards state over the devices of a "
                "keras.distribution on JAX, or of a tf.distribute.MirroredStrategy on "
                f"TensorFlow. Received: backend={keras.backend.backend()!r}. Leave it "
                "at False, or set KERAS_BACKEND before Keras is imported. To load a "
                "model that was saved with it, call load_model(path, compile=False) "
                "and compile."
            )

    def replicas_in(self, strategy: Strategy) -> int:
        """Returns the number of replicas that take a step together."""
        return 1

    def refuse_several_replicas(self) -> None:
        """Checks that this is the only replica: nothing can be built on one of several.

        Raises:
            RuntimeError: there are several.
        """

    def check_can_read_state(self) -> None:
        """Checks that sharded state can be read here: no replica is running.

        Raises:
            RuntimeError: one of several is.
        """

    def sum_over_replicas(self, x: Tensor) -> Any:
        """Returns the sum of `x` over all replicas, to each of them.

        Args:
            x: tensor, or a list of tensors and `tf.IndexedSlices`.
        """
        return x

    def max_over_replicas(self, x: Tensor) -> Any:
        """Returns the largest of a number over all replicas, to each of them.

        Args:
            x: scalar tensor >= 0. If one is inf or NaN, the result is any number.
        """
        return x

    def colocated_with(self, variable: Variable) -> AbstractContextManager[None]:
        """Returns a context that creates variables where `variable` is.

        Args:
            variable: `keras.Variable` or `tf.Variable`.
        """
        return contextlib.nullcontext()

    def run_on_each_replica(
        self,
        strategy: Strategy,
        act: Callable[[list[Gradient]], None],
        grads: list[Gradient],
    ) -> None:
        """Calls `act` on every replica with the gradients of that replica: a `Runner`.

        To be called across replicas, as `cond_on_all_replicas` does.
        """
        act(grads)

    def cond_on_all_replicas(
        self,
        predicate: Tensor,
        run: Runner,
        act: Callable[[list[Gradient]], None],
        grads: list[Gradient],
        variables: list[Variable],
    ) -> None:
        """Runs `act(grads)` on all replicas if `predicate` holds.

        Args:
            predicate: scalar bool tensor, the same on every replica.
            run: the `Runner` that calls `act`.
            act: function of a list of gradients, called in a replica context.
            grads: list of this replica's tensors, `tf.IndexedSlices` or None.
            variables: list of those that `act` may change.
        """
        self.cond(predicate, lambda: run(None, act, grads), variables)

    def cond(
        self, predicate: Tensor, act: Callable[[], None], variables: list[Variable]
    ) -> None:
        """Runs `act` if `predicate` holds, inside an update of `cond_on_all_replicas`.

        Args:
            predicate: scalar bool tensor.
            act: function that assigns to variables.
            variables: list of those that it may change.
        """
        if not _is_traced(predicate):
            if predicate:
                act()
            return
        # `jax.lax.cond` takes pure functions: the new values are results of a branch.
        before = [variable.value for variable in variables]

        def changed() -> list[Any]:
            mapping = list(zip(variables, before, strict=True))
            with keras.StatelessScope(mapping) as scope:
                act()
            return [scope.get_current_value(variable) for variable in variables]

        after = ops.cond(predicate, changed, lambda: before)
        for variable, value in zip(variables, after, strict=True):
            variable.assign(value)

    def assign_on_all_replicas(
        self,
        strategy: Strategy,
        variable: Variable,
        value: Callable[[Tensor, Tensor], Tensor],
        source: Variable,
        rows: Tensor | None,
    ) -> None:
        """Assigns `value(variable, source)` to rows of each replica's copy.

        Args:
            strategy: the strategy that the variables were created in.
            variable: `keras.Variable` or `tf.Variable`, to be assigned to.
            value: elementwise function of two tensors: both variables, or the same
                rows of both.
            source: `keras.Variable` or `tf.Variable`, to be read.
            rows: int tensor, the only rows to be assigned; or None for all.
        """
        variable.assign(value(variable.value, source.value))


def _is_traced(tensor: Tensor) -> bool:
    """Tells whether JAX is tracing, and `tensor` has no value yet."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return isinstance(tensor, jax.core.Tracer)


backend: SingleProgramBackend | TensorFlowBackend = (
    TensorFlowBackend()
    if keras.backend.backend() == "tensorflow"
    else SingleProgramBackend()
)


def sum_gradients(gradients: Sequence[Gradient], dtype: str) -> list[Any]:
    """Returns the sums of the gradients of all replicas, to each of them.

    Args:
        gradients: list of this replica's tensors, `tf.IndexedSlices` or None.
        dtype: str, of the terms and the sums between replicas. `"float32"` is the least
            for a gradient, or `"float16"`; a sum may then overflow to infinity.

    Returns:
        List like `gradients`, at least float32.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    wide = [keras.backend.result_type(g.dtype.name, "float32") for g in given]
    sent = wide if dtype == "float32" else [dtype] * len(given)
    widened = iter(_cast(backend.sum_over_replicas(_cast(given, sent)), wide))
    return [None if g is None else next(widened) for g in gradients]


def _cast(gradients: Sequence[Gradient], dtypes: Sequence[str]) -> list[Any]:
    pairs = zip(gradients, dtypes, strict=True)
    return [ops.cast(gradient, dtype) for gradient, dtype in pairs]
