"""The TensorFlow backend: `tf.function`, `tf.distribute` and the native ops.

On several replicas an update may have to run on the first replica of each machine, for
all of its replicas. TensorFlow mirrors a variable: every replica has a copy. Code that
runs on one replica changes only that replica's copy, and the optimizer must change all
of them. It assigns to a variable in one of three ways, and each reaches the other
copies:

1. By `update_step`. Keras calls it through `strategy.extended.update`, which runs it
   for the copies of all replicas, with the gradient that it is given.
2. Directly, to a variable of the optimizer: a master, a slot, a counter. These are
   created by `creating_for_all_replicas`, so that TensorFlow itself hands what the
   first replica assigns to the others.
3. Directly, to a variable of the model: a constraint on an FP32 weight, for instance.
   Nobody but the model's author can say how that is created, so `run_on_first_replica`
   copies its value once the update is done.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.typing import Gradient, Strategy, Tensor, Variable

# Calls a function on every replica that takes part in a step: given the strategy, the
# function, and the gradients of all replicas.
Runner = Callable[[Any, Callable[[list[Gradient]], None], list[Any]], None]


class TensorFlowBackend:
    """What a step asks of TensorFlow, eagerly, in graphs and on replicas.

    `SingleProgramBackend` has the same methods, and documents them.
    """

    def is_sparse(self, gradient: Gradient) -> bool:
        import tensorflow as tf

        return isinstance(gradient, tf.IndexedSlices)

    def as_dense(self, gradient: Gradient) -> Any:
        import tensorflow as tf

        if self.is_sparse(gradient) and gradient.dtype != tf.float64:
            gradient = tf.cast(gradient, tf.float32)
        return tf.convert_to_tensor(gradient)

    def with_shapes(
        self, gradients: list[Gradient], variables: Sequence[Variable]
    ) -> list[Any]:
        import tensorflow as tf

        def with_shape(gradient: Gradient, variable: Variable) -> Any:
            if not self.is_sparse(gradient) or gradient.dense_shape is not None:
                return gradient
            shape = tf.constant(tuple(variable.shape), gradient.indices.dtype)
            return tf.IndexedSlices(gradient.values, gradient.indices, shape)

        return list(map(with_shape, gradients, variables))

    def can_update(self, variables: Sequence[Variable]) -> bool:
        """Tells so: for variables with one copy, and if the library has a kernel."""
        import tensorflow as tf

        mirrored = tf.distribute.DistributedValues
        if tf.distribute.has_strategy() or any(
            isinstance(native(variable), mirrored) for variable in variables
        ):
            return False
        from keras_mp.ops.kernels.dispatch import has_update_kernels

        return has_update_kernels(variables)

    def current_function(self) -> Any:
        """Returns the graph of the function."""
        import tensorflow as tf

        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def is_inside(self, function: Any) -> bool:
        here = self.current_function()
        around = keras_internals.graph_around(here)
        while here is not function and around is not None:
            here, around = around, keras_internals.graph_around(around)
        return here is function

    def traced_operations(self) -> int:
        import tensorflow as tf

        function = self.current_function()
        if function is None or tf.distribute.has_strategy():
            return 0
        return len(function.get_operations())

    def traced_assignments(
        self, variables: Sequence[Variable], start: int
    ) -> list[int]:
        natives = [native(variable) for variable in variables]
        return keras_internals.traced_assignments(natives, start)

    def have_values(self, variables: list[Variable]) -> bool:
        import tensorflow as tf

        with tf.init_scope():
            return all(bool(native(v).is_initialized()) for v in variables)

    def run_eagerly(self, act: Callable[[], None]) -> None:
        import tensorflow as tf

        with tf.init_scope():
            act()

    def strategy_of(self, optimizer: keras.Optimizer) -> Any:
        return keras_internals.strategy(optimizer)

    def check_scope(self, strategy: Strategy) -> None:
        import tensorflow as tf

        here = tf.distribute.get_strategy()
        if tf.distribute.has_strategy() and here is not strategy:
            raise RuntimeError(
                "An optimizer must be created in the scope of the strategy that it "
                "trains in, or every replica moves the loss scale. Received: an "
                f"optimizer created outside, used with {type(here).__name__}. Create "
                "it, and call keras_mp.wrap(...), inside `with strategy.scope():`."
            )

    def scope_of(self, strategy: Strategy) -> AbstractContextManager[Any]:
        import tensorflow as tf

        here = tf.distribute.get_strategy()
        return contextlib.nullcontext() if here is strategy else strategy.scope()

    def check_shards_state(self) -> None:
        import tensorflow as tf

        here = tf.distribute.get_strategy()
        is_known = isinstance(here, tf.distribute.MirroredStrategy)
        if tf.distribute.has_strategy() and not is_known:
            raise RuntimeError(
                "`shard_state=True` shards state over the replicas of a "
                f"tf.distribute.MirroredStrategy. Received: {type(here).__name__}. "
                "Leave it at False; for several machines use Keras on the JAX backend."
            )

    def replicas_in(self, strategy: Strategy) -> int:
        return int(strategy.num_replicas_in_sync)

    def refuse_several_replicas(self) -> None:
        running = _replicas_running()
        if running > 1:
            raise RuntimeError(
                "With several replicas an optimizer must be built before it is "
                f"applied. Received: the first `apply` on {running} replicas. Call "
                "optimizer.build(model.trainable_variables) in `strategy.scope()`."
            )

    def check_can_read_state(self) -> None:
        running = _replicas_running()
        if running > 1:
            raise RuntimeError(
                "With `shard_state=True` a master is on one replica, and the others "
                f"cannot read it. Received: a read on each of {running} replicas, "
                "inside `strategy.run`. Read masters outside it, before or after a "
                "step."
            )

    def sum_over_replicas(self, x: Tensor) -> Any:
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

    def max_over_replicas(self, x: Tensor) -> Any:
        """Returns it by a sum of vectors, as `all_reduce` has no maximum."""
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        if replicas == 1:
            return x
        is_own = tf.equal(tf.range(replicas), context.replica_id_in_sync_group)
        return tf.reduce_max(self.sum_over_replicas(tf.where(is_own, x, 0)))

    def colocated_with(self, variable: Variable) -> AbstractContextManager[None]:
        import tensorflow as tf

        if not tf.distribute.has_strategy():
            return nullcontext()
        extended = tf.distribute.get_strategy().extended
        context: AbstractContextManager[None] = extended.colocate_vars_with(
            native(variable)
        )
        return context

    def run_on_each_replica(
        self,
        strategy: Strategy,
        act: Callable[[list[Gradient]], None],
        grads: list[Gradient],
    ) -> None:
        strategy.extended.call_for_each_replica(act, (grads,))

    def cond_on_all_replicas(
        self,
        predicate: Tensor,
        run: Runner,
        act: Callable[[list[Gradient]], None],
        grads: list[Gradient],
        variables: list[Variable],
    ) -> None:
        """Puts the condition across replicas, around all of them.

        `tf.distribute` wants it there: a branch inside a replica could not exchange
        anything with the others.
        """
        import tensorflow as tf

        as_is = tf.autograph.experimental.do_not_convert

        @as_is
        def across(
            strategy: Strategy, predicate: Tensor, grads: list[Gradient]
        ) -> None:
            first = strategy.experimental_local_results(predicate)[0]
            ops.cond(first, lambda: run(strategy, as_is(act), grads), lambda: None)

        context = tf.distribute.get_replica_context()
        context.merge_call(across, args=(predicate, grads))

    def cond(
        self, predicate: Tensor, act: Callable[[], None], variables: list[Variable]
    ) -> None:
        ops.cond(predicate, act, lambda: None)

    def assign_on_all_replicas(
        self,
        strategy: Strategy,
        variable: Variable,
        value: Callable[[Tensor, Tensor], Tensor],
        source: Variable,
        rows: Tensor | None,
    ) -> None:
        import tensorflow as tf

        def assign(variable: tf.Variable, source: tf.Variable) -> None:
            if rows is None:
                variable.assign(value(variable.read_value(), source.read_value()))
                return
            new_rows = value(tf.gather(variable, rows), tf.gather(source, rows))
            variable.scatter_update(tf.IndexedSlices(new_rows, rows))

        variable, source = native(variable), native(source)
        counts = [
            len(strategy.experimental_local_results(each))
            for each in (variable, source)
        ]
        if counts[0] == counts[1]:
            update_on_all_replicas(strategy, variable, assign, source)
            return
        # One is state with one copy (sharding_tf.py): its device computes for all.
        own = variable if counts[0] == 1 else source

        def across(strategy: Strategy) -> None:
            with self.scope_of(strategy), tf.device(own.device):
                new = value(*map(tf.convert_to_tensor, (variable, source)))
            strategy.extended.update(variable, _assign, (new,), group=False)

        across_replicas(strategy, across)


def _replicas_running() -> int:
    """Returns how many replicas run this code, 0 in the context across them."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 0 if context is None else int(context.num_replicas_in_sync)


def across_replicas(strategy: Strategy, act: Callable[[Any], None]) -> None:
    """Calls `act(strategy)` in the context across replicas, once.

    Args:
        strategy: the `tf.distribute.Strategy` that variables were created in.
        act: function.
    """
    import tensorflow as tf

    act = tf.autograph.experimental.do_not_convert(act)
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.distribute.get_replica_context().merge_call(act)
    else:
        act(strategy)


def update_on_all_replicas(
    strategy: Strategy,
    variable: Variable,
    assign: Callable[[Any, Any], None],
    source: Any,
) -> None:
    """Calls `assign(variable, source)` with each replica's copy of both.

    Args:
        strategy: the `tf.distribute.Strategy` that the variables were created in.
        variable: `keras.Variable` or `tf.Variable`, to be assigned to.
        assign: called with two `tf.Variable`.
        source: `keras.Variable`, `tf.Variable` or tensor, to be read.
    """
    import tensorflow as tf

    variable, source = native(variable), native(source)
    assign = tf.autograph.experimental.do_not_convert(assign)

    def across(strategy: Strategy) -> None:
        strategy.extended.update(variable, assign, (source,), group=False)

    across_replicas(strategy, across)


def native(variable: Variable) -> Any:
    """Returns the `tf.Variable` of a `keras.Variable`, and others unchanged."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def creating_for_all_replicas() -> AbstractContextManager[None]:
    """Returns a context that creates variables which one replica assigns for all.

    Those that Keras creates by default have each replica assign to its own copy.
    """
    import tensorflow as tf

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        arguments["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return next_creator(**arguments)

    return tf.variable_creator_scope(create)


def run_on_first_replica(
    assigned: Sequence[Any],
    strategy: Strategy,
    act: Callable[[list[Gradient]], None],
    grads: list[Gradient],
) -> None:
    """Calls `act` once, with the first replica's gradients, which all replicas have.

    A `Runner`, but for its first argument, and called across replicas like one.

    Args:
        assigned: list of the model's variables that `act` assigns to directly.
        strategy: `tf.distribute.Strategy`.
        act: the update: a function of a list of gradients.
        grads: list of the copies that the replicas have of each gradient, or of None.
    """
    import tensorflow as tf

    first = [None if each is None else _first(strategy, each) for each in grads]
    with (
        tf.device(strategy.extended.worker_devices[0]),
        context_for_update(strategy, first, grads),
    ):
        act(first)
        values = [tf.identity(variable) for variable in assigned]
    for variable, value in zip(assigned, values, strict=True):
        update_on_all_replicas(strategy, variable, _assign, value)


def context_for_update(
    strategy: Strategy, first: Sequence[Any] = (), grads: Sequence[Gradient] = ()
) -> AbstractContextManager[None]:
    """Returns the context in which an update changes the copies of all replicas.

    Args:
        strategy: `tf.distribute.Strategy`.
        first: list of gradients of the first replica, or of None.
        grads: list of what an update uses instead, if the optimizer does not change
            them: the copies of each.
    """
    # With several GPUs under XLA that is the context across replicas, where we are.
    if keras_internals.supports_no_merge_call():
        return nullcontext()
    # Elsewhere Keras's optimizer calls `merge_call`, which a replica context has.
    return _only_replica(strategy, first, grads)


def _only_replica(
    strategy: Strategy, first: Sequence[Any], grads: Sequence[Gradient]
) -> Any:
    """Returns the context of the first replica, changed so that it needs no other.

    Keras's optimizer sums its gradients over the replicas before it hands them to
    `strategy.extended.update`. Here they are sums already, and the other replicas are
    not there to take part: `all_reduce` returns them unchanged. One that the
    optimizer has not changed is replaced by the copies of all replicas, so that each
    uses its own and nothing is sent.

    Args:
        strategy: `tf.distribute.Strategy`.
        first: list of the first replica's gradients, or of None.
        grads: list of the copies of each.
    """
    import tensorflow as tf

    copies = {id(own): of_all for own, of_all in zip(first, grads, strict=True)}

    class OnlyReplica(tf.distribute.ReplicaContext):
        def all_reduce(self, reduce_op: Any, value: Tensor, options: Any = None) -> Any:
            return [copies.get(id(each), each) for each in value]

    return OnlyReplica(strategy, _id_of_first_replica(strategy))


def _id_of_first_replica(strategy: Strategy) -> int:
    """Returns the `replica_id_in_sync_group` of this machine's first replica."""
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    def replica_id() -> int:
        context = tf.distribute.get_replica_context()
        return int(tf.get_static_value(context.replica_id_in_sync_group))

    return int(_first(strategy, strategy.extended.call_for_each_replica(replica_id)))


def _first(strategy: Strategy, per_replica: Any) -> Any:
    """Returns the value of a `PerReplica` on the first replica of this machine."""
    return strategy.experimental_local_results(per_replica)[0]


def _assign(variable: Variable, value: Tensor) -> None:
    variable.assign(value)
