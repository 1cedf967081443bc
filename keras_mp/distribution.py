"""The few things that `tf.distribute` and `tf.function` ask of an optimizer."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def is_sparse(gradient: Any) -> bool:
    """Tells whether `gradient` is a `tf.IndexedSlices`."""
    import tensorflow as tf

    return isinstance(gradient, tf.IndexedSlices)


def current_function() -> Any:
    """Returns the graph that is being traced, or None in eager execution."""
    import tensorflow as tf

    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def outside_functions(build: Callable[[], None]) -> None:
    """Calls `build` outside any function that is being traced.

    A variable whose first value is read from another one, as a master's is, cannot
    be created inside a function that XLA compiles.

    Raises:
        RuntimeError: called on one of several replicas.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        raise RuntimeError(
            "With several replicas an optimizer must be built before it is applied. "
            f"Received: the first `apply` on {context.num_replicas_in_sync} replicas. "
            "Call optimizer.build(model.trainable_variables) in `strategy.scope()`."
        )
    with tf.init_scope():
        build()


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


def cond_on_all_replicas(
    predicate: Any, on_each_replica: Callable[[list[Any]], None], grads: list[Any]
) -> None:
    """Calls `on_each_replica(grads)` on every replica if `predicate` holds.

    The condition stands outside the replicas, where `tf.distribute` wants it: a
    branch inside a replica could not exchange anything with the others.

    Args:
        predicate: scalar bool tensor, the same on every replica.
        on_each_replica: called in a replica context.
        grads: list of this replica's tensors, `tf.IndexedSlices` or None.
    """
    import tensorflow as tf

    as_is = tf.autograph.experimental.do_not_convert

    @as_is
    def across(strategy: Any, predicate: Any, grads: list[Any]) -> None:
        def on_all_replicas() -> None:
            strategy.extended.call_for_each_replica(as_is(on_each_replica), (grads,))

        anywhere = strategy.experimental_local_results(predicate)[0]
        ops.cond(anywhere, on_all_replicas, lambda: None)

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

    variable, source = (
        v.value if isinstance(v, keras.Variable) else v for v in (variable, source)
    )
    as_is = tf.autograph.experimental.do_not_convert

    @as_is
    def across(_: Any) -> None:
        strategy.extended.update(variable, as_is(assign), (source,), group=False)

    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.distribute.get_replica_context().merge_call(across)
    else:
        across(strategy)
