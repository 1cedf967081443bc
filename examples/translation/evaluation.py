"""BLEU against all the translations that the data set has for a sentence."""

from collections.abc import Sequence

import sacrebleu


def bleu(
    english: Sequence[str], french: Sequence[str], translations: Sequence[str]
) -> float:
    """Returns the corpus BLEU of the translations, from 0 to 100.

    A sentence that stands several times on the English side counts once, and each of
    its French sides is a reference.

    Args:
        english: The held-out English sentences.
        french: The French sentence of each pair.
        translations: The model's translation of each English sentence.
    """
    references: dict[str, list[str]] = {}
    for source, reference in zip(english, french, strict=True):
        references.setdefault(source, []).append(reference)
    hypotheses = dict(zip(english, translations, strict=True))
    most = max(len(known) for known in references.values())
    # sacrebleu wants as many references for each sentence; None stands for no more.
    padded = [known + [None] * (most - len(known)) for known in references.values()]
    streams = [list(stream) for stream in zip(*padded, strict=True)]
    return sacrebleu.corpus_bleu(list(hypotheses.values()), streams).score
