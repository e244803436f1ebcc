"""Takes values out of a pipeline file and collects its mistakes, each with line and column.

:class:`Walker` reads the nodes of :mod:`skylark.core.strict_yaml`. It records each mistake and
goes on, so that a person gets all of them at once. In place of a wrong value it returns an empty
one; callers must not use any value while :attr:`Walker.mistakes` is not empty.

Scalars are not converted: ``port: 08`` is the text ``08``. Unknown keys are mistakes that name the
most similar valid key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from skylark.core.strict_yaml import Mistake, elements, entries, mistake_at, nearest, scalar_text
from skylark.spark.pipelines.environment_variables import expand

if TYPE_CHECKING:
    from skylark.core.strict_yaml import Node


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
                complete = False  # the missing one may be the one with the typing error
                self.wrong(key, f"{what} has no key {name}: {nearest(name, keys)}")
            else:
                found[name] = value
        if complete:
            for name in required:
                if name not in found:
                    self.wrong(node, f"{what} needs {name}")
        return found

    def texts(self, node: Node, what: str) -> dict[str, tuple[str, Node]]:
        """A mapping of any names to texts, each with the node of its key."""
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
