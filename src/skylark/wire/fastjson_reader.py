"""A reader for the JSON dialect of Java's fastjson: text in, plain Python values out.

RocketMQ's bodies look like JSON but are not always. What fastjson 1.2 (RocketMQ 4.x to 5.3) and
fastjson2 (5.4 and later) write beyond the standard, and the Python value that it becomes:

====================================  =========================================================
``{0:"a",-1:"b"}``                    bare integer keys; ``int`` keys
``{{"queueId":0,"topic":"T"}:9}``     objects as keys; :class:`ObjectKey`, a sorted tuple of pairs
``{"$ref":"$.a[0].b"}``               a repeated object, written by 1.2 only; the object meant
``1.0E10``                            ``Double.toString``; ``float``
====================================  =========================================================

References start at the root (``$``), at the innermost container (``@``) or at the one around it
(``..``). fastjson escapes odd characters of a path by a backslash: ``$.table.\\%RETRY\\%g``. Some
references lead nowhere: ``$.table.cid.null`` means a *key* of ``$.table.cid``, which no path can
name. An entry whose key or value cannot be resolved is left out.

Because of references the result may share objects or contain itself, so code that traverses it
must limit the number of steps (see ``wire/fastjson.py``).

Everything is bounded: size, nesting, digits of a number. Bad input raises
:class:`~skylark.core.errors.RemoteProtocolError` and nothing else.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from skylark.core.errors import RemoteProtocolError

SIZE_MAX: Final = 16 * 1024 * 1024  # a frame cannot be longer
DEPTH_MAX: Final = 64  # the deepest body of RocketMQ has eight levels
NUMERAL_SIZE_MAX: Final = 64  # a long has 20 characters, a double 24
KEY_MEMBERS_MAX: Final = 16  # the only bean that serves as a key, MessageQueue, has three
REF_HOPS_MAX: Final = 16  # references that lead to references

# One match per value: blanks, then a group that identifies its kind.
_next_value = re.compile(
    r"[ \t\r\n]*(?:"
    r'"([^"\\]*)"'  # a string without escapes
    r"|(-?[0-9]+)(?![0-9.eE])"
    r"|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    r"|(\{)"
    r"|(\[)"
    r"|(true|false|null)"
    r'|(")'  # a string with escapes
    r")"
).match
_STRING, _INTEGER, _DOUBLE, _OBJECT, _ARRAY, _LITERAL, _ESCAPED = range(1, 8)
_blanks = re.compile(r"[ \t\r\n]*").match
# Raw control characters inside strings are fine with fastjson, so they are with us.
_scan_string = json.JSONDecoder(strict=False).raw_decode

_PENDING: Final = object()  # the target of a reference not yet looked up
_NOWHERE: Final = object()  # the target of a reference that cannot be resolved
_LITERALS: Final = {"true": True, "false": False, "null": None}


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object used as a map key: its members as pairs, sorted by name, hashable."""

    __slots__ = ()


class _Reference:
    """The place of a ``{"$ref": path}``, and the two containers around it, inner one last."""

    __slots__ = ("path", "target", "within")

    def __init__(self, path: str, within: tuple[Any, ...]) -> None:
        self.path = path
        self.within = within
        self.target: Any = _PENDING


def parse(data: bytes | str, *, size_max: int = SIZE_MAX) -> Any:
    """Read one value of the dialect.

    The only exception is :class:`~skylark.core.errors.RemoteProtocolError`.
    """
    if len(data) > size_max:
        raise RemoteProtocolError(f"a JSON body of {len(data)} bytes is over the limit {size_max}")
    if isinstance(data, bytes):
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"the JSON body is not UTF-8: {error}") from error
    else:
        text = data
    parser = _Parser(text)
    value = parser.document()
    if parser.references:
        _resolve(value, parser.references)
    return value


class _Parser:
    """Recursive descent over one text. ``_pos`` is the index of the next unread character."""

    __slots__ = ("_containers", "_pos", "_text", "references")

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._containers: list[Any] = []
        self.references: list[_Reference] = []

    def document(self) -> Any:
        value = self._value()
        self._skip_blanks()
        if self._pos != len(self._text):
            raise self._error("something follows the value")
        return value

    def _value(self) -> Any:
        found = _next_value(self._text, self._pos)
        if found is None:
            raise self._error("no value")
        kind = found.lastindex
        self._pos = found.end()
        if kind == _STRING:
            return found[_STRING]
        if kind == _INTEGER:
            return int(self._bounded(found[_INTEGER]))
        if kind == _OBJECT:
            return self._object()
        if kind == _ARRAY:
            return self._array()
        if kind == _LITERAL:
            return _LITERALS[found[_LITERAL]]
        if kind == _DOUBLE:
            return float(self._bounded(found[_DOUBLE]))
        return self._escaped_string(found.end() - 1)

    def _object(self) -> Any:
        members: dict[Any, Any] = {}
        self._enter(members)
        more = not self._next_is("}")
        while more:
            key = self._key()
            if not self._next_is(":"):
                raise self._error("no ':'")
            members[key] = self._value()
            more = self._has_more("}")
        self._containers.pop()
        if len(members) == 1:
            path = members.get("$ref")
            if isinstance(path, str):
                reference = _Reference(path, tuple(self._containers[-2:]))
                self.references.append(reference)
                return reference
        return members

    def _array(self) -> list[Any]:
        items: list[Any] = []
        self._enter(items)
        more = not self._next_is("]")
        while more:
            items.append(self._value())
            more = self._has_more("]")
        self._containers.pop()
        return items

    def _key(self) -> Any:
        key = self._value()
        if isinstance(key, (str, _Reference)) or type(key) is int:
            return key
        frozen = _as_key(key) if isinstance(key, dict) else None
        if frozen is None:
            raise self._error("no key")
        return frozen

    def _escaped_string(self, start: int) -> str:
        try:
            text, self._pos = _scan_string(self._text, start)
        except ValueError as error:
            raise self._error("a broken string") from error
        # Half a surrogate pair cannot be written as UTF-8; Java's encoder turns it into "?".
        return str(text).encode("utf-8", "replace").decode()

    def _bounded(self, numeral: str) -> str:
        if len(numeral) > NUMERAL_SIZE_MAX:
            raise self._error(f"a number of {len(numeral)} characters")
        return numeral

    def _enter(self, container: Any) -> None:
        self._containers.append(container)
        if len(self._containers) > DEPTH_MAX:
            raise self._error(f"nesting deeper than {DEPTH_MAX}")

    def _has_more(self, end: str) -> bool:
        """Consume the comma after an entry (true) or the end of the container (false)."""
        char = self._text[self._pos : self._pos + 1]
        if char != "," and char != end:
            self._skip_blanks()
            char = self._text[self._pos : self._pos + 1]
        self._pos += 1
        if char == ",":
            return True
        if char != end:
            raise self._error(f"no ',' or {end!r}")
        return False

    def _next_is(self, char: str) -> bool:
        """Consume ``char`` if it comes next."""
        if self._text.startswith(char, self._pos):
            self._pos += 1
            return True
        self._skip_blanks()
        if self._text.startswith(char, self._pos):
            self._pos += 1
            return True
        return False

    def _skip_blanks(self) -> None:
        found = _blanks(self._text, self._pos)
        if found is not None:
            self._pos = found.end()

    def _error(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"malformed JSON body: {what} at character {self._pos}")


def _as_key(bean: dict[Any, Any]) -> ObjectKey | None:
    """The hashable form of a bean; ``None`` for objects that no Java map has as keys."""
    if len(bean) > KEY_MEMBERS_MAX:
        return None
    for name, member in bean.items():
        if not isinstance(name, str) or isinstance(member, (dict, list, _Reference)):
            return None
    return ObjectKey(sorted(bean.items()))


# ---- references --------------------------------------------------------------------------------


def _resolve(root: Any, references: list[_Reference]) -> None:
    """Replace all references below ``root`` by what they mean, in place.

    All targets are looked up before anything is replaced: leaving out a dead entry of a list
    would shift the indices that other paths count by.
    """
    if isinstance(root, _Reference):
        raise RemoteProtocolError("malformed JSON body: nothing but a reference")
    for reference in references:
        _target(root, reference, REF_HOPS_MAX)
    _replace_in(root)


def _target(root: Any, reference: _Reference, hops_left: int) -> Any:
    """The value a reference leads to, looked up once: not a reference itself, or ``_NOWHERE``."""
    if reference.target is not _PENDING:
        return reference.target
    reference.target = value = _NOWHERE  # while under way: a circle leads nowhere
    if hops_left == 0:
        return _NOWHERE
    path, within = reference.path, reference.within
    if path.startswith("$"):
        value = root
        for step in _steps(path[1:]):
            if isinstance(value, _Reference):
                value = _target(root, value, hops_left - 1)
            value = _member(value, step)
    elif path == "@" and within:
        value = within[-1]
    elif path == ".." and len(within) == 2:
        value = within[0]
    if isinstance(value, _Reference):
        value = _target(root, value, hops_left - 1)
    reference.target = value
    return value


_next_step = re.compile(r"\.((?:\\.|[^.\[\\])+)|\[([0-9]{1,9})\]", re.DOTALL).match
_escaped = re.compile(r"\\(.)", re.DOTALL)


def _steps(path: str) -> list[str | int | None]:
    """Split ``.a\\.b[0].c`` into ``["a.b", 0, "c"]``; ``None`` for a malformed path."""
    steps: list[str | int | None] = []
    pos = 0
    while pos < len(path):
        found = _next_step(path, pos)
        if found is None:
            return [None]
        name, index = found.groups()
        steps.append(int(index) if name is None else _escaped.sub(r"\1", name))
        pos = found.end()
    return steps


def _member(container: Any, step: str | int | None) -> Any:
    if isinstance(container, list) and isinstance(step, int) and step < len(container):
        return container[step]
    if isinstance(container, dict):
        if step in container:
            return container[step]
        if isinstance(step, str) and step.isdecimal() and len(step) < NUMERAL_SIZE_MAX:
            return container.get(int(step), _NOWHERE)  # a bare integer key
    return _NOWHERE


def _replace_in(container: Any) -> None:
    """Walk the tree as it was parsed: no path leads through a reference, so no cycle either."""
    if isinstance(container, list):
        container[:] = [item for item in map(_resolved, container) if item is not _NOWHERE]
    elif isinstance(container, dict):
        entries = [(_resolved_key(key), _resolved(member)) for key, member in container.items()]
        container.clear()
        container.update(
            entry for entry in entries if entry[0] is not _NOWHERE and entry[1] is not _NOWHERE
        )


def _resolved(value: Any) -> Any:
    if isinstance(value, _Reference):
        return value.target
    _replace_in(value)
    return value


def _resolved_key(key: Any) -> Any:
    if not isinstance(key, _Reference):
        return key
    frozen = _as_key(key.target) if isinstance(key.target, dict) else None
    return _NOWHERE if frozen is None else frozen
