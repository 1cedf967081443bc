"""English sentences: the descriptions of Debian's packages."""

import re
from collections.abc import Iterable, Iterator

# Changes a little with each point release of Debian 12.
DESCRIPTIONS = (
    "https://deb.debian.org/debian/dists/bookworm/main/i18n/Translation-en.xz"
)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(]?[A-Z0-9])")
# Of words between spaces: shorter ones are names, longer ones lists.
SHORTEST, LONGEST = 4, 60


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yields the paragraphs of long descriptions, each on one line.

    The lines of a description begin with a space; " ." divides paragraphs, and what
    begins with two spaces is a list or a table, which is left out.
    """
    inside, current = False, []
    for line in lines:
        if not line.startswith(" "):
            inside = line.startswith("Description-en: ")
        if inside and re.match(r" [^ .]", line):
            current.append(line.strip())
        elif current:
            yield " ".join(current)
            current = []
    if current:
        yield " ".join(current)


def sentences(lines: Iterable[str]) -> list[str]:
    """Returns the sentences of all descriptions, each once, in their order."""
    found: dict[str, None] = {}
    for paragraph in paragraphs(lines):
        for sentence in SENTENCE_END.split(paragraph):
            text = " ".join(sentence.split())
            # A colon introduces a list, which was left out.
            if SHORTEST <= len(text.split(" ")) <= LONGEST and text[-1] != ":":
                found[text] = None
    return list(found)
