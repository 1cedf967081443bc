"""The backends on which one program does the whole step: JAX and PyTorch.

On JAX a program computes with whole arrays, wherever `keras.distribution` has put their
parts: a sum over an array is one over all devices. PyTorch trains in one process.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.backend.protocol import Backend, Runner


class SingleProgramBackend(Backend):
    """`Backend` without replicas, sparse gradients or native ops."""

    def is_sparse(self, gradient: Any) -> bool:
        return False

    def as_dense(self, gradient: Any) -> Any:
        return gradient

    def with_shapes(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        return gradients

    def can_update(self, variables: Sequence[Any]) -> bool:
        return False

    def current_function(self) -> Any:
        if keras.backend.backend() != "jax":
            return None
        from jax.extend.core import get_opaque_trace_state

        return get_opaque_trace_state()

    def is_part_of(self, function: Any) -> bool:
        return bool(self.current_function() == function)

    def traced_operations(self) -> int:
        return 0

    def traced_assignments(self, variables: Sequence[Any], start: int) -> list[int]:
        return [0] * len(variables)

    def have_values(self, variables: list[Any]) -> bool:
        return True

    def outside_functions(self, act: Callable[[], None]) -> None:
        act()

    def strategy_of(self, optimizer: Any) -> None:
        return None

    def check_scope(self, strategy: Any) -> None:
        """Does nothing: Keras itself warns where devices are mixed."""

    def scope_of(self, strategy: Any) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def replicas_in(self, strategy: Any) -> int:
        return 1

    def refuse_several_replicas(self) -> None:
        """Does nothing: there is one."""

    def sum_over_replicas(self, x: Any) -> Any:
        return x

    def max_over_replicas(self, x: Any) -> Any:
        return x

    def run_on_each_replica(
        self, strategy: Any, act: Callable[[list[Any]], None], grads: list[Any]
    ) -> None:
        act(grads)

    def cond_on_all_replicas(
        self,
        predicate: Any,
        run: Runner,
        act: Callable[[list[Any]], None],
        grads: list[Any],
        variables: list[Any],
    ) -> None:
        self.cond(predicate, lambda: run(None, act, grads), variables)

    def cond(
        self, predicate: Any, act: Callable[[], None], variables: list[Any]
    ) -> None:
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
        strategy: Any,
        variable: Any,
        value: Callable[[Any, Any], Any],
        source: Any,
        rows: Any,
    ) -> None:
        variable.assign(value(variable.value, source.value))


def _is_traced(tensor: Any) -> bool:
    """Tells whether JAX is tracing, and `tensor` has no value yet."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return isinstance(tensor, jax.core.Tracer)
