"""An update that runs on the first replica of each machine, for all of its replicas.

TensorFlow mirrors a variable: every replica has a copy. Code that runs on one replica
changes only that replica's copy, and the optimizer here must change all of them. It
assigns to a variable in one of three ways, and each reaches the other copies:

1. By `update_step`. Keras calls it through `strategy.extended.update`, which runs it
   for the copies of all replicas, with the gradient that it is given.
2. Directly, to a variable of the optimizer: a master, a slot, a counter. These are
   created by `creating_for_all_replicas`, so that TensorFlow itself hands what the
   first replica assigns to the others.
3. Directly, to a variable of the model: a constraint on an FP32 weight, for instance.
   Nobody but the model's author can say how that is created, so `run_on_first_replica`
   copies its value once the update is done.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from keras_mp import keras_internals
from keras_mp.optimizer.backend.tensorflow import update_on_all_replicas


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
    strategy: Any,
    act: Callable[[list[Any]], None],
    grads: list[Any],
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
        _context_for_update(strategy, first, grads),
    ):
        act(first)
        values = [tf.identity(variable) for variable in assigned]
    for variable, value in zip(assigned, values, strict=True):
        update_on_all_replicas(strategy, variable, _assign, value)


def _context_for_update(
    strategy: Any, first: Sequence[Any], grads: Sequence[Any]
) -> AbstractContextManager[None]:
    """Returns the context in which an update changes the copies of all replicas."""
    # With several GPUs under XLA that is the context across replicas, where we are.
    if keras_internals.supports_no_merge_call():
        return nullcontext()
    # Elsewhere Keras's optimizer calls `merge_call`, which a replica context has.
    return _only_replica(strategy, first, grads)


def _only_replica(strategy: Any, first: Sequence[Any], grads: Sequence[Any]) -> Any:
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
        def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
            return [copies.get(id(each), each) for each in value]

    return OnlyReplica(strategy, _id_of_first_replica(strategy))


def _id_of_first_replica(strategy: Any) -> int:
    """Returns the `replica_id_in_sync_group` of this machine's first replica."""
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    def replica_id() -> int:
        context = tf.distribute.get_replica_context()
        return int(tf.get_static_value(context.replica_id_in_sync_group))

    return int(_first(strategy, strategy.extended.call_for_each_replica(replica_id)))


def _first(strategy: Any, per_replica: Any) -> Any:
    """Returns the value of a `PerReplica` on the first replica of this machine."""
    return strategy.experimental_local_results(per_replica)[0]


def _assign(variable: Any, value: Any) -> None:
    variable.assign(value)
