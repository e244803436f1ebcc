"""Reads and writes the frame of one command: the plain codec, with prepared layouts and templates.

``read`` turns the bytes of a header into a :class:`~skylark.wire.command.Command`; ``write`` turns
a response into the bytes of a frame. The plain codec defines what both do: ``header_json``,
``header_binary`` and ``fields``. This module adds two accelerations, which no caller has to know:

*Reading.* A busy client sends the same binary header again and again with two or three values
changed. Building a map of a dozen fields from it, and a custom header from the map, is most of the
work of reading such a request. ``read`` remembers where the values are
(:mod:`skylark.wire.header_layout`) and returns a :class:`LazyCommand`: its ``ext`` map is built at
its first use, and its :meth:`~LazyCommand.header` copies the custom header of an earlier request of
the same layout and sets the values that differ. All other headers go through the plain codec.

*Writing.* Replies to sends and pulls are most of what a broker writes, and they differ in a few
numbers. Such a reply is a :class:`ShapedResponse`: the values, and a :class:`ResponseShape` that
says which fields they are for::

    SHAPE = ResponseShape(0, {"queueId": DECIMAL, "queueOffset": DECIMAL, "transactionId": TEXT})
    frame = write(ShapedResponse(SHAPE, (3, 17, b"AC1100", request.opaque)))

The shape encodes everything but the values once. ``ShapedResponse.command`` gives the same response
as a plain command, for interceptors and for connections that want binary headers; ``write`` returns
the same bytes for both. Tests hold both accelerations to the plain codec, with any input.

Frame layout, written here and split from the stream in :mod:`skylark.wire.frame`:

====================  =====================================================
 0   4                L = 4 + header length + body length (without these 4)
 4   1                serialize type: 0 JSON, 1 ROCKETMQ binary
 5   3                header length, unsigned
 8   header length    header
 ..  the rest         body; length 0 reads as "no body"
====================  =====================================================

Counterpart of Java's ``RemotingCommand.headerDecode`` and ``fastEncodeHeader``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast, final

import msgspec

from skylark.core.errors import HeaderFieldError, LocalProtocolError, RemoteProtocolError
from skylark.wire.codes import CURRENT_VERSION, LANGUAGE_NAMES
from skylark.wire.command import FLAG_RESPONSE, SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.fields import HeaderT, decode_ext, decode_ext_by_field, field_digits
from skylark.wire.header_binary import (
    FIXED,
    HEADER_SIZE_MIN,
    decode_binary_header,
    encode_binary_header,
)
from skylark.wire.header_json import decode_json_header, encode_json_header
from skylark.wire.header_layout import Layout, LayoutTable

#: Java's com.rocketmq.remoting.frameMaxLength: the whole frame, length word included.
FRAME_SIZE_MAX: Final = 16_777_216
#: L, then type byte and 24-bit header length in one word.
PREFIX: Final = struct.Struct(">iI")
assert PREFIX.size == 8
#: The header length in the second word of the prefix.
HEADER_SIZE_MASK: Final = 0xFF_FFFF

_unpack_fixed = FIXED.unpack_from
_pack_prefix = PREFIX.pack
_LENGTH_MAX: Final = FRAME_SIZE_MAX - 4
#: The prefix of a JSON frame without a body, by header length: a lookup is cheaper than packing.
_PREFIXES: Final = tuple(_pack_prefix(4 + size, size) for size in range(1024))
_layouts = LayoutTable()
#: The struct field behind the property ``LazyCommand.ext``.
_EXT_FIELD: Final[Any] = Command.__dict__["ext"]


# --- reading --------------------------------------------------------------------------------------


def read(header: bytes, serialize_type: int) -> Command:
    """Decode a header of this serialize type; the caller sets the body.

    Raises RemoteProtocolError where the plain codec does.
    """
    if serialize_type == SERIALIZE_JSON:
        return decode_json_header(header)
    if serialize_type != SERIALIZE_BINARY:
        raise RemoteProtocolError(f"serialize type {serialize_type} is neither JSON nor ROCKETMQ")
    if len(header) < HEADER_SIZE_MIN:
        return decode_binary_header(header)  # raises
    code, language, version, opaque, flag, remark_size = _unpack_fixed(header)
    if not remark_size and (known := _layouts.find(header, code)) is not None:
        layout, values = known
        return LazyCommand(
            code=code,
            flag=flag,
            language=LANGUAGE_NAMES.get(language, language),
            opaque=opaque,
            version=version,
            serialize_type=SERIALIZE_BINARY,
            layout=layout,
            values=values,
        )
    command = decode_binary_header(header)
    if not remark_size and command.ext is not None and command.ext_entries is None:
        _layouts.add(header, code, command.ext)
    return command


class LazyCommand(Command, kw_only=True, gc=False):
    """A command read by a known layout: it holds the values that differ between such headers.

    ``ext`` builds the map on first use. From then on the map is what counts, because the caller may
    have changed it. Functions of ``msgspec.structs`` bypass the property: use ``ext`` before them.
    """

    layout: Layout
    #: Values of ``layout.names``; None once there is a map.
    values: tuple[str, ...] | None

    @property  # type: ignore[misc]  # a field in the base class
    def ext(self) -> dict[str, str] | None:
        values = self.values
        if values is not None:
            _EXT_FIELD.__set__(self, self.layout.ext(values))
            self.values = None
        return cast("dict[str, str] | None", _EXT_FIELD.__get__(self))

    @ext.setter
    def ext(self, ext: dict[str, str] | None) -> None:
        _EXT_FIELD.__set__(self, ext)
        self.values = None

    def header(self, header_type: type[HeaderT]) -> HeaderT:
        """The custom header, without building the ``ext`` map where possible."""
        if (values := self.values) is not None:
            readers = self.layout.readers
            if header_type not in readers:
                readers[header_type] = _header_reader(header_type, self.layout, values)
            reader = readers[header_type]
            if reader is not None and (header := reader.read(values)) is not None:
                return header  # type: ignore[no-any-return]  # a cast would be a call
        return decode_ext(header_type, self.ext)

    @property
    def memory_size(self) -> int:
        if self.values is None:
            return super().memory_size
        return len(self.body or b"") + self.layout.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return _field_values(self) == _field_values(other)

    __ne__ = object.__ne__  # the negation of __eq__; Struct would compare its own fields
    __hash__ = None  # type: ignore[assignment]


def _field_values(command: Command) -> list[object]:
    return [getattr(command, name) for name in Command.__struct_fields__]


class _HeaderReader:
    """Builds custom headers of one type for commands of one layout, from an example."""

    __slots__ = ("_example", "_numbers", "_texts")

    def __init__(
        self, example: object, texts: list[tuple[int, str]], numbers: list[tuple[int, str, int]]
    ) -> None:
        """Index of each value that changes, its attribute, and for numbers the digits allowed."""
        self._example = cast("Any", example)
        self._texts = texts
        self._numbers = numbers

    def read(self, values: tuple[str, ...]) -> Any:
        """The header; None if a number needs the plain codec (a sign, many digits, an error)."""
        header = self._example.__copy__()
        for index, attribute in self._texts:
            setattr(header, attribute, values[index])
        for index, attribute, digits_max in self._numbers:
            value = values[index]
            if not value.isdecimal() or len(value) > digits_max:
                return None
            setattr(header, attribute, int(value))
        return header


def _header_reader(
    header_type: type[HeaderT], layout: Layout, values: tuple[str, ...]
) -> _HeaderReader | None:
    """A reader for headers like this one; None if they need the map. Raises as ``decode_ext``.

    Values that no field declares are ignored, as by ``decode_ext``. Where its two ways disagree
    about this header, another value may take the other way: then there is no reader.
    """
    ext = layout.ext(values)
    example = decode_ext(header_type, ext)
    try:
        if decode_ext_by_field(header_type, ext) != example:
            return None
    except HeaderFieldError:
        return None
    texts: list[tuple[int, str]] = []
    numbers: list[tuple[int, str, int]] = []
    for index, name in enumerate(layout.names):
        found = field_digits(header_type).get(name)
        if found is None:
            continue
        attribute, digits_max = found
        if digits_max is None:
            return None
        if digits_max:
            numbers.append((index, attribute, digits_max))
        else:
            texts.append((index, attribute))
    return _HeaderReader(example, texts, numbers)


# --- writing --------------------------------------------------------------------------------------


class Slot(msgspec.Struct, frozen=True):
    """A field of a shape whose value comes with each response; see DECIMAL, TEXT, ``hex_slot``."""

    #: How ``bytes %`` formats the value.
    form: str

    def text(self, value: int | bytes) -> str:
        """The value as the field holds it."""
        return (self.form.encode() % value).decode()


#: An integer in decimal.
DECIMAL: Final = Slot("%d")
#: UTF-8 bytes. A shape has at most one; a value of ASCII letters and digits is written fastest.
TEXT: Final = Slot("%b")


def hex_slot(prefix: str) -> Slot:
    """An integer as 16 upper-case hex digits after a fixed text, as in a message id."""
    return Slot(prefix.replace("%", "%%") + "%016X")


Value: TypeAlias = int | bytes


class ResponseShape:
    """Code, remark and ext fields of responses that differ only in the values of some fields."""

    __slots__ = ("_code", "_fields", "_remark", "form", "text_index")

    def __init__(
        self, code: int, fields: Mapping[str, str | Slot], remark: str | None = None
    ) -> None:
        """``fields`` in the order of the ext map: a fixed text, or a slot for a value."""
        slots = [field for field in fields.values() if isinstance(field, Slot)]
        if slots.count(TEXT) > 1:
            raise ValueError(f"a shape has at most one TEXT, these have more: {[*fields]}")
        self._code = int(code)
        self._fields = dict(fields)
        self._remark = remark
        #: Index of the TEXT among the values.
        self.text_index: int | None = slots.index(TEXT) if TEXT in slots else None
        #: The JSON header as a ``bytes %`` format of the values and the opaque.
        self.form: bytes = self._make_form()

    def command(self, values: Sequence[Value], body: bytes | None = None) -> Command:
        """The plain command; raises LocalProtocolError if a text is not UTF-8."""
        *rest, opaque = values
        if not isinstance(opaque, int):
            raise TypeError("the last value of a response is the opaque")
        remaining = iter(rest)
        try:
            ext = {
                name: field if isinstance(field, str) else field.text(next(remaining))
                for name, field in self._fields.items()
            }
        except UnicodeDecodeError as error:
            raise LocalProtocolError(f"a value of the response is not UTF-8: {error}") from error
        return self._command(ext, opaque, body)

    def _command(self, ext: dict[str, str], opaque: int, body: bytes | None) -> Command:
        return Command(
            code=self._code,
            flag=FLAG_RESPONSE,
            opaque=opaque,
            remark=self._remark,
            ext=ext,
            body=body,
            version=CURRENT_VERSION,
        )

    def _make_form(self) -> bytes:
        """Encodes an example with marks in place of values, then replaces each by its format."""
        opaque = 1 << 30
        texts = [*self._fields, *self._fields.values(), self._remark]
        mark = "<"  # made longer until no fixed text contains it
        while any(isinstance(text, str) and mark in text for text in texts):
            mark += "<"
        ext: dict[str, str] = {}
        forms: dict[str, str] = {}
        for name, field in self._fields.items():
            if isinstance(field, str):
                ext[name] = field
            else:
                ext[name] = f"{mark}{len(forms)}>"
                forms[f'"{ext[name]}"'] = f'"{field.form}"'
        # Quotes within texts are escaped, so none of these patterns can match inside a text.
        forms[f'"opaque":{opaque},'] = '"opaque":%d,'
        header = encode_json_header(self._command(ext, opaque, None)).decode().replace("%", "%%")
        for pattern, form in forms.items():
            header = header.replace(pattern, form)
        return header.encode()


@final
class ShapedResponse(msgspec.Struct, gc=False):
    """A response of a known shape. The last of ``values`` is the ``opaque`` of the request."""

    shape: ResponseShape
    values: tuple[Value, ...]
    body: bytes | memoryview | None = None

    def command(self) -> Command:
        """The same response as a plain command, its body copied."""
        return self.shape.command(self.values, None if self.body is None else bytes(self.body))


def write(response: Command | ShapedResponse) -> bytes:
    """The whole frame of a command as one byte string. A shaped response gets a JSON header.

    Raises LocalProtocolError for a frame that is too large or text that is not UTF-8.
    """
    if type(response) is ShapedResponse:  # cheaper than isinstance; the class is final
        shape = response.shape
        values = response.values
        text_index = shape.text_index
        # Letters and digits need no JSON escape. bytes.isalnum accepts ASCII alone.
        if text_index is not None and not values[text_index].isalnum():  # type: ignore[union-attr]
            return write(response.command())
        header = shape.form % values
        header_size = len(header)
        if (content := response.body) is None:
            if header_size < len(_PREFIXES):
                return _PREFIXES[header_size] + header
            content = b""
        length = 4 + header_size + len(content)
        if length > _LENGTH_MAX:
            raise LocalProtocolError(f"a frame of {length + 4} bytes exceeds {FRAME_SIZE_MAX}")
        return b"".join((_pack_prefix(length, header_size), header, content))
    if body := response.body:
        return write_head(response, len(body)) + body
    return write_head(response, 0)


def write_head(command: Command, body_size: int) -> bytes:
    """Prefix and header of a frame whose body of ``body_size`` bytes the caller sends after it."""
    if command.serialize_type == SERIALIZE_BINARY:
        header = encode_binary_header(command)
    else:
        header = encode_json_header(command)
    header_size = len(header)
    length = 4 + header_size + body_size
    if header_size > HEADER_SIZE_MASK or length + 4 > FRAME_SIZE_MAX:
        raise LocalProtocolError(
            f"a frame of {length + 4} bytes (code {command.code}) exceeds {FRAME_SIZE_MAX}"
        )
    return _pack_prefix(length, command.serialize_type << 24 | header_size) + header
