"""Padded batches of utterances of similar length, through tf.data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from speech_recognition.data import Utterance

# Their indices start at 1: 0 is CTC's blank, and what labels are padded with.
CHARACTERS = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CLASSES = 1 + len(CHARACTERS)


def labels(text: str) -> list[int]:
    """Returns the indices of the characters of a text."""
    return [1 + CHARACTERS.index(character) for character in text]


def text(labels: Sequence[int]) -> str:
    """Returns the text of such indices; padding, 0 or less, is left out."""
    return "".join(CHARACTERS[label - 1] for label in labels if label > 0)


def training_batches(
    utterances: list[Utterance], batch: int, buckets: Sequence[int], seed: int
) -> tf.data.Dataset:
    """Returns endless shuffled batches of utterances of similar length.

    Args:
        utterances: List.
        batch: Integer. Utterances in a batch.
        buckets: Numbers of frames, growing. A batch is of utterances between two of
            them, or beyond the last: little is spent on padding.
        seed: Integer. The same seed gives the same batches.

    Returns:
        A `tf.data.Dataset` of what the network takes, and padded labels.
    """
    return (
        _examples(utterances)
        .shuffle(len(utterances), seed=seed, reshuffle_each_iteration=True)
        .repeat()
        .bucket_by_sequence_length(
            lambda features, length, labels: length,
            bucket_boundaries=list(buckets),
            bucket_batch_sizes=[batch] * (len(buckets) + 1),
        )
        .map(_for_keras)
        .prefetch(2)
    )


def test_batches(utterances: list[Utterance], batch: int) -> tf.data.Dataset:
    """Returns the utterances in their own order."""
    return _examples(utterances).padded_batch(batch).map(_for_keras).prefetch(2)


def _examples(utterances: list[Utterance]) -> tf.data.Dataset:
    lengths = [len(utterance.features) for utterance in utterances]
    values = np.concatenate([utterance.features for utterance in utterances])
    features = tf.RaggedTensor.from_row_lengths(values, lengths)
    targets = tf.ragged.constant([labels(u.text) for u in utterances], tf.int32)
    # A slice of a ragged tensor becomes a plain tensor when it passes through `map`.
    return tf.data.Dataset.from_tensor_slices((features, lengths, targets)).map(
        lambda features, length, labels: (features, length, labels)
    )


def _for_keras(features: Any, lengths: Any, labels: Any) -> Any:
    return {"features": features, "lengths": lengths}, labels
