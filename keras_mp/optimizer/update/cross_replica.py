"""An optimizer run once for all replicas, on the sum of their gradients.

Keras clips on each replica the share of the gradient that was computed there, and where
it accumulates gradients, or overwrites weights with their average, it branches inside
the replicas, which `tf.distribute` refuses. One run on the sum does what one process
does on the joint batch. It costs a copy of the gradients from the first replica of a
machine to its others, where the optimizer computes with them before it hands them on.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.arguments import shown
from keras_mp.optimizer.backend import run_on_each_replica
from keras_mp.optimizer.backend.tensorflow import (
    sum_over_replicas,
    update_on_all_replicas,
    updates_without_merging,
)
from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.master_weights import needs_master


def check_all_reduce_dtype(dtype: Any) -> None:
    """Raises where gradients cannot be summed in `dtype`.

    Raises:
        ValueError: it is neither `"float32"` nor `"float16"`.
        RuntimeError: FP16 on another backend than TensorFlow.
    """
    if not isinstance(dtype, str) or dtype not in ("float32", "float16"):
        raise ValueError(
            '`all_reduce_dtype` must be "float32" or "float16". '
            f'Received: all_reduce_dtype={shown(dtype)}. "float16" halves what '
            "replicas send to each other."
        )
    if dtype == "float16" and keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            '`all_reduce_dtype="float16"` is for tf.distribute, and needs Keras on the '
            "TensorFlow backend; on others the sum is part of the model's program. "
            f"Received: backend={keras.backend.backend()!r}. Leave it at "
            '"float32", or set KERAS_BACKEND=tensorflow before Keras is imported.'
        )


def choose_run(
    optimizer: Any, variables: Sequence[Any], all_reduce_dtype: str, replicas: int
) -> tuple[Callable[..., None], AbstractContextManager[None]]:
    """Decides whether an optimizer runs on each replica or once for all.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        variables: list of the trainable variables.
        all_reduce_dtype: as for `wrap`.
        replicas: int, how many there are.

    Returns:
        How it runs, for `cond_on_all_replicas`; what to create its variables in.

    Raises:
        ValueError: it is to run on the sum of gradients that replace variables.
    """
    joint = all_reduce_dtype == "float16" or needs_the_sum(optimizer)
    if not joint or replicas == 1:
        return run_on_each_replica, nullcontext()
    if any(keras_internals.is_replaced_by_gradient(optimizer, v) for v in variables):
        raise ValueError(
            "Gradients that replace their variables cannot be summed over "
            "replicas. Received: variables with overwrite_with_gradient=True, and "
            "an optimizer that needs the sum. On several replicas leave out "
            "clipping, gradient_accumulation_steps, ema_overwrite_frequency and "
            "all_reduce_dtype, and give MultiOptimizer a map, not a function."
        )
    own = [v for v in variables if not needs_master(v)]
    assigned = assigned_directly(optimizer, own)
    return functools.partial(run_once, assigned), creating_for_all_replicas()


def needs_the_sum(optimizer: Any) -> bool:
    """Tells whether replicas that run `optimizer` by themselves fail or differ.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
    """
    return _asks_a_function(optimizer) or any(
        leaf.clipnorm
        or leaf.global_clipnorm
        or leaf.clipvalue
        or leaf.gradient_accumulation_steps
        or leaf.ema_overwrite_frequency
        for leaf in leaves(optimizer)
    )


def assigned_directly(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Returns the variables that an update may assign to beside `update_step`.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        variables: list of those that it updates.
    """
    by_steps = all(_assigns_by_steps(leaf) for leaf in leaves(optimizer))
    if _asks_a_function(optimizer) or not by_steps:
        return list(variables)
    return [v for v in variables if getattr(v, "constraint", None) is not None]


def _asks_a_function(optimizer: Any) -> bool:
    """Tells whether its leaves are not known before it is built: a `MultiOptimizer`."""
    return getattr(optimizer, "optimizers", None) == []


def _assigns_by_steps(leaf: Any) -> bool:
    """Tells whether it is one of Keras's, but for Muon, which decays by itself."""
    of_keras = getattr(keras.optimizers, type(leaf).__name__, None)
    return type(leaf) is of_keras and type(leaf).__name__ != "Muon"


def creating_for_all_replicas() -> AbstractContextManager[None]:
    """Variables created inside have what one replica assigns on all replicas.

    Keras creates them so that each replica assigns to its own copy.
    """
    import tensorflow as tf

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        arguments["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return next_creator(**arguments)

    return tf.variable_creator_scope(create)


def sum_gradients(gradients: Sequence[Any], dtype: str) -> list[Any]:
    """Returns the sums of the gradients of all replicas, to each of them.

    Args:
        gradients: list of this replica's tensors, `tf.IndexedSlices` or None.
        dtype: str, of the terms and the sums between replicas. `"float32"` is the least
            for a gradient, or `"float16"`: a sum that overflows is not finite.

    Returns:
        List like `gradients`, at least float32.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    wide = [keras.backend.result_type(g.dtype.name, "float32") for g in given]
    sent = wide if dtype == "float32" else [dtype] * len(given)
    widened = iter(_cast(sum_over_replicas(_cast(given, sent)), wide))
    return [None if g is None else next(widened) for g in gradients]


def _cast(gradients: Sequence[Any], dtypes: Sequence[str]) -> list[Any]:
    pairs = zip(gradients, dtypes, strict=True)
    return [ops.cast(gradient, dtype) for gradient, dtype in pairs]


def run_once(
    assigned: Sequence[Any],
    strategy: Any,
    act: Callable[[list[Any]], None],
    grads: list[Any],
) -> None:
    """Calls `act` once, with the gradients of the first replica, the same on all.

    Args:
        assigned: variables to which `act` assigns directly, and which were not created
            for all replicas.
        strategy: `tf.distribute.Strategy`.
        act: called in the context of the first replica of this machine, or across
            replicas where that updates all of them.
        grads: list of what each replica has, or of None.
    """
    import tensorflow as tf

    class ForAll(tf.distribute.ReplicaContext):
        """Takes itself for the only replica: nothing is left to be reduced."""

        def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
            # Nor sent, if it is as it was given: each replica takes its own.
            return [all_of.get(id(each), each) for each in value]

    first = [
        None if each is None else strategy.experimental_local_results(each)[0]
        for each in grads
    ]
    all_of = dict(zip(map(id, first), grads, strict=True))
    device = strategy.extended.worker_devices[0]
    across_all = updates_without_merging()
    with (
        tf.device(device),
        nullcontext() if across_all else ForAll(strategy, _first_replica(strategy)),
    ):
        act(first)
        values = [tf.identity(variable) for variable in assigned]
    for variable, value in zip(assigned, values, strict=True):
        update_on_all_replicas(strategy, variable, lambda v, x: v.assign(x), value)


def _first_replica(strategy: Any) -> int:
    """Returns the number of the first replica of this machine."""
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    def number() -> int:
        context = tf.distribute.get_replica_context()
        return int(tf.get_static_value(context.replica_id_in_sync_group))

    numbers = strategy.extended.call_for_each_replica(number)
    return int(strategy.experimental_local_results(numbers)[0])
