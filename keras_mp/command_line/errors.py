"""`CommandError`, and the checks of the files that a command is to write."""

from pathlib import Path


class CommandError(Exception):
    """A command cannot be done; the message says why, and what to change."""


def check_new(path: Path) -> None:
    """Raises where a file cannot be written without overwriting another.

    Called before a command begins, so that its result is not lost at its end.

    Raises:
        CommandError: the file exists, or its folder does not.
    """
    if path.exists():
        raise CommandError(
            f"An output must be a new file. Received: {path}, which exists. Remove it, "
            "or name another one."
        )
    if not path.parent.is_dir():
        raise CommandError(
            f"An output must be in a folder that exists. Received: {path}. Create "
            f"it: mkdir -p {path.parent}"
        )
