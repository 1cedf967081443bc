"""The operations of a training step that depend on Keras's backend."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

# Calls a function on every replica that takes part in a step: given the strategy, the
# function, and the gradients of all replicas.
Runner = Callable[[Any, Callable[[list[Any]], None], list[Any]], None]


class Backend(Protocol):
    """What `TensorFlowBackend` and `SingleProgramBackend` have in common.

    They differ because TensorFlow has sparse gradients, traced functions with side
    effects, and replicas (`tf.distribute`), and each replica executes the training
    step; on JAX and PyTorch one program executes it. A `strategy` is a
    `tf.distribute.Strategy` on TensorFlow and None elsewhere.
    """

    def is_sparse(self, gradient: Any) -> bool:
        """Tells whether `gradient` is a `tf.IndexedSlices`: some rows of a matrix."""

    def as_dense(self, gradient: Any) -> Any:
        """Returns a gradient as a tensor of the shape of its variable.

        The rows of one index of a sparse gradient are added up in FP32.
        """

    def with_shapes(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns gradients; sparse ones know the shape of their variables.

        Args:
            gradients: list of tensors, `tf.IndexedSlices` or None.
            variables: list of their variables.
        """

    def can_update(self, variables: Sequence[Any]) -> bool:
        """Tells whether the native ops of the update step can be used here.

        Args:
            variables: list of those that one call of an op is to write to.
        """

    def current_function(self) -> Any:
        """Returns an object that identifies the function being traced.

        Equal to the one of another call only inside the same trace; None in eager
        execution and on PyTorch.
        """

    def is_part_of(self, function: Any) -> bool:
        """Tells whether the code runs in `function` or in a branch or loop body of it.

        A `tf.function` that it calls is not a part of it: another function may call
        that one too.

        Args:
            function: what `current_function` returned.
        """

    def traced_operations(self) -> int:
        """Returns how many operations the function being traced has, by now.

        0 in eager execution, on several replicas, on JAX and on PyTorch.
        """

    def traced_assignments(self, variables: Sequence[Any], start: int) -> list[int]:
        """Returns how often the function being traced assigns to each variable.

        Args:
            variables: list of `keras.Variable` or `tf.Variable`.
            start: int, how many of its operations are left out, from the first; fewer
                than `traced_operations` returns.
        """

    def have_values(self, variables: list[Any]) -> bool:
        """Tells whether all variables can be read outside the function being traced.

        A variable that a `tf.function` creates has no value before the trace ends; then
        TensorFlow initializes it, and traces the function again before it runs it.
        """

    def outside_functions(self, act: Callable[[], None]) -> None:
        """Calls `act` eagerly, outside any `tf.function` that is being traced."""

    def strategy_of(self, optimizer: Any) -> Any:
        """Returns the strategy that an optimizer was created in."""

    def check_scope(self, strategy: Any) -> None:
        """Checks that no other strategy than `strategy` is in force.

        Raises:
            RuntimeError: another one is.
        """

    def scope_of(self, strategy: Any) -> AbstractContextManager[Any]:
        """Returns a context in which variables are created on all replicas.

        The scope of `strategy`, or a null context where it has been entered already.
        """

    def replicas_in(self, strategy: Any) -> int:
        """Returns the number of replicas that take a step together."""

    def refuse_several_replicas(self) -> None:
        """Checks that this is the only replica: nothing can be built on one of several.

        Raises:
            RuntimeError: there are several.
        """

    def sum_over_replicas(self, x: Any) -> Any:
        """Returns the sum of `x` over all replicas, to each of them.

        Args:
            x: tensor, or a list of tensors and `tf.IndexedSlices`.
        """

    def max_over_replicas(self, x: Any) -> Any:
        """Returns the largest of a number over all replicas, to each of them.

        Args:
            x: scalar tensor >= 0. If one is inf or NaN, the result is any number.
        """

    def run_on_each_replica(
        self, strategy: Any, act: Callable[[list[Any]], None], grads: list[Any]
    ) -> None:
        """Calls `act` on every replica with the gradients of that replica: a `Runner`.

        To be called across replicas, as `cond_on_all_replicas` does.
        """

    def cond_on_all_replicas(
        self,
        predicate: Any,
        run: Runner,
        act: Callable[[list[Any]], None],
        grads: list[Any],
        variables: list[Any],
    ) -> None:
        """Runs `act(grads)` on all replicas if `predicate` holds.

        Args:
            predicate: scalar bool tensor, the same on every replica.
            run: the `Runner` that calls `act`.
            act: function of a list of gradients, called in a replica context.
            grads: list of this replica's tensors, `tf.IndexedSlices` or None.
            variables: list of those that `act` may change.
        """

    def cond(
        self, predicate: Any, act: Callable[[], None], variables: list[Any]
    ) -> None:
        """Runs `act` if `predicate` holds, inside an update of `cond_on_all_replicas`.

        Args:
            predicate: scalar bool tensor.
            act: function that assigns to variables.
            variables: list of those that it may change.
        """

    def assign_on_all_replicas(
        self,
        strategy: Any,
        variable: Any,
        value: Callable[[Any, Any], Any],
        source: Any,
        rows: Any,
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
