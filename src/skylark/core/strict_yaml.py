"""The YAML reader for files that people write: strict, and every mistake has its line and column.

It is the only module that imports yaml. There are two ways to read a file:

* :func:`read_yaml` converts a text into a msgspec Struct (with ``forbid_unknown_fields``) and
  raises :class:`YamlError` at the first mistake. ``skylark apply`` uses it.
* :func:`compose` parses a text into nodes, each with its position. The caller takes values out of
  them with :func:`entries`, :func:`elements` and :func:`scalar_text`, and may collect all mistakes
  before it raises. Pipeline files are read this way.

Both refuse text that is not YAML, a second document, a key that is given twice or is not a scalar,
files above :data:`SIZE_MAX` and nesting above :data:`DEPTH_MAX`. ``read_yaml`` also refuses aliases
(``*name``) and tags (``!name``); ``compose`` accepts aliases where the caller says so, and callers
that read only the text of scalars ignore tags.

How ``read_yaml`` finds positions: it builds plain values from the nodes, and beside them a table
*path -> node*. msgspec names the path of the value that it refuses (``$.topics[0].perm``).

yaml is imported inside functions, because most programs that import this package never read YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec

from skylark.core.errors import ConfigError

if TYPE_CHECKING:
    from yaml.nodes import Node as Node

T = TypeVar("T")

#: Characters of a file; one that a person writes is smaller.
SIZE_MAX: Final = 1 << 20
DEPTH_MAX: Final = 32

#: Keys and indices from the root.
Path: TypeAlias = tuple[str | int, ...]

_NULL_TAG: Final = "tag:yaml.org,2002:null"
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`")


class Mistake(msgspec.Struct, frozen=True):
    """One mistake in a file; lines and columns count from 1."""

    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.text}"


class YamlError(ConfigError):
    """A YAML file with a mistake; ``mistake`` is None if it concerns the file as a whole."""

    def __init__(self, file: str, problem: str | Mistake, *, hint: str | None = None) -> None:
        self.mistake = problem if isinstance(problem, Mistake) else None
        separator = ": " if self.mistake is None else ", "
        super().__init__(f"{file}{separator}{problem}", hint=hint)


# ---- nodes ---------------------------------------------------------------------------------------


def compose(text: str, *, aliases: bool) -> Node | Mistake:
    """Parse a text into its root node, or return the mistake that prevents it."""
    import yaml

    if len(text) > SIZE_MAX:
        return Mistake(1, 1, f"the file has more than {SIZE_MAX} characters")
    try:
        refused = _refused_token(text, aliases=aliases)
        root = None if refused else yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        return Mistake(line + 1, column + 1, f"not valid YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        return Mistake(1, 1, f"not valid YAML: {' '.join(str(error).split())}")
    return refused or root or Mistake(1, 1, "the file is empty")


def mistake_at(node: Node, text: str) -> Mistake:
    """A mistake at the place where ``node`` begins."""
    return Mistake(node.start_mark.line + 1, node.start_mark.column + 1, text)


def entries(
    node: Node, report: Callable[[Node, str], None]
) -> Iterator[tuple[Node, str, Node]] | None:
    """Key node, key and value node of each entry; None if ``node`` is not a mapping.

    Calls ``report`` for keys that are given twice or are not scalars, and skips them.
    """
    import yaml

    return _entries(node, report) if isinstance(node, yaml.MappingNode) else None


def elements(node: Node) -> list[Node] | None:
    """The elements of a list; None if ``node`` is not a list."""
    import yaml

    return list(node.value) if isinstance(node, yaml.SequenceNode) else None


def scalar_text(node: Node) -> str | None:
    """The text of a scalar, never converted; None if ``node`` is null, a list or a mapping."""
    import yaml

    if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL_TAG:
        return None
    return str(node.value)


def nearest(word: str, known: Collection[str]) -> str:
    """Hint for an unknown word: the most similar known one, or all of them."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(known)}"


def _refused_token(text: str, *, aliases: bool) -> Mistake | None:
    """Look for aliases and deep nesting before composing, which is recursive."""
    import yaml

    depth = 0
    for token in yaml.scan(text):
        line, column = token.start_mark.line + 1, token.start_mark.column + 1
        if isinstance(token, yaml.AliasToken) and not aliases:
            return Mistake(line, column, "aliases (*name) are not supported here")
        kind = type(token).__name__
        depth += kind.endswith("StartToken") - kind.endswith("EndToken")
        if depth > DEPTH_MAX:
            return Mistake(line, column, f"nested deeper than {DEPTH_MAX}")
    return None


def _entries(node: Node, report: Callable[[Node, str], None]) -> Iterator[tuple[Node, str, Node]]:
    import yaml

    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            report(key, "a key must be a text")
        elif key.value in seen:
            report(key, f"the key {key.value} is given twice")
        else:
            seen.add(key.value)
            yield key, key.value, value


# ---- typed objects -------------------------------------------------------------------------------


def read_yaml(text: str, kind: type[T], *, file: str) -> T:
    """Convert a text into a ``kind``; raises YamlError, which names ``file``."""
    root = compose(text, aliases=False)
    if isinstance(root, Mistake):
        raise YamlError(file, root)
    values = _Values(file)
    value = values.value(root, ())
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        path = _path(place.rstrip("`"))
        hint = None
        if unknown := _UNKNOWN.match(message):
            key = unknown[1]
            message = f"unknown key {key}"
            hint = nearest(key, known) if (known := _fields_at(kind, path)) else None
            path = (*path, key)
        mistake = mistake_at(values.node(path), _plain(message))
        raise YamlError(file, mistake, hint=hint) from None


def write_yaml(value: object) -> str:
    """Plain values as YAML text, in their order."""
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


class _Values:
    """Builds plain values from nodes, and remembers the node of each path."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes: dict[Path, Node] = {}

    def node(self, path: Path) -> Node:
        """The node at a path, or the nearest one around it."""
        while path not in self._nodes:
            path = path[:-1]
        return self._nodes[path]

    def value(self, node: Node, path: Path) -> object:
        self._nodes.setdefault(path, node)
        if (items := elements(node)) is not None:
            return [self.value(item, (*path, index)) for index, item in enumerate(items)]
        if (found := entries(node, self._refuse)) is not None:
            values: dict[str, object] = {}
            for key_node, key, value_node in found:
                self._nodes[*path, key] = key_node
                values[key] = self.value(value_node, (*path, key))
            return values
        return self._scalar(node)

    def _scalar(self, node: Node) -> object:
        import yaml

        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            self._refuse(node, f"{node.value!r} is not a valid value")

    def _refuse(self, node: Node, text: str) -> NoReturn:
        raise YamlError(self._file, mistake_at(node, text)) from None


def _path(text: str) -> Path:
    """``$.topics[0].perm`` as keys and indices, up to the first step that msgspec leaves out."""
    found: list[str | int] = []
    for step in _STEP.finditer(text):
        if step[2] == "...":
            break
        found.append(step[1] if step[1] is not None else int(step[2]))
    return tuple(found)


def _fields_at(kind: Any, path: Path) -> list[str]:
    """The keys that the settings class allows at a place of the YAML document."""
    from msgspec import inspect

    found = inspect.type_info(kind)
    for step in path:
        if isinstance(found, inspect.StructType):
            fields = {field.encode_name: field.type for field in found.fields}
            found = fields.get(str(step), inspect.AnyType())
        elif isinstance(found, inspect.ListType | inspect.VarTupleType):
            found = found.item_type
    if not isinstance(found, inspect.StructType):
        return []
    return [field.encode_name for field in found.fields]


def _plain(message: str) -> str:
    """A message of msgspec without its quotes, beginning with a small letter."""
    text = message.replace("`", "")
    return text[:1].lower() + text[1:]
