"""Text: reading it, splitting it into words, numbering them."""

import gzip
import lzma
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from experiments.files import downloaded
from language_model.debian import DESCRIPTIONS, sentences

# The first ids. Beside them words are numbered by their frequency.
SPECIAL = ["</s>", "<unk>"]
SENTENCE_END, UNKNOWN = range(2)

WORD = re.compile(r"\w+|[^\w\s]")


def words_and_signs(sentence: str) -> list[str]:
    """Splits a sentence into words and numbers in lower case, and single signs.

    Example:
    >>> words_and_signs("It's in /etc/aide.")
    ['it', "'", 's', 'in', '/', 'etc', '/', 'aide', '.']
    """
    return WORD.findall(sentence.lower())


# By their names in a preset. "spaces" is for text that was split beforehand.
TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "words": words_and_signs,
    "spaces": str.split,
}


def load_sentences(source: str) -> list[str]:
    """Reads English sentences.

    Args:
        source: `"debian-descriptions"`, which is downloaded (6 MB); or a text file with
            one sentence a line: plain, .gz or .xz.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is cut off, damaged, not UTF-8 or empty.
    """
    debian = source == "debian-descriptions"
    path = downloaded(DESCRIPTIONS) if debian else Path(source)
    if not path.is_file():
        raise FileNotFoundError(
            "`--data` must be 'debian-descriptions' or a text file with one sentence a "
            f"line. Received: --data {path}, which does not exist. Check the path."
        )
    try:
        lines = list(_lines(path))
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(
            f"A compressed file must be whole. Received: {path}: {error}. Fetch it "
            "again."
        ) from error
    found = sentences(lines) if debian else [*filter(None, map(str.strip, lines))]
    if not found:
        raise ValueError(
            "A text must hold at least one sentence. Received: "
            f"{path}, which has none. Give a file with one sentence a line."
        )
    return found


def _lines(path: Path) -> Iterator[str]:
    """Yields the lines."""
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"A text must be UTF-8. Received: {path}, line {number}: "
                    f"{error.reason}. Convert it, for instance with iconv."
                ) from error


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".xz":
        return lzma.open(path)  # type: ignore[return-value]
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    return path.open("rb")


def split(
    sentences: Sequence[str], held_out: int, seed: int
) -> tuple[list[str], list[str]]:
    """Shuffles sentences, and divides them into training and held-out sentences.

    Args:
        sentences: One string each.
        held_out: Integer. The number of sentences to hold out: the same ones for
            every seed.
        seed: Integer. The seed of the order of the training sentences.

    Raises:
        ValueError: none would be left to train on.
    """
    if not 0 < held_out < len(sentences):
        raise ValueError(
            "`held_out` must be at least 1 and leave sentences to train on. Received: "
            f"held_out={held_out} of {len(sentences)} sentence(s). Hold out fewer."
        )
    shuffled = random.Random(0).sample(sentences, len(sentences))
    train, test = shuffled[held_out:], shuffled[:held_out]
    random.Random(seed).shuffle(train)
    return train, test


class Vocabulary:
    """The most frequent words of a text, in that order, after `</s>` and `<unk>`.

    Args:
        sentences: Lists of words.
        size: Integer. The number of ids, those of the two marks included.

    Raises:
        ValueError: the text has fewer words.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], size: int) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        if len(counts) < size - len(SPECIAL):
            raise ValueError(
                "A vocabulary must not be larger than the text has words. Received: "
                f"words={size} for a text of {len(counts)} different words. Set "
                f"words={len(counts) + len(SPECIAL)} or less."
            )
        # Ties are broken by the alphabet: the ids do not depend on the order read.
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.words = SPECIAL + ranked[: size - len(SPECIAL)]
        self.ids = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentences: Iterable[Sequence[str]]) -> np.ndarray:
        """Returns one running text of ids, int32, each sentence with its end."""
        ids = (
            i
            for sentence in sentences
            for i in (*(self.ids.get(w, UNKNOWN) for w in sentence), SENTENCE_END)
        )
        return np.fromiter(ids, np.int32)
