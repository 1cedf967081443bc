"""What `distribution` does, for the backends whose programs see no replicas.

On JAX a program computes with whole arrays, wherever `keras.distribution` has put their
parts: a sum over an array is one over all devices. PyTorch trains in one process.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras import ops


def is_sparse(gradient: Any) -> bool:
    """Tells whether `gradient` has only some rows: on these backends none has."""
    return False


def can_update(variables: Sequence[Any]) -> bool:
    """Tells whether the ops of the update step can be used: they are TensorFlow's."""
    return False


def current_function() -> Any:
    """Returns a mark of the function that is being traced, equal inside of it only."""
    if keras.backend.backend() != "jax":
        return None
    from jax.extend.core import get_opaque_trace_state

    return get_opaque_trace_state()


def is_part_of(function: Any) -> bool:
    """Tells whether `function`, a mark by `current_function`, is being traced."""
    return bool(current_function() == function)


def have_values(variables: list[Any]) -> bool:
    """Tells whether all variables can be read: they can, once they are made."""
    return True


def outside_functions(act: Callable[[], None]) -> None:
    """Calls `act`."""
    act()


def strategy_of(optimizer: Any) -> None:
    """Returns None: only TensorFlow has strategies."""
    return None


def check_scope(strategy: Any) -> None:
    """Accepts any scope: Keras itself warns of a mix of devices."""


def scope_of(strategy: Any) -> AbstractContextManager[None]:
    """Returns what to create variables in: any scope does."""
    return contextlib.nullcontext()


def replicas_in(strategy: Any) -> int:
    """Returns 1."""
    return 1


def refuse_several_replicas() -> None:
    """Accepts the one there is."""


def sum_over_replicas(x: Any) -> Any:
    """Returns `x`, which comes from the whole arrays."""
    return x


def run_on_each_replica(
    strategy: Any, act: Callable[[list[Any]], None], grads: list[Any]
) -> None:
    """Calls `act`."""
    act(grads)


def cond_on_all_replicas(
    predicate: Any,
    run: Callable[[Any, Callable[[list[Any]], None], list[Any]], None],
    act: Callable[[list[Any]], None],
    grads: list[Any],
    variables: list[Any],
) -> None:
    """Runs `act(grads)` if `predicate` holds.

    Args:
        predicate: scalar bool tensor.
        run: called with None, `act` and `grads`.
        act: function of a list of gradients.
        grads: list of tensors or None.
        variables: list of those that `act` may change.
    """
    if not _is_traced(predicate):
        if predicate:
            run(None, act, grads)
        return
    before = [variable.value for variable in variables]

    def changed() -> list[Any]:
        with keras.StatelessScope(list(zip(variables, before, strict=True))) as scope:
            run(None, act, grads)
        return [scope.get_current_value(variable) for variable in variables]

    after = ops.cond(predicate, changed, lambda: before)
    for variable, value in zip(variables, after, strict=True):
        variable.assign(value)


def _is_traced(tensor: Any) -> bool:
    """Tells whether JAX is tracing, and `tensor` has no value yet."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return isinstance(tensor, jax.core.Tracer)


def assign_on_all_replicas(
    strategy: Any,
    variable: Any,
    value: Callable[[Any, Any], Any],
    source: Any,
    rows: Any,
) -> None:
    """Assigns `value(variable, source)`, computed from two tensors, to `variable`."""
    variable.assign(value(variable.value, source.value))
