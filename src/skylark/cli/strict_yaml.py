"""YAML files that people write, read strictly: every mistake is told with its line.

:func:`read_yaml` makes a typed object of a text, and raises :class:`YamlMistake` for anything that
is not exactly what the type says: a key that is unknown (with the one that was probably meant) or
given twice, a value of another kind, a tag or alias (``!x``, ``*x``), text that is no YAML. The
types are msgspec Structs with ``forbid_unknown_fields``.

How lines are known: the text is composed into nodes, which have marks, and made into plain values
beside a table *path -> line*. msgspec names the path of what it refuses (``$.topics[0].perm``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from skylark.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")

#: A file that people write is smaller.
SIZE_MAX = 1024 * 1024
DEPTH_MAX = 32

#: Keys and indices from the root.
Path: TypeAlias = tuple[str | int, ...]

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")


class YamlMistake(click.ClickException):
    """What is wrong with a file, and in which line."""

    exit_code = ExitCode.USAGE

    def __init__(
        self, problem: str, *, file: str, line: int | None, hint: str | None = None
    ) -> None:
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {problem}: {hint}" if hint else f"{where}: {problem}")
        self.line = line


def read_yaml(text: str, kind: type[T], *, file: str) -> T:
    """The object that a text describes; ``file`` is its name in messages."""
    import msgspec

    value, lines = _Reader(file).read(text)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        path = _path(place.rstrip("`"))
        hint = None
        if unknown := _UNKNOWN.match(message):
            key = unknown[1]
            message = f"unknown key {key!r}"
            hint = _meant(key, _fields_at(kind, path))
            path = (*path, key)
        raise YamlMistake(_plain(message), file=file, line=_line(lines, path), hint=hint) from None


class _Reader:
    """Makes plain values of one text, with the line of each."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[Path, int] = {}

    def read(self, text: str) -> tuple[object, dict[Path, int]]:
        import yaml

        if len(text) > SIZE_MAX:
            raise self._mistake(f"more than {SIZE_MAX} characters", None)
        try:
            self._scan(text)
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = None if mark is None else mark.line + 1
            raise self._mistake(error.problem or "this is no YAML", line) from None
        except yaml.YAMLError:
            raise self._mistake("this is no YAML text", None) from None
        if root is None:
            raise self._mistake("the file is empty", None)
        return self._value(root, ()), self._lines

    def _scan(self, text: str) -> None:
        """Refuse what must not even be composed: aliases, and depths that take for ever."""
        import yaml

        depth = 0
        for token in yaml.scan(text):
            line = token.start_mark.line + 1
            if isinstance(token, yaml.AliasToken):
                raise self._mistake("aliases (*name) are not read here", line)
            kind = type(token).__name__
            depth += kind.endswith("StartToken") - kind.endswith("EndToken")
            if depth > DEPTH_MAX:
                raise self._mistake(f"nested deeper than {DEPTH_MAX}", line)

    def _value(self, node: yaml.Node, path: Path) -> object:
        import yaml

        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if not isinstance(key, str):
                raise self._mistake("a key must be text", line)
            if key in found:
                raise self._mistake(f"key {key!r} is given twice", line)
            self._lines[*path, key] = line
            found[key] = self._value(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.Node) -> object:
        import yaml

        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            raise self._mistake(f"{node.value!r} is no value", node.start_mark.line + 1) from None

    def _mistake(self, problem: str, line: int | None) -> YamlMistake:
        return YamlMistake(problem, file=self._file, line=line)


def _path(text: str) -> Path:
    """``$.topics[0].perm`` as keys and indices; it ends where msgspec does not know better."""
    found: list[str | int] = []
    for step in _STEP.finditer(text):
        if step[2] == "...":
            break
        found.append(step[1] if step[1] is not None else int(step[2]))
    return tuple(found)


def _line(lines: dict[Path, int], path: Path) -> int | None:
    """The line of a path, or of the nearest thing around it."""
    while path not in lines and path:
        path = path[:-1]
    return lines.get(path)


def _fields_at(kind: Any, path: Path) -> list[str]:
    """The keys that are known where a path leads."""
    import msgspec
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
    assert issubclass(found.cls, msgspec.Struct)
    return [field.encode_name for field in found.fields]


def _meant(key: str, known: list[str]) -> str | None:
    from difflib import get_close_matches

    if close := get_close_matches(key, known, n=1):
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}" if known else None


def _plain(message: str) -> str:
    """msgspec's words without its quotes, and with a small letter."""
    text = message.replace("`", "")
    return text[:1].lower() + text[1:]
