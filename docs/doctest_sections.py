"""Has griffe read the `Example:` of a docstring, in Keras's style, as a doctest."""

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:\n(.*?)(?=^Reference:|\Z)", re.DOTALL | re.MULTILINE)


class DoctestSections(griffe.Extension):
    """Gives the section the name and the indentation of Google's style."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(
                lambda match: "Examples:\n" + textwrap.indent(match[1], "    "),
                obj.docstring.value,
            )
