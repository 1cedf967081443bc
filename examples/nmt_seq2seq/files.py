"""Files that are whole or not there."""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlretrieve


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


def downloaded(url: str) -> Path:
    """Returns the file behind a URL, from the folder where Keras keeps downloads."""
    home = os.environ.get("KERAS_HOME", Path.home() / ".keras")
    path = Path(home) / "datasets" / url.rpartition("/")[2]
    if path.is_file():
        return path
    print(f"Downloading {url} to {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda part: urlretrieve(url, part))
    except OSError as error:
        raise OSError(
            f"A data set must be downloaded as a whole. Received: {url}: {error}. "
            "Fetch it in another way, and put it there or name it with --data."
        ) from error
    return path
