"""Builds libreoffice_help.tsv.xz from Debian's packages of the LibreOffice help.

    apt-get download libreoffice-help-en-us libreoffice-help-fr
    python build_libreoffice_help.py libreoffice-help-*.deb

A paragraph has the same file name and id in both languages. Where both sides have as
many sentences, each sentence is a pair; elsewhere the whole paragraph is.
"""

import argparse
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.files import write_whole
from translation.vocabulary import tokenize

HERE = Path(__file__).parent
HELP = Path("usr/share/libreoffice/help")
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[\"'(A-ZÀ-Ý])")
LETTERS = re.compile(r"[^\W\d_]{2}")


class Paragraphs(HTMLParser):
    """Collects the text of every paragraph and heading that has an id of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.current = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            name = dict(attrs).get("id") or ""
            # A page that includes another one twice repeats its ids: read one.
            self.current = "" if name in self.texts else name

    def handle_endtag(self, tag: str) -> None:
        if tag in BLOCKS:
            self.current = ""

    def handle_data(self, data: str) -> None:
        if self.current:
            self.texts[self.current] = self.texts.get(self.current, "") + data


def paragraphs(page: Path) -> dict[str, str]:
    """Returns the text of each paragraph of a page by its id, white space joined."""
    parser = Paragraphs()
    parser.feed(page.read_text(encoding="utf-8"))
    return {key: " ".join(text.split()) for key, text in parser.texts.items()}


def pairs(root: Path) -> Iterator[tuple[str, str]]:
    """Yields the sentence pairs of the unpacked packages, page by page."""
    for english_page in sorted((root / "en-US").rglob("*.html")):
        french_page = root / "fr" / english_page.relative_to(root / "en-US")
        if not french_page.is_file():
            continue
        french = paragraphs(french_page)
        for key, text in paragraphs(english_page).items():
            if key in french:
                yield from sentences(text, french[key])


def sentences(english: str, french: str) -> list[tuple[str, str]]:
    """Cuts a pair of paragraphs where both have as many sentences."""
    parts = SENTENCE_END.split(english), SENTENCE_END.split(french)
    if len(parts[0]) != len(parts[1]):
        return [(english, french)]
    return list(zip(*parts, strict=True))


def is_useful(english: str, french: str, longest: list[int]) -> bool:
    """Whether a pair is a translation of words: neither code nor a single name."""
    if english == french or not (LETTERS.search(english) and LETTERS.search(french)):
        return False
    lengths = [len(tokenize(text, lowercase=True)) for text in (english, french)]
    return all(3 <= n <= most for n, most in zip(lengths, longest, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs=2, type=Path)
    parser.add_argument(
        "--max-tokens",
        nargs=2,
        type=int,
        default=[10, 14],
        help="the longest English and French side; 50 60 for the whole set",
    )
    parser.add_argument("--out", type=Path, default=HERE / "libreoffice_help.tsv.xz")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for package in args.packages:
            subprocess.run(["dpkg", "-x", package, folder], check=True)
        found = dict.fromkeys(pairs(Path(folder) / HELP))
    if not found:
        raise ValueError(
            "The packages must hold the same pages in English and in French. Received: "
            f"{' '.join(map(str, args.packages))}, which hold none. Get them with "
            "apt-get download libreoffice-help-en-us libreoffice-help-fr."
        )
    kept = [pair for pair in found if is_useful(*pair, args.max_tokens)]
    lines = ["\t".join(pair) + "\n" for pair in kept]
    packed = lzma.compress("".join(lines).encode(), preset=9)
    write_whole(args.out, lambda part: part.write_bytes(packed))
    print(f"{args.out}: {len(lines)} pairs, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
