"""Builds a text of English sentences from the descriptions of Debian's packages.

    apt-get indextargets --format '$(FILENAME)' 'Identifier: Translations' |
      xargs /usr/lib/apt/apt-helper cat-file | python build_debian_descriptions.py

On Debian, apt keeps the descriptions in the files Translation-en, which it fetches by
default, and with `apt-get update -o Acquire::Languages=en` where it was told not to.
"""

import argparse
import lzma
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from experiments.files import write_whole

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
        line = line.rstrip("\r\n")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default="build/debian_descriptions.txt.xz")
    args = parser.parse_args()
    found = sentences(sys.stdin)
    if not found:
        raise ValueError(
            "The input must hold long descriptions of packages. Received: none on the "
            "standard input. Have apt fetch them: apt-get update -o "
            "Acquire::Languages=en"
        )
    packed = lzma.compress("".join(f"{text}\n" for text in found).encode())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(args.out, lambda part: part.write_bytes(packed))
    print(f"{args.out}: {len(found)} sentences, {len(packed)} bytes")


if __name__ == "__main__":
    main()
