"""Where the numbers of a run overflow that skips all of its steps."""

from typing import Any

import keras

from keras_mp.diagnostics.find_overflow import find_overflow


def describe_overflow(model: keras.Model, iterator: Any) -> str:
    """Returns a sentence on the layer where the next batch of a run overflows.

    The batches that were skipped are gone. They did not change the weights, so the next
    one very probably overflows at the same place.

    Args:
        model: `keras.Model`, in `fit`.
        iterator: the iterator of `fit` over its batches, or None if it is not known.

    Returns:
        str: what `find_overflow` says, or why it can say nothing. Nothing is raised.
    """
    try:
        return _describe(model, iterator)
    except Exception as error:  # the error that this is to explain is not to be lost
        return (
            "The layer where the overflow begins could not be found: "
            f"{type(error).__name__}: {error}"
        )


def _describe(model: keras.Model, iterator: Any) -> str:
    if keras.backend.backend() != "tensorflow":
        return "On the TensorFlow backend this error names the layer where it begins."
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        return (
            f"The layer where it begins is not looked for on {replicas} replicas: call "
            "keras_mp.find_overflow(model, x, y) with a batch, on one."
        )
    batch = None if iterator is None else next(iterator, None)
    if batch is None:
        return (
            "The layer where it begins was not found, since no batch was left: call "
            "keras_mp.find_overflow(model, x, y) with one."
        )
    found = find_overflow(
        model, *keras.utils.unpack_x_y_sample_weight(without_optionals(batch))
    )
    if found is None:
        return (
            "On the batch that follows nothing overflows: look at the data of those "
            "before it."
        )
    return f"On the batch that follows: {found}"


def without_optionals(batch: Any) -> Any:
    """Returns a batch with None instead of Keras's `tf.experimental.Optional`."""
    import tensorflow as tf

    return keras.tree.map_structure(
        lambda each: None if isinstance(each, tf.experimental.Optional) else each, batch
    )
