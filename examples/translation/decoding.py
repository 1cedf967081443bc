"""From a trained model to sentences: greedy search and beam search."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from translation.model import Translator
from translation.vocabulary import EOS, GO

# Maps (what goes from step to step, the last word of each row) to (log probabilities
# [rows, words], the next carry).
Step = Callable[[Any, np.ndarray], tuple[np.ndarray, Any]]


def translate(
    model: Translator, sources: tf.data.Dataset, max_length: int, beam: int = 1
) -> list[list[int]]:
    """Translates batches of source ids.

    Args:
        model: A trained `Translator`.
        sources: Dataset of source ids [batch, time].
        max_length: Integer. The most words of a translation, the end mark included.
        beam: Integer. The hypotheses kept for each sentence; 1 is greedy search.

    Returns:
        A list of target ids for each sentence.
    """
    encode = tf.function(model.encode, reduce_retracing=True)
    advance = tf.function(model.advance, reduce_retracing=True)
    found: list[list[int]] = []
    for source in sources:
        # A sentence takes `beam` neighbouring rows.
        shared, carry = encode(tf.repeat(source, beam, axis=0))

        def step(
            carry: tuple[Any, ...], words: np.ndarray, shared: tuple[Any, ...] = shared
        ) -> tuple[Any, ...]:
            scores, carry = advance(shared, carry, tf.constant(words, tf.int32))
            return scores.numpy(), carry

        if beam == 1:
            found += greedy_search(step, carry, len(source), max_length)
        else:
            found += beam_search(step, carry, len(source), max_length, beam)
    return found


def greedy_search(
    step: Step, carry: tuple[Any, ...], batch: int, max_length: int
) -> list[list[int]]:
    """Takes the most probable next word until every sentence has ended."""
    words = np.full(batch, GO)
    taken: list[np.ndarray] = []
    ended = np.zeros(batch, bool)
    while len(taken) < max_length and not ended.all():
        scores, carry = step(carry, words)
        words = np.where(ended, EOS, scores.argmax(-1))
        ended |= words == EOS
        taken.append(words)
    return np.stack(taken, axis=1).tolist()


def beam_search(
    step: Step, carry: tuple[Any, ...], batch: int, max_length: int, beam: int
) -> list[list[int]]:
    """Keeps the `beam` best beginnings of each sentence.

    The best sentence is the one with the highest mean log probability of a word:
    by the sum, short translations would win.
    """
    rows = np.arange(batch)[:, None] * beam
    words = np.full((batch, beam), GO)
    taken = np.zeros((batch, beam, 0), int)
    # All rows begin alike: only the first may branch.
    total = np.where(np.arange(beam) == 0, 0.0, -np.inf) * np.ones((batch, 1))
    length = np.ones((batch, beam))
    ended = np.zeros((batch, beam), bool)
    while taken.shape[-1] < max_length and not ended.all():
        scores, carry = step(carry, words.ravel())
        scores = scores.reshape(batch, beam, -1).astype(float)
        # A sentence that has ended goes on, at no cost, with end marks only.
        scores[ended] = -np.inf
        scores[ended, EOS] = 0.0
        candidates = (total[:, :, None] + scores).reshape(batch, -1)
        best = np.argpartition(-candidates, beam, axis=1)[:, :beam]
        origin, words = np.divmod(best, scores.shape[-1])
        total = np.take_along_axis(candidates, best, axis=1)
        ended = np.take_along_axis(ended, origin, axis=1)
        length = np.take_along_axis(length, origin, axis=1) + ~ended
        ended |= words == EOS
        taken = np.take_along_axis(taken, origin[:, :, None], axis=1)
        taken = np.concatenate([taken, words[:, :, None]], axis=-1)
        survivors = partial(tf.gather, indices=(rows + origin).ravel())
        carry = tf.nest.map_structure(survivors, carry)
    winner = np.argmax(total / length, axis=1)
    return taken[np.arange(batch), winner].tolist()
