"""Takes values out of a pipeline file and collects its mistakes, each with line and column.

:class:`Walker` reads the nodes of :mod:`skylark.core.strict_yaml`. It records each mistake and
goes on, so that a person gets all of them at once. In place of a wrong value it returns an empty
one; callers must not use any value while :attr:`Walker.mistakes` is not empty.

Scalars are not converted: ``port: 08`` is the text ``08``. Unknown keys are mistakes that name the
most similar valid key.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from skylark.core.strict_yaml import Mistake, elements, entries, mistake_at, nearest, scalar_text

if TYPE_CHECKING:
    from skylark.core.strict_yaml import Node

_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace environment variables in ``text``; raises ValueError.

    =====================  ==========================================================
    ``${NAME}``            the variable; an error if it is not set
    ``${NAME:-default}``   the variable, or the default if it is not set or is empty
    ``$${``                the two characters ``${``, for SQL that needs them
    =====================  ==========================================================

    A lone ``$``, as in the JSON path ``$.uid``, is kept. Variables are replaced after the file was
    parsed: a variable can hold any text and never changes the structure of the file.
    """

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


class Walker:
    """Takes values out of nodes, and records their mistakes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.mistakes: list[Mistake] = []

    def wrong(self, node: Node, text: str) -> None:
        """Record a mistake where ``node`` begins."""
        self.mistakes.append(mistake_at(node, text))

    def mapping(
        self, node: Node, what: str, keys: Collection[str], required: Collection[str] = ()
    ) -> dict[str, Node]:
        """A mapping with these keys and no others."""
        given = self._entries(node, what)
        if given is None:
            return {}
        found: dict[str, Node] = {}
        complete = True
        for key, name, value in given:
            if name not in keys:
                complete = False  # a missing key may be the misspelt one
                self.wrong(key, f"{what} has no key {name}: {nearest(name, keys)}")
            else:
                found[name] = value
        if complete:
            for name in required:
                if name not in found:
                    self.wrong(node, f"{what} needs {name}")
        return found

    def texts(self, node: Node, what: str) -> dict[str, tuple[str, Node]]:
        """A mapping with any keys to texts, each with the node of its key."""
        return {
            name: (self.text(value, f"{what}: {name}"), key)
            for key, name, value in self._entries(node, what) or ()
        }

    def text(self, node: Node, what: str) -> str:
        """A scalar, with the environment put in."""
        written = scalar_text(node)
        if written is None:
            self.wrong(node, f"{what} must be a text")
            return ""
        try:
            return expand(written, self._environ)
        except ValueError as error:
            self.wrong(node, f"{what}: {error}")
            return ""

    def flag(self, node: Node, what: str) -> bool:
        """``true`` or ``false``."""
        text = self.text(node, what).lower()
        if text not in ("true", "false"):
            self.wrong(node, f"{what} must be true or false")
        return text == "true"

    def names(self, node: Node, what: str) -> tuple[str, ...]:
        """A list of texts; one text is a list as well."""
        found = elements(node)
        return tuple(self.text(each, what) for each in ([node] if found is None else found))

    def items(self, node: Node, what: str) -> list[Node]:
        """The elements of a list that is not empty."""
        found = elements(node)
        if not found:
            self.wrong(node, f"{what} must be a list with at least one element")
            return []
        return found

    def _entries(self, node: Node, what: str) -> Iterator[tuple[Node, str, Node]] | None:
        found = entries(node, lambda key, problem: self.wrong(key, f"{what}: {problem}"))
        if found is None:
            self.wrong(node, f"{what} must be keys with values")
        return found
