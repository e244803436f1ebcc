"""Variables of the environment in the values of a pipeline file.

=====================  ==========================================================
``${NAME}``            the variable; an error if it is not set
``${NAME:-default}``   the variable, or the default if it is not set or is empty
``$${``                the two characters ``${``, for SQL that needs them
=====================  ==========================================================

A lone ``$``, as in the JSON path ``$.uid``, stands for itself. Values are put in after the file was
taken apart: a variable can hold any text and never becomes structure of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """``text`` with its variables put in; raises ValueError that says what is wrong."""

    def value(found: re.Match[str]) -> str:
        if found["broken"]:
            raise ValueError("after ${ there must be a name and }; write $${ for the text itself")
        name, default = found["name"], found["default"]
        if name is None:
            return "${"
        known = environ.get(name)
        if default is not None:
            return known or default
        if known is None:
            raise ValueError(
                f"the environment has no variable {name}: set it, or write ${{{name}:-default}}"
            )
        return known

    return _REFERENCE.sub(value, text)
