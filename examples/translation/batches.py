"""Batches of padded ids, through tf.data."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from translation.data import TokenPair
from translation.vocabulary import EOS, GO, Vocabulary

Buckets = Sequence[Sequence[int]]


def encode(
    pairs: list[TokenPair], source: Vocabulary, target: Vocabulary, reverse: bool
) -> tf.data.Dataset:
    """Returns a dataset of (source ids, target ids ending in `EOS`), one pair each.

    Args:
        pairs: List of (English tokens, French tokens).
        source: The English vocabulary.
        target: The French vocabulary.
        reverse: Whether to turn the source around, as the older tutorial does.
    """
    step = -1 if reverse else 1
    x = [source.encode(english)[::step] for english, _ in pairs]
    y = [[*target.encode(french), EOS] for _, french in pairs]
    ragged = tf.ragged.constant(x, tf.int32), tf.ragged.constant(y, tf.int32)
    # A slice of a ragged tensor becomes a plain tensor when it passes through `map`.
    return tf.data.Dataset.from_tensor_slices(ragged).map(lambda x, y: (x, y))


def shift(source: tf.Tensor, target: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Returns ((source, decoder input), labels): the input is the labels after `GO`."""
    go = tf.fill([tf.shape(target)[0], 1], GO)
    return (source, tf.concat([go, target[:, :-1]], axis=1)), target


def training_batches(
    examples: tf.data.Dataset, buckets: Buckets, batch: int, seed: int
) -> tf.data.Dataset:
    """Returns endless shuffled batches of pairs of similar length.

    Args:
        examples: What `encode` returned.
        buckets: Sizes (source, target), growing. A pair goes to the first that
            holds it, and a batch comes from one bucket: little is spent on padding.
        batch: Integer. Pairs in a batch.
        seed: Integer. The same seed gives the same batches.

    Returns:
        A `tf.data.Dataset` of what `shift` returns.
    """
    sizes = tf.constant(buckets)

    def bucket(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        # The end mark is not counted against the bucket.
        lengths = tf.stack([tf.shape(source)[0], tf.shape(target)[0] - 1])
        too_small = tf.reduce_any(sizes < lengths, axis=1)
        return tf.reduce_sum(tf.cast(too_small, tf.int64))

    return (
        examples.shuffle(len(examples), seed=seed, reshuffle_each_iteration=True)
        .repeat()
        .group_by_window(bucket, lambda _, group: group.padded_batch(batch), batch)
        .map(shift)
        .prefetch(2)
    )


def held_out_batches(examples: tf.data.Dataset, batch: int) -> tf.data.Dataset:
    """Returns the held-out pairs in their own order."""
    return examples.padded_batch(batch).map(shift).prefetch(2)


def shares(
    batches: tf.data.Dataset,
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Returns what makes the dataset of a machine: each batch cut into equal shares.

    The shares of a batch go to its replicas in order, first one to each machine.
    """

    def of_machine(context: tf.distribute.InputContext) -> tf.data.Dataset:
        def cut(*batch: Any) -> tf.data.Dataset:
            shape = [context.num_replicas_in_sync, -1]
            return tf.data.Dataset.from_tensor_slices(
                tf.nest.map_structure(
                    lambda x: tf.reshape(x, [*shape, tf.shape(x)[1]]), batch
                )
            )

        machines, machine = context.num_input_pipelines, context.input_pipeline_id
        return batches.flat_map(cut).shard(machines, machine).prefetch(2)

    return of_machine
