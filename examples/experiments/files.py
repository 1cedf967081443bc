"""Files that are whole or not there."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pooch

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

    Raises:
        OSError: it did not come as a whole.
    """
    home = os.environ.get("KERAS_HOME", Path.home() / ".keras")
    folder, name = Path(home) / "datasets", url.rpartition("/")[2]
    downloader = pooch.HTTPDownloader(timeout=SILENCE)
    try:
        # What a site has behind a URL may change, so no checksum is demanded.
        return Path(pooch.retrieve(url, None, name, folder, downloader=downloader))
    except OSError as error:
        raise OSError(
            f"A data set must be downloaded as a whole. Received: {url}: {error}. "
            f"Fetch it in another way, and put it into {folder} or name it with --data."
        ) from error
