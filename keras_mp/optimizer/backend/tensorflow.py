"""The few things that `tf.distribute` and `tf.function` ask of an optimizer."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals


def is_sparse(gradient: Any) -> bool:
    """Tells whether `gradient` is a `tf.IndexedSlices`."""
    import tensorflow as tf

    return isinstance(gradient, tf.IndexedSlices)


def can_update(variables: Sequence[Any]) -> bool:
    """Tells whether the ops of the update step can be used here: on one replica.

    Args:
        variables: list of those that an op is to write to in one call.
    """
    import tensorflow as tf

    if tf.distribute.has_strategy():
        return False
    from keras_mp.ops.kernels import update

    return update.takes_variables(variables)


def current_function() -> Any:
    """Returns the graph that is being traced, or None in eager execution."""
    import tensorflow as tf

    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def is_part_of(function: Any) -> bool:
    """Tells whether `function` is being traced, if only a branch or a loop of it.

    A tf.function that it calls is none of its parts: another may call that one too.

    Args:
        function: what `current_function` returned.
    """
    here = current_function()
    while here is not function and (around := keras_internals.graph_around(here)):
        here = around
    return here is function


def have_values(variables: list[Any]) -> bool:
    """Tells whether all variables can be read outside the function being traced.

    One that the function itself creates has no value before the trace ends; then
    tf.function initializes it, and traces the function anew before it runs it.
    """
    import tensorflow as tf

    with tf.init_scope():
        return all(bool(_native(v).is_initialized()) for v in variables)


def outside_functions(act: Callable[[], None]) -> None:
    """Calls `act` eagerly, outside any function that is being traced."""
    import tensorflow as tf

    with tf.init_scope():
        act()


def strategy_of(optimizer: Any) -> Any:
    """Returns the `tf.distribute.Strategy` that an optimizer was created in."""
    return keras_internals.strategy(optimizer)


def replicas_in(strategy: Any) -> int:
    """Returns the number of replicas that take a step together."""
    return int(strategy.num_replicas_in_sync)


def check_scope(strategy: Any) -> None:
    """Raises where another strategy is in force than `strategy`.

    Raises:
        RuntimeError: so it is.
    """
    import tensorflow as tf

    here = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() and here is not strategy:
        raise RuntimeError(
            "An optimizer must be created in the scope of the strategy that it trains "
            "in, or every replica moves the loss scale. Received: an optimizer created "
            f"outside, used with {type(here).__name__}. Create it, and call "
            "keras_mp.wrap(...), inside `with strategy.scope():`."
        )


def scope_of(strategy: Any) -> AbstractContextManager[Any]:
    """Returns what to create variables in, whether or not its scope is entered."""
    import tensorflow as tf

    here = tf.distribute.get_strategy()
    return contextlib.nullcontext() if here is strategy else strategy.scope()


def refuse_several_replicas() -> None:
    """Raises if called on one of several replicas, where nothing can be built.

    Raises:
        RuntimeError: so it is.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        raise RuntimeError(
            "With several replicas an optimizer must be built before it is applied. "
            f"Received: the first `apply` on {context.num_replicas_in_sync} replicas. "
            "Call optimizer.build(model.trainable_variables) in `strategy.scope()`."
        )


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def sum_over_replicas(x: Any) -> Any:
    """Returns the sum of `x` over all replicas, to each of them."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "An optimizer's `apply` must be called in a replica context. Received: "
            "a call in the cross-replica context. Call it inside `strategy.run`."
        )
    if context.num_replicas_in_sync == 1:
        return x
    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def updates_without_merging() -> bool:
    """Tells whether variables are updated where code runs, and not by a `merge_call`.

    So it is with several GPUs under XLA. There code across replicas is what updates the
    copies of all, and on any one replica its own copy.
    """
    return keras_internals.supports_no_merge_call()


def run_on_each_replica(
    strategy: Any, act: Callable[[list[Any]], None], grads: list[Any]
) -> None:
    """Calls `act` on every replica, with the gradients of that replica."""
    strategy.extended.call_for_each_replica(act, (grads,))


def cond_on_all_replicas(
    predicate: Any,
    run: Callable[[Any, Callable[[list[Any]], None], list[Any]], None],
    act: Callable[[list[Any]], None],
    grads: list[Any],
    variables: list[Any],
) -> None:
    """Runs `act(grads)` on all replicas if `predicate` holds.

    The condition stands outside the replicas, where `tf.distribute` wants it: a
    branch inside a replica could not exchange anything with the others.

    Args:
        predicate: scalar bool tensor, the same on every replica.
        run: called across replicas with the strategy, `act`, and the gradients of all.
        act: called in a replica context.
        grads: list of this replica's tensors, `tf.IndexedSlices` or None.
        variables: list of those that `act` may change; not needed here, where it is
            called only if they are to change.
    """
    import tensorflow as tf

    as_is = tf.autograph.experimental.do_not_convert

    @as_is
    def across(strategy: Any, predicate: Any, grads: list[Any]) -> None:
        anywhere = strategy.experimental_local_results(predicate)[0]
        ops.cond(anywhere, lambda: run(strategy, as_is(act), grads), lambda: None)

    context = tf.distribute.get_replica_context()
    context.merge_call(across, args=(predicate, grads))


def update_on_all_replicas(
    strategy: Any, variable: Any, assign: Callable[[Any, Any], None], source: Any
) -> None:
    """Calls `assign(variable, source)` with each replica's copy of both.

    Args:
        strategy: the `tf.distribute.Strategy` that the variables were created in.
        variable: `keras.Variable` or `tf.Variable`, to be assigned to.
        assign: called with two `tf.Variable`.
        source: `keras.Variable` or `tf.Variable`, to be read.
    """
    import tensorflow as tf

    variable, source = _native(variable), _native(source)
    as_is = tf.autograph.experimental.do_not_convert

    @as_is
    def across(_: Any) -> None:
        strategy.extended.update(variable, as_is(assign), (source,), group=False)

    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.distribute.get_replica_context().merge_call(across)
    else:
        across(strategy)


def assign_on_all_replicas(
    strategy: Any,
    variable: Any,
    value: Callable[[Any, Any], Any],
    source: Any,
    rows: Any,
) -> None:
    """Assigns `value(variable, source)` to all rows of each replica's copy or to some.

    Args:
        strategy: as for `update_on_all_replicas`.
        variable: `keras.Variable` or `tf.Variable`, to be assigned to.
        value: function of two tensors, each a whole variable or the same rows of it.
        source: `keras.Variable` or `tf.Variable`, to be read.
        rows: int tensor, or None for all of them.
    """
    import tensorflow as tf

    def assign(variable: tf.Variable, source: tf.Variable) -> None:
        if rows is None:
            variable.assign(value(variable.read_value(), source.read_value()))
            return
        new_rows = value(tf.gather(variable, rows), tf.gather(source, rows))
        variable.scatter_update(tf.IndexedSlices(new_rows, rows))

    update_on_all_replicas(strategy, variable, assign, source)
