"""Strict YAML reader: every value has its line and column, and every mistake is reported.

A :class:`Walker` reads plain values from the tree of a file. It collects what is wrong as
:class:`Mistake` and continues, so that the user gets all mistakes at once. In place of wrong values
it returns empty ones: check :attr:`Walker.mistakes` before using any value.

The type of a scalar is never guessed: ``port: 08`` is the text ``08``. Duplicate keys are mistakes,
and so are unknown ones, with the nearest valid key in the message. Values may contain environment
variables (:func:`expand`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from yaml.nodes import Node

SIZE_MAX: Final = 1 << 20
_NULL: Final = "tag:yaml.org,2002:null"
_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)


class Mistake(msgspec.Struct, frozen=True):
    """A mistake with its line and column, counted from 1."""

    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.text}"


def compose(text: str) -> Node | Mistake:
    """Parse a file into its tree; a Mistake if it is not YAML."""
    import yaml

    if len(text) > SIZE_MAX:
        return Mistake(1, 1, f"the file has more than {SIZE_MAX} characters")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        return Mistake(line + 1, column + 1, f"this is no YAML, {error.problem or error.context}")
    except yaml.YAMLError as error:
        return Mistake(1, 1, f"this is no YAML, {' '.join(str(error).split())}")
    except RecursionError:
        return Mistake(1, 1, "the values are nested too deeply")
    return Mistake(1, 1, "the file is empty") if node is None else node


def nearest(word: str, known: Collection[str]) -> str:
    """A hint for an unknown word: the nearest known one, or all."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(known)}"


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
    """Reads values from a tree and collects mistakes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.mistakes: list[Mistake] = []

    def wrong(self, node: Node, text: str) -> None:
        """Add a mistake at the start of ``node``."""
        mark = node.start_mark
        self.mistakes.append(Mistake(mark.line + 1, mark.column + 1, text))

    def mapping(
        self, node: Node, what: str, keys: Collection[str], required: Collection[str] = ()
    ) -> dict[str, Node]:
        """A mapping with these keys and no others."""
        found: dict[str, Node] = {}
        complete = True
        for key, name, value in self._entries(node, what):
            if name not in keys:
                complete = False  # a missing key may be the misspelt one
                self.wrong(key, f"{what} has no key {name}: {nearest(name, keys)}")
            else:
                found[name] = value
        if complete and self.is_mapping(node):
            for name in required:
                if name not in found:
                    self.wrong(node, f"{what} needs {name}")
        return found

    def texts(self, node: Node, what: str) -> dict[str, tuple[str, Node]]:
        """A mapping with any keys to texts, each with the node of its key."""
        return {
            name: (self.text(value, f"{what}: {name}"), key)
            for key, name, value in self._entries(node, what)
        }

    def text(self, node: Node, what: str) -> str:
        """A scalar as text, with environment variables expanded."""
        import yaml

        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
            self.wrong(node, f"{what} must be a text")
            return ""
        try:
            return expand(str(node.value), self._environ)
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
        """A list of texts, or one text."""
        import yaml

        if not isinstance(node, yaml.SequenceNode):
            return (self.text(node, what),)
        return tuple(self.text(each, what) for each in node.value)

    def items(self, node: Node, what: str) -> list[Node]:
        """The elements of a list that is not empty."""
        import yaml

        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.wrong(node, f"{what} must be a list with at least one element")
            return []
        return list(node.value)

    @staticmethod
    def is_mapping(node: Node) -> bool:
        import yaml

        return isinstance(node, yaml.MappingNode)

    def _entries(self, node: Node, what: str) -> Iterator[tuple[Node, str, Node]]:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, f"{what} must be keys with values")
            return
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.wrong(key, f"a key of {what} must be a text")
            elif key.value in seen:
                self.wrong(key, f"{what} has the key {key.value} twice")
            else:
                seen.add(key.value)
                yield key, key.value, value
