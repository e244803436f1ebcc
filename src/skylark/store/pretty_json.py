"""The text of configuration files, as RocketMQ 5.5 writes it: fastjson2's pretty form.

* One TAB per level, every member of an object on its own line, no blank after the colon, no line
  end behind the last brace; an empty object is ``{}``.
* Members of a struct in the order of their wire names, ``None`` left out; dictionaries in their own
  order (Java's come in hash order, which nobody relies on).
* Integer keys are bare, which makes it no JSON. Older releases put all of them on one line.
* A list of numbers stands on one line, any other with one item per line.
* Only quotes, backslashes and control characters are escaped.

Reading is the business of :func:`skylark.wire.fastjson.decode_body`, which takes all of these
forms, older ones and plain JSON.

Answers to Java's ``RemotingSerializable.toJson(object, true)``.
"""

from __future__ import annotations

from functools import cache
from json.encoder import encode_basestring
from typing import Any

import msgspec

from skylark.wire.fastjson_writer import write


def pretty(value: Any) -> str:
    """The text of a struct, dictionary or list."""
    out: list[str] = []
    _write(out, value, "\n")
    return "".join(out)


@cache
def _members(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """(attribute, ``"wireName"``) of a struct's fields, sorted by wire name."""
    pairs = sorted((field.encode_name, field.name) for field in msgspec.structs.fields(struct))
    return tuple((name, encode_basestring(wire_name)) for wire_name, name in pairs)


def _write(out: list[str], value: Any, margin: str) -> None:
    """Append the text of ``value``; ``margin`` is the line end and indentation around it."""
    if type(value) is int:  # the most by far, in tables of offsets
        out.append(repr(value))
    elif isinstance(value, msgspec.Struct):
        members = ((key, getattr(value, name)) for name, key in _members(type(value)))
        _write_object(out, members, margin)
    elif isinstance(value, dict):
        _write_object(out, ((_key(key), member) for key, member in value.items()), margin)
    elif isinstance(value, list) and value and not all(type(item) is int for item in value):
        inner = margin + "\t"
        for position, item in enumerate(value):
            out.append(("," if position else "[") + inner)
            _write(out, item, inner)
        out.append(margin + "]")
    else:
        out.append(write(value))


def _write_object(out: list[str], members: Any, margin: str) -> None:
    inner = margin + "\t"
    opening = "{"
    for key, member in members:
        if member is not None:
            out.append(f"{opening}{inner}{key}:")
            _write(out, member, inner)
            opening = ","
    out.append("{}" if opening == "{" else margin + "}")


def _key(key: str | int) -> str:
    return encode_basestring(key) if isinstance(key, str) else repr(key)
