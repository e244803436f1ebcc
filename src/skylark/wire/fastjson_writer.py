"""A writer for the JSON dialect of Java's fastjson: structs and plain values in, text out.

The output is a form that every RocketMQ client can read; some clients split bodies by ``,{``
and ``}:`` instead of parsing them:

* no blanks; the members of a struct in the order of their wire names, ``None`` left out;
* dictionaries in their own order, entries whose value is ``None`` left out;
* enums by name, doubles as Java prints them (``1.0``, ``1.0E10``), NaN and infinities as ``null``;
* integer keys bare (``{0:"a"}``), a struct used as a key as a compact object. The *standard* form
  quotes both and escapes everything that is not ASCII, so that any JSON reader takes it.

Escapes are those of fastjson2: ``"``, ``\\``, the short forms of backspace,
tab, newline, form feed and return, ``\\u00xx`` for the other control characters, nothing else.
"""

from __future__ import annotations

from functools import cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import msgspec

from skylark.core.errors import LocalProtocolError
from skylark.core.java_text import java_double


def write(value: Any, *, standard: bool = False) -> str:
    """The text of a value, in the dialect or in standard JSON."""
    out: list[str] = []
    _Writer(out, standard).value(value)
    return "".join(out)


@cache
def _members(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """(attribute, ``"wireName":``) of a struct's fields, sorted by wire name."""
    pairs = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    return tuple((name, encode_basestring(wire_name) + ":") for wire_name, name in sorted(pairs))


class _Writer:
    """One pass over a value; ``out`` collects the pieces of text."""

    __slots__ = ("_out", "_quote", "_standard")

    def __init__(self, out: list[str], standard: bool) -> None:
        self._out = out
        self._standard = standard
        self._quote = encode_basestring_ascii if standard else encode_basestring

    def value(self, value: Any) -> None:
        if isinstance(value, str):  # enums of names included
            self._out.append(self._quote(value))
        elif value is True:
            self._out.append("true")
        elif value is False:
            self._out.append("false")
        elif isinstance(value, int):
            self._out.append(int.__repr__(value))
        elif isinstance(value, msgspec.Struct):
            self._struct(value)
        elif isinstance(value, dict):
            self._dict(value)
        elif isinstance(value, (list, tuple)):
            self._list(value)
        elif isinstance(value, float):
            # Neither NaN nor an infinity has a JSON form.
            self._out.append(java_double(value) if value - value == 0 else "null")
        elif value is None:
            self._out.append("null")
        else:
            raise LocalProtocolError(f"{type(value).__name__} has no JSON form")

    def _struct(self, value: msgspec.Struct) -> None:
        out = self._out
        separator = "{"
        for attribute, prefix in _members(type(value)):
            member = getattr(value, attribute)
            if member is not None:
                out.append(separator)
                out.append(prefix)
                self.value(member)
                separator = ","
        out.append("{}" if separator == "{" else "}")

    def _dict(self, value: dict[Any, Any]) -> None:
        out = self._out
        separator = "{"
        for key, member in value.items():
            if member is not None:
                out.append(separator)
                self._key(key)
                out.append(":")
                self.value(member)
                separator = ","
        out.append("{}" if separator == "{" else "}")

    def _key(self, key: Any) -> None:
        if isinstance(key, str):
            self._out.append(self._quote(key))
        elif isinstance(key, (int, msgspec.Struct)) and not isinstance(key, bool):
            if self._standard:
                self._out.append(self._quote(write(key)))
            else:
                self.value(key)
        else:
            raise LocalProtocolError(f"{type(key).__name__} cannot be a key of a JSON body")

    def _list(self, value: list[Any] | tuple[Any, ...]) -> None:
        out = self._out
        separator = "["
        for item in value:
            out.append(separator)
            self.value(item)
            separator = ","
        out.append("[]" if separator == "[" else "]")
