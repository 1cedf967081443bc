"""Sentence pairs: reading, checking, cutting to length, splitting."""

import gzip
import importlib
import lzma
import random
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from experiments.files import downloaded
from translation.vocabulary import tokenize

Pair = tuple[str, str]
TokenPair = tuple[list[str], list[str]]

FRA_ENG = "https://www.manythings.org/anki/fra-eng.zip"
LIBREOFFICE_HELP = Path(__file__).parent / "data" / "libreoffice_help.tsv.xz"


def load_pairs(source: str) -> list[Pair]:
    """Reads English-French sentence pairs.

    Args:
        source: A file of English TAB French (plain, .gz, .xz or .zip);
            `"libreoffice-help"`, the set in this folder; `"fra-eng"`, which is
            downloaded; or `"tfds:name/config"` of tensorflow-datasets.

    Returns:
        A list of (English, French).
    """
    if source.startswith("tfds:"):
        pairs = _read_tfds(source.removeprefix("tfds:"))
    elif source == "fra-eng":
        pairs = list(_parse(downloaded(FRA_ENG)))
    elif source == "libreoffice-help":
        pairs = list(_parse(LIBREOFFICE_HELP))
    else:
        pairs = list(_parse(Path(source)))
    if not pairs:
        raise ValueError(
            f"A data set must hold at least one sentence pair. Received: {source!r}, "
            "which is empty. Give a file of English TAB French lines."
        )
    return pairs


def _parse(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) not in (2, 3) or not all(c.strip() for c in columns[:2]):
            raise ValueError(
                "Every line must be English TAB French, with at most one more column "
                f"(the attribution). Received: {path}, line {number}, {len(columns)} "
                f"column(s): {line[:60]!r}. Correct the line or remove it."
            )
        yield columns[0].strip(), columns[1].strip()


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise FileNotFoundError(
            "`--data` must be a file, 'libreoffice-help', 'fra-eng' or "
            f"'tfds:name/config'. Received: --data {path}, which does not exist. "
            "Check the path."
        )
    for number, line in enumerate(_read(path), start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"A data file must be UTF-8. Received: {path}, line {number}: "
                f"{error.reason}. Convert it, for instance with iconv."
            ) from error


def _read(path: Path) -> list[bytes]:
    broken = (
        EOFError,
        gzip.BadGzipFile,
        lzma.LZMAError,
        zipfile.BadZipFile,
        zlib.error,
    )
    try:
        with _open(path) as file:
            return list(file)
    except broken as error:
        raise ValueError(
            f"A compressed file must be whole. Received: {path}: {error}. Fetch it "
            "again."
        ) from error


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".zip":
        archive = zipfile.ZipFile(path)
        # fra-eng.zip holds fra.txt and _about.txt.
        names = [
            name
            for name in archive.namelist()
            if not name.startswith("_") and not name.endswith("/")
        ]
        if not names:
            raise ValueError(
                "A zip file must hold a file of sentence pairs. Received: "
                f"{path}, which holds {archive.namelist()}. Give another file."
            )
        return archive.open(names[0])  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(path)  # type: ignore[return-value]
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    return path.open("rb")


def _read_tfds(name: str) -> list[Pair]:
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            "`--data tfds:...` needs the package tensorflow-datasets. Received: "
            f"--data tfds:{name}. Install it: pip install tensorflow-datasets"
        ) from error
    rows = tfds.as_numpy(tfds.load(name, split="train"))
    return [(row["en"].decode(), row["fr"].decode()) for row in rows]


def prepare(
    pairs: list[Pair],
    max_source: int,
    max_target: int,
    overlong: str,
    lowercase: bool,
) -> list[TokenPair]:
    """Tokenizes the pairs; those over the limits are dropped or truncated.

    Args:
        pairs: List of (English, French).
        max_source: Integer. The most English tokens.
        max_target: Integer. The most French tokens, the end mark not counted.
        overlong: `"drop"` or `"truncate"`.
        lowercase: Whether to lower-case both sides.

    Returns:
        A list of (English tokens, French tokens).
    """
    tokens = [(tokenize(e, lowercase), tokenize(f, lowercase)) for e, f in pairs]
    if overlong == "truncate":
        kept = [(e[:max_source], f[:max_target]) for e, f in tokens]
    else:
        kept = [
            (e, f) for e, f in tokens if len(e) <= max_source and len(f) <= max_target
        ]
    if not kept:
        raise ValueError(
            "At least one pair must be within the length limits. Received: "
            f"max_source={max_source}, max_target={max_target}, {len(pairs)} pair(s), "
            "all of them longer. Raise the limits or set overlong='truncate'."
        )
    return kept


def split(
    pairs: list[TokenPair], held_out: int, seed: int
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Splits into a training and a held-out set that share no English sentence.

    Several French sentences may translate one English sentence. Were they split
    pair by pair, the model would be tested on English that it was trained on.

    Args:
        pairs: List of (English tokens, French tokens).
        held_out: Integer. The number of held-out pairs.
        seed: Integer. The same seed gives the same split.

    Returns:
        The training pairs and the held-out pairs.
    """
    english = sorted({tuple(e) for e, _ in pairs})
    random.Random(seed).shuffle(english)
    groups: dict[tuple[str, ...], list[TokenPair]] = {e: [] for e in english}
    for pair in pairs:
        groups[tuple(pair[0])].append(pair)
    test: list[TokenPair] = []
    while english and len(test) < held_out:
        test += groups.pop(english.pop())
    train = [pair for e in english for pair in groups[e]]
    if not train:
        raise ValueError(
            "Held-out pairs must leave pairs to train on. Received: "
            f"held_out={held_out} of {len(pairs)} pair(s). Hold out fewer."
        )
    return train, test[:held_out]
