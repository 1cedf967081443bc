"""Words to ids and back."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

PAD, GO, EOS, UNK = 0, 1, 2, 3
SPECIAL = ["<pad>", "<go>", "<eos>", "<unk>"]

# A word keeps its apostrophe (French: l' outil); every other sign stands alone.
TOKEN = re.compile(r"\w+['\u2019]?|[^\w\s]")


def tokenize(text: str, lowercase: bool) -> list[str]:
    """Splits a sentence into words and signs.

    Example:
    >>> tokenize("Ouvre l'outil.", lowercase=True)
    ['ouvre', "l'", 'outil', '.']
    """
    return TOKEN.findall(text.lower() if lowercase else text)


def detokenize(words: Sequence[str]) -> str:
    """Joins words for a reader: no space after an apostrophe or before a full stop."""
    text = re.sub(r"(?<=\w['\u2019]) (?=\w)", "", " ".join(words))
    return re.sub(r" (?=[.,)\]\u2026])|(?<=[(\[]) ", "", text)


class Vocabulary:
    """The most frequent words of a text, after `<pad>`, `<go>`, `<eos>`, `<unk>`.

    Args:
        sentences: Tokenized sentences.
        size: Integer. The largest number of ids, the four special ones included.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], size: int) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        # Ties are broken by the alphabet: the ids do not depend on the order read.
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.words = SPECIAL + ranked[: size - len(SPECIAL)]
        self.ids = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: Sequence[str]) -> list[int]:
        """Returns the ids of the words, `UNK` for a word outside the vocabulary."""
        return [self.ids.get(word, UNK) for word in sentence]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Returns the words up to, and without, the first `EOS` or `PAD`."""
        words = []
        for i in ids:
            if i in (EOS, PAD):
                break
            words.append(self.words[i])
        return words
