"""Loads the native library, once, when an op is first called."""

import functools
from types import ModuleType

MODES = ("auto", "native", "reference")


class NativeLibraryError(ImportError):
    """The native library cannot be used; the message says why."""


def is_available() -> bool:
    """Whether the ops run natively, as `KERAS_MP_OPS` asks and the machine allows."""
    return _library() is not None


@functools.cache
def _library() -> ModuleType | None:
    return None
