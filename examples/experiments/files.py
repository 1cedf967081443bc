"""Files that are whole or not there."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import ContentTooShortError
from urllib.request import urlopen

# For so many seconds a server may send nothing.
SILENCE = 60


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file under another name, and gives it its own when it is complete.

    Args:
        path: What is replaced.
        write: Called with the path to write to.
    """
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        os.replace(part, path)
    except OSError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Writes what JSON can hold, as a whole."""
    text = json.dumps(content, indent=1) + "\n"
    write_whole(path, lambda part: part.write_text(text))


def downloaded(url: str) -> Path:
    """Returns the file behind a URL, from the folder where Keras keeps downloads.

    What a site has behind a URL may change, so no checksum can be demanded of the first
    download. Its SHA-256 is printed, kept beside the file, and demanded from then on.
    """
    home = os.environ.get("KERAS_HOME", Path.home() / ".keras")
    path = Path(home) / "datasets" / url.rpartition("/")[2]
    record = path.with_name(path.name + ".sha256")
    if path.is_file():
        _check(path, record)
        return path
    print(f"Downloading {url} to {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda part: _fetch(url, part, record))
    except OSError as error:
        raise OSError(
            f"A data set must be downloaded as a whole. Received: {url}: {error}. "
            "Fetch it in another way, and put it there or name it with --data."
        ) from error
    print(f"SHA-256 of {path}: {_sha256(path)}")
    return path


def _fetch(url: str, part: Path, record: Path) -> None:
    """Writes what is behind a URL; its checksum is there before it counts."""
    with urlopen(url, timeout=SILENCE) as answer, part.open("wb") as file:
        shutil.copyfileobj(answer, file)
        size, expected = file.tell(), answer.headers["Content-Length"]
    if expected is not None and size != int(expected):
        raise ContentTooShortError(f"got only {size} of {expected} bytes", b"")
    line = f"{_sha256(part)}  {record.stem}\n"
    write_whole(record, lambda part: part.write_text(line))


def _check(path: Path, record: Path) -> None:
    """Raises if a download was changed; a file without a record is the user's."""
    if not record.is_file():
        return
    first, now = record.read_text().partition(" ")[0], _sha256(path)
    if first != now:
        raise ValueError(
            "A download must keep its SHA-256. Received: "
            f"{path}, with {now}, downloaded with {first}. Remove it, and it is "
            "downloaded again."
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
