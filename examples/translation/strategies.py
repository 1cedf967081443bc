"""Training on several replicas: where they are, and a `fit` for them.

Keras's own `fit` fails on several machines. On one it passes through the data once
before it trains, so that a dataset which shuffles anew gives it other batches than a
run without a strategy.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from translation.batches import shares

STRATEGIES = {
    "none": tf.distribute.get_strategy,
    "mirrored": tf.distribute.MirroredStrategy,
    "multiworker": tf.distribute.MultiWorkerMirroredStrategy,
}


def make_strategy(name: str, batch: int) -> tf.distribute.Strategy:
    """Returns the strategy with that name; `batch` is to be cut into equal shares."""
    strategy = STRATEGIES[name]()
    if batch % strategy.num_replicas_in_sync:
        raise ValueError(
            "A batch must be a multiple of the number of replicas. Received: --batch "
            f"{batch}, {strategy.num_replicas_in_sync} replicas. Choose another batch."
        )
    return strategy


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the index of this process in TF_CONFIG; 0 where it is the only one."""
    resolver = strategy.cluster_resolver
    return (resolver.task_id if resolver else None) or 0


def check_all_begin_at(done: int, strategy: tf.distribute.Strategy) -> None:
    """Raises where a worker does not see the checkpoint that the others do."""
    each = strategy.run(lambda: tf.constant(done))
    if int(strategy.reduce("SUM", each, axis=None)) != (
        done * strategy.num_replicas_in_sync
    ):
        raise RuntimeError(
            f"All workers must resume from the same checkpoint. Received: {done} here, "
            "and another one elsewhere. Choose an --out that all can read."
        )


def fit(
    model: keras.Model,
    batches: tf.data.Dataset,
    validation_data: tf.data.Dataset,
    epochs: int,
    initial_epoch: int,
    steps_per_epoch: int,
    callbacks: Sequence[keras.callbacks.Callback],
    verbose: int,
) -> None:
    """`Model.fit` in short, for several replicas.

    Every replica evaluates all of the validation data, so that sums which are divided
    by sums come out right, and there is no batch to be cut into uneven shares.

    Args:
        model: A compiled model, built in the scope of a strategy.
        batches: Dataset of batches for all replicas together. The other arguments are
            those of `Model.fit`.
    """
    strategy = model.distribute_strategy

    @tf.function(autograph=False)
    def train(iterator: Any) -> None:
        strategy.run(model.train_step, (iterator.get_next(),))

    @tf.function(autograph=False, input_signature=[validation_data.element_spec])
    def evaluate(batch: Any) -> None:
        strategy.run(model.test_step, (batch,))

    iterator = iter(strategy.distribute_datasets_from_function(shares(batches)))
    callbacks = keras.callbacks.CallbackList(
        callbacks,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps_per_epoch,
    )
    model.stop_training = False
    callbacks.on_train_begin()
    for epoch in range(initial_epoch, epochs):
        callbacks.on_epoch_begin(epoch)
        model.reset_metrics()
        for step in range(steps_per_epoch):
            callbacks.on_train_batch_begin(step)
            train(iterator)
            callbacks.on_train_batch_end(step)
        logs = _results(model)
        model.reset_metrics()
        for batch in validation_data:
            evaluate(batch)
        logs |= {f"val_{name}": value for name, value in _results(model).items()}
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    callbacks.on_train_end()


def _results(model: keras.Model) -> dict[str, float]:
    return {name: float(x) for name, x in model.get_metrics_result().items()}
