"""Custom headers: declared once as structs, carried on the wire as a map of strings.

A RocketMQ command has a free ``extFields`` map (string to string). Each request and response code
defines a *custom header*: a set of named, typed fields put into that map. Here a custom header is
a :class:`Header` subclass::

    class GetMaxOffsetRequestHeader(Header, kw_only=True, rename="camel"):
        topic: str                  # required: no default
        queue_id: Int32             # on the wire: queueId
        committed: bool | None = None

Rules, all observed from Java (``RemotingCommand.decodeCommandCustomHeader``):

* a field that is ``None`` is absent from the map, anything else is written as text (integers in
  decimal, booleans ``true``/``false``, doubles as ``1.0``);
* integers are read base 10, a boolean is true only for the text ``true`` in any case (so ``1`` is
  false), entries that no field declares are ignored;
* a missing required field, or a required one that cannot be parsed, is a
  :class:`~skylark.core.errors.HeaderFieldError`: the request is answered with code 1;
* an optional field that cannot be parsed stays unset, except in headers of the "fast codec"
  (``strict_numbers = True``: send, pull), where it aborts the request too.

:func:`decode_ext` has two ways to the same result. The fast one lets msgspec convert the map in C;
it is used when every boolean is spelled ``true`` or ``false``. Maps that msgspec refuses go through
:func:`decode_ext_by_field`, which applies the rules above field by field. The fast way also reads
``1.0`` and ``1e3`` as integers, and ``null`` as an absent optional number, which Java refuses; no
client sends these, and accepting them does no harm.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from skylark.core.errors import HeaderFieldError
from skylark.core.java_text import java_double

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]


class Header(msgspec.Struct, kw_only=True, gc=False):
    """Base of all custom headers."""

    strict_numbers: ClassVar[bool] = False


HeaderT = TypeVar("HeaderT", bound=Header)


def _parse_int(text: str, low: int, high: int) -> int | None:
    """``Integer.parseInt``/``Long.parseLong``: optional sign, digits, nothing else."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or len(digits) > 40:
        return None
    value = int(text)
    return value if low <= value <= high else None


def _parse_int32(text: str) -> int | None:
    return _parse_int(text, INT32_MIN, INT32_MAX)


def _parse_int64(text: str) -> int | None:
    return _parse_int(text, INT64_MIN, INT64_MAX)


def _parse_bool(text: str) -> bool:
    return text.lower() == "true"


def _parse_float(text: str) -> float | None:
    try:
        return float(text.strip().rstrip("dDfF")) if "_" not in text else None
    except ValueError:
        return None


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


class _Field(msgspec.Struct, frozen=True):
    """Wire name and conversions of one declared field."""

    attribute: str
    wire_name: str
    required: bool
    default: Any
    parse: Callable[[str], Any]
    format: Callable[[Any], str]


_CODECS: dict[Any, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    str: (str, str),
    Int32: (_parse_int32, str),
    Int64: (_parse_int64, str),
    bool: (_parse_bool, _format_bool),
    float: (_parse_float, java_double),
}


def _scalar_type(annotation: Any) -> Any:
    """Strip ``| None``."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return members[0]
    return annotation


@cache
def header_fields(header_type: type[Header]) -> tuple[_Field, ...]:
    """The fields of a header in declaration order; a wrong declaration fails here, at first use."""
    hints = get_type_hints(header_type, include_extras=True)
    fields = []
    for info in msgspec.structs.fields(header_type):
        scalar = _scalar_type(hints[info.name])
        if scalar not in _CODECS:
            raise TypeError(f"{header_type.__name__}.{info.name}: no header field of type {scalar}")
        parse, fmt = _CODECS[scalar]
        default = None if info.required else info.default
        fields.append(_Field(info.name, info.encode_name, info.required, default, parse, fmt))
    return tuple(fields)


@cache
def _bool_names(header_type: type[Header]) -> tuple[str, ...]:
    return tuple(f.wire_name for f in header_fields(header_type) if f.parse is _parse_bool)


@cache
def field_digits(header_type: type[Header]) -> dict[str, tuple[str, int | None]]:
    """For each wire name: the attribute, and how many digits always fit its type.

    0 for a text, None for a field that is neither text nor integer.
    """
    digits = {str: 0, _parse_int32: 9, _parse_int64: 18}
    return {f.wire_name: (f.attribute, digits.get(f.parse)) for f in header_fields(header_type)}


_CANONICAL_BOOLS = frozenset(("true", "false", None))


def decode_ext(header_type: type[HeaderT], ext: Mapping[str, str] | None) -> HeaderT:
    """Read a custom header from the ``extFields`` of a command.

    Raises :class:`HeaderFieldError` for a missing or (where Java aborts) malformed field.
    """
    if ext is None:
        ext = {}
    for name in _bool_names(header_type):
        if ext.get(name) not in _CANONICAL_BOOLS:
            return decode_ext_by_field(header_type, ext)
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError:
        return decode_ext_by_field(header_type, ext)


def decode_ext_by_field(header_type: type[HeaderT], ext: Mapping[str, str]) -> HeaderT:
    """:func:`decode_ext` by Java's rules, field by field."""
    values: dict[str, Any] = {}
    for field in header_fields(header_type):
        text = ext.get(field.wire_name)
        value = None if text is None else field.parse(text)
        if text is not None and value is None and header_type.strict_numbers:
            raise HeaderFieldError(
                field.wire_name,
                f'the custom field <{field.wire_name}> is not a number: "{text[:64]}"',
            )
        if value is not None:
            values[field.attribute] = value
        elif field.required:
            raise HeaderFieldError(field.wire_name)
        else:
            values[field.attribute] = field.default
    return header_type(**values)


def encode_ext(header: Header) -> dict[str, str]:
    """The ``extFields`` of a custom header, in declaration order, ``None`` left out."""
    ext = {}
    for field in header_fields(type(header)):
        value = getattr(header, field.attribute)
        if value is not None:
            ext[field.wire_name] = field.format(value)
    return ext
