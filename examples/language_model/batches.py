"""Batches of running text."""

import numpy as np
import tensorflow as tf

Batch = tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]


def side_by_side(text: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into equal parts.

    Args:
        text: Ids `[words]`.
        batch: Integer. The number of parts.

    Returns:
        The parts and, at the same places, the words that follow: `[batch, length]`.

    Raises:
        ValueError: a part would be empty.
    """
    length = (len(text) - 1) // batch
    if length < 1:
        raise ValueError(
            "A text must have a word and the one after it for each part of a batch. "
            f"Received: {len(text)} word(s) for batch={batch}. Give a longer text or a "
            "smaller batch."
        )
    words, following = text[: batch * length], text[1 : batch * length + 1]
    return words.reshape(batch, length), following.reshape(batch, length)


def training_batches(text: np.ndarray, batch: int, unrolled: int) -> tf.data.Dataset:
    """Returns endless batches: each goes on in every part where the last one ended.

    What is left over at the end of the parts, fewer than `unrolled` words, is not read.

    Args:
        text: Ids `[words]`.
        batch: Integer. The number of parts that are read side by side.
        unrolled: Integer. The number of words that a batch reads of each.

    Returns:
        A data set of `((words, targets), targets)`, each `[batch, unrolled]`.
    """
    words, following = side_by_side(text, batch)
    steps = words.shape[1] // unrolled
    if steps < 1:
        raise ValueError(
            "Each part of a text must fill one batch. Received: parts of "
            f"{words.shape[1]} word(s) for unrolled={unrolled}. Give a longer text, a "
            "smaller batch or fewer unrolled steps."
        )

    def cut(whole: np.ndarray) -> np.ndarray:
        used = whole[:, : steps * unrolled].reshape(batch, steps, unrolled)
        return used.transpose(1, 0, 2)

    x, y = cut(words), cut(following)
    return tf.data.Dataset.from_tensor_slices(((x, y), y)).repeat()


def held_out_batch(text: np.ndarray, batch: int) -> tf.data.Dataset:
    """Returns one batch of all the text, in so many parts.

    The model begins each part with states of zero, and reads it to its end.
    """
    x, y = side_by_side(text, batch)
    return tf.data.Dataset.from_tensors(((x, y), y))
