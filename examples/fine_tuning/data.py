"""Sentences, and their tokens as a causal language model takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from language_model.data import load_sentences
from translation.data import load_pairs

# Of words between spaces: what is shorter is a title or the label of a button.
SHORTEST = 4


def load(source: str) -> list[str]:
    """Reads English sentences.

    Args:
        source: `"libreoffice-help"`, the English half of the pairs in
            ../translation/data; `"debian-descriptions"`, which is downloaded (6 MB); or
            a text file with one sentence a line: plain, .gz or .xz.
    """
    if source != "libreoffice-help":
        return load_sentences(source)
    found = dict.fromkeys(english for english, _ in load_pairs(source))
    return [text for text in found if len(text.split()) >= SHORTEST]


@dataclass(frozen=True)
class Tokens:
    """Texts as tokens: what a model is given, what follows, and what of it counts.

    Attributes:
        x: dict of `token_ids` and `padding_mask`, each [texts, length].
        y: the next tokens [texts, length].
        weights: 1.0 for a token, 0.0 for padding [texts, length].
    """

    x: dict[str, np.ndarray]
    y: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str], preprocessor: Any) -> "Tokens":
        """Returns the tokens of texts.

        Args:
            texts: strings.
            preprocessor: `keras_hub.models.CausalLMPreprocessor`, which cuts and pads.
        """
        x, y, mask = preprocessor(list(texts))
        arrays = {name: np.asarray(value, "int32") for name, value in x.items()}
        return cls(arrays, np.asarray(y), np.asarray(mask, "float32"))

    def batches(self, batch: int) -> tf.data.Dataset:
        """Returns the batches in their order; the last one may be smaller."""
        return self._examples().batch(batch)

    def endless_batches(self, batch: int, seed: int) -> tf.data.Dataset:
        """Returns batches without an end, in another order at every pass."""
        shuffled = self._examples().shuffle(len(self.y), seed=seed)
        return shuffled.repeat().batch(batch)

    def first(self, count: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Returns x, y and weights of the first texts."""
        x = {name: value[:count] for name, value in self.x.items()}
        return x, self.y[:count], self.weights[:count]

    def _examples(self) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((self.x, self.y, self.weights))
