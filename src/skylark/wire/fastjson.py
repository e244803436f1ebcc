"""Bodies of commands: bytes to typed structs and back, in the dialect of Java's fastjson.

:func:`decode_body` and :func:`encode_body` are the whole interface. The dialect is described in
:mod:`skylark.wire.fastjson_reader` and :mod:`skylark.wire.fastjson_writer`.

There are two decoders:

* The fast one is a reused ``msgspec`` decoder. It serves heartbeats, routes in standard JSON and
  registrations.
* A body that msgspec refuses goes to the dialect decoder. It is parsed (by msgspec without a type
  if it is proper JSON, else by our own reader) and then *shaped*, guided by the type: bare and
  quoted integer keys, objects as keys, enums given by ordinal, unknown names of enums (left out, as
  Java makes them null), ``null`` for numbers (left out), numbers in place of text.

Both accept numbers in quotes, unknown members and missing ones. A body that contains ``"$ref"``
always goes to the dialect decoder, because the fast one would read an empty object there.

The dialect decoder reads about 5 MB a second, on the event loop, so it refuses large bodies unless
their type allows them by a class variable ``dialect_size_max``: the types of tables that brokers
send do, those of bodies that any client may send do not.

References make a small body expand to a large one: ``$.a`` may occur a thousand times, each time
with a thousand ``$.b`` inside. Shaping therefore counts the entries, and stops at a fixed multiple
of the body's size.

Counterpart of Java's ``RemotingSerializable``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from functools import cache
from types import GenericAlias
from typing import Any, Final, TypeVar, overload

import msgspec
from msgspec import inspect

from skylark.core.errors import RemoteProtocolError
from skylark.wire.fastjson_reader import SIZE_MAX, ObjectKey, parse
from skylark.wire.fastjson_writer import write

T = TypeVar("T")

#: Size limit of the dialect decoder for types without ``dialect_size_max``.
DIALECT_SIZE_MAX: Final = 1024 * 1024

#: Entries visited per byte of a body before shaping gives up. Without references it is below one.
ENTRIES_PER_BYTE_MAX: Final = 4

_is_integer = re.compile(r"-?[0-9]{1,20}").fullmatch


def encode_body(value: Any, *, standard: bool = False) -> bytes:
    """The bytes of a body. ``standard`` gives JSON that any parser accepts, all in ASCII."""
    # Java's encoder writes half a surrogate pair as "?", and so does "replace".
    return write(value, standard=standard).encode("utf-8", "replace")


@overload
def decode_body(body_type: type[T], data: bytes, *, size_max: int = SIZE_MAX) -> T: ...


@overload
def decode_body(body_type: GenericAlias, data: bytes, *, size_max: int = SIZE_MAX) -> Any: ...


def decode_body(body_type: Any, data: bytes, *, size_max: int = SIZE_MAX) -> Any:
    """Read a body as ``body_type``, which is a struct or a list or dict of such.

    The only exception is :class:`~skylark.core.errors.RemoteProtocolError`.
    """
    if len(data) > size_max:
        raise RemoteProtocolError(f"a JSON body of {len(data)} bytes is over the limit {size_max}")
    if b'"$ref"' not in data:
        try:
            decoded = _decoder(body_type).decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # msgspec refuses it: the dialect decoder decides whether it is an error
        else:
            return decoded
    dialect_size_max = getattr(body_type, "dialect_size_max", DIALECT_SIZE_MAX)
    if len(data) > dialect_size_max:
        raise RemoteProtocolError(
            f"a body of {len(data)} bytes is over the limit of {dialect_size_max} for a"
            f" {_name(body_type)} that is not plain JSON"
        )
    value = _parse_quickly(data)
    shape = _shape_of(body_type)
    if shape is not None:
        value = shape(value, _Budget(ENTRIES_PER_BYTE_MAX * len(data)))
    return _converted(value, body_type)


@cache
def _decoder(body_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(body_type, strict=False)


def _parse_quickly(data: bytes) -> Any:
    if b'"$ref"' not in data:
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # not standard JSON
    return parse(data, size_max=len(data))


def _converted(value: Any, body_type: Any) -> Any:
    try:
        return msgspec.convert(value, body_type, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"the body is not a {_name(body_type)}: {error}") from error


def _name(body_type: Any) -> str:
    return str(getattr(body_type, "__name__", body_type))


# ---- shaping -----------------------------------------------------------------------------------

_ABSENT: Final = object()  # returned for values to be left out


class _Budget:
    """Counts down the entries that one body may still expand to."""

    __slots__ = ("_left",)

    def __init__(self, entries_max: int) -> None:
        self._left = entries_max

    def spend(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise RemoteProtocolError("the references of the body expand to too much")


#: Brings a parsed value into the form that ``msgspec.convert`` expects.
Shape = Callable[[Any, _Budget], Any]


@cache
def _shape_of(body_type: Any) -> Shape | None:
    return _compile(inspect.type_info(body_type))


def _compile(info: inspect.Type) -> Shape | None:
    """The shape of one type; ``None`` if values of the type need no change."""
    if isinstance(info, inspect.UnionType):
        (info,) = (each for each in info.types if not isinstance(each, inspect.NoneType))
    if isinstance(info, inspect.StructType):
        return _struct_shape(info)
    if isinstance(info, inspect.DictType):
        return _dict_shape(info)
    if isinstance(info, inspect.ListType):
        return _list_shape(info)
    if isinstance(info, inspect.EnumType):
        return _enum_shape(info.cls)
    if isinstance(info, inspect.StrType):
        return _text
    return None


def _struct_shape(info: inspect.StructType) -> Shape:
    shapes = {field.encode_name: _compile(field.type) for field in info.fields}

    def shape(value: Any, budget: _Budget) -> Any:
        if not isinstance(value, dict):
            return value
        budget.spend(len(value) + 1)
        members = {}
        for name, member in value.items():
            if member is None or name not in shapes:
                continue
            member_shape = shapes[name]
            shaped = member if member_shape is None else member_shape(member, budget)
            if shaped is not _ABSENT:
                members[name] = shaped
        return members

    return shape


def _dict_shape(info: inspect.DictType) -> Shape:
    key_of = _key_shape(info.key_type)
    value_shape = _compile(info.value_type)

    def shape(value: Any, budget: _Budget) -> Any:
        if not isinstance(value, dict):
            return value
        budget.spend(len(value) + 1)
        entries = {}
        for key, member in value.items():
            shaped = member if value_shape is None else value_shape(member, budget)
            if shaped is not None and shaped is not _ABSENT:
                entries[key_of(key)] = shaped
        return entries

    return shape


def _list_shape(info: inspect.ListType) -> Shape:
    item_shape = _compile(info.item_type)

    def shape(value: Any, budget: _Budget) -> Any:
        if not isinstance(value, list):
            return value
        budget.spend(len(value) + 1)
        items = value if item_shape is None else [item_shape(item, budget) for item in value]
        return [item for item in items if item is not None and item is not _ABSENT]

    return shape


def _enum_shape(cls: type[enum.Enum]) -> Shape:
    by_name = cls.__members__
    by_ordinal = tuple(cls)

    def shape(value: Any, budget: _Budget) -> Any:
        if isinstance(value, str):
            return by_name.get(value, _ABSENT)
        if isinstance(value, int) and 0 <= value < len(by_ordinal):
            return by_ordinal[value]
        return _ABSENT

    return shape


def _text(value: Any, budget: _Budget) -> Any:
    """fastjson accepts numbers and booleans in place of a string."""
    if isinstance(value, (bool, int, float)):
        return write(value)
    return value


def _key_shape(info: inspect.Type) -> Callable[[Any], Any]:
    if isinstance(info, inspect.StructType):
        struct = info.cls
        struct_shape = _struct_shape(info)

        def struct_key(key: Any) -> Any:
            """An object, or a string that holds the JSON of one."""
            bean = parse(key) if isinstance(key, str) else key
            if isinstance(bean, ObjectKey):
                bean = dict(bean)
            if not isinstance(bean, dict):
                raise RemoteProtocolError("a key of the body is not an object")
            return _converted(struct_shape(bean, _Budget(len(bean) + 1)), struct)

        return struct_key
    return _integer_key if isinstance(info, inspect.IntType) else _text_key


def _integer_key(key: Any) -> int:
    if isinstance(key, int):
        return key
    if isinstance(key, str) and _is_integer(key):
        return int(key)
    raise RemoteProtocolError("a key of the body is not an integer")


def _text_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int):
        return str(key)
    raise RemoteProtocolError("a key of the body is not a string")
