"""The ROCKETMQ binary header of a command.

====  ==========================================================================
 2    code, int16: request codes above 32767 do not survive and must go as JSON
 1    language code
 2    version, int16
 4    opaque
 4    flag
4+n   remark: length, UTF-8 bytes; length 0 is "no remark"
4+m   ext: byte length, then entries: key length int16, key, value length int32, value
====  ==========================================================================

A zero-length key or value reads as null, that is: absent. A key may occur twice (Java writes the
typed header first and then the map); the last one wins. Both cases are kept in
``Command.ext_entries``.

Bytes that are not UTF-8 become U+FFFD, as in Java: the request is answered, mostly with an error
about the name or number that it spoils.

This is the plain codec. Connections read through :mod:`skylark.wire.command_codec`, which decodes
headers of a layout that it knows faster, with the same result. Here the ext block is decoded to
text once, and its values are slices of that text. Counterpart of Java's ``RocketMQSerializable``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.codes import LANGUAGE_CODES, LANGUAGE_NAMES
from skylark.wire.command import SERIALIZE_BINARY, Command

Entries: TypeAlias = list[tuple[str | None, str | None]]

FIXED = struct.Struct(">hbhiii")  # code, language, version, opaque, flag, remark length
assert FIXED.size == 17
_LENGTH = struct.Struct(">i")
_ONE_LETTER_ENTRY = struct.Struct(">hBi")  # key length (if 1), the letter, value length
_KEY_LENGTH = struct.Struct(">h")
#: Largest request code that fits; a larger one must go with a JSON header.
CODE_MAX = 32_767
HEADER_SIZE_MIN = FIXED.size + _LENGTH.size
assert HEADER_SIZE_MIN == 21

_NAMELESS_ENTRY = bytes(6)  # key and value of length zero: the shortest entry there is
_LETTERS = tuple(chr(code) for code in range(256))


def decode_binary_header(header: bytes) -> Command:
    """Decode a binary header; the caller sets the body."""
    size = len(header)
    if size < HEADER_SIZE_MIN:
        raise RemoteProtocolError(f"a binary header has at least 21 bytes, this one {size}")
    code, language, version, opaque, flag, remark_size = FIXED.unpack_from(header)
    remark, ext, entries = _decode_variable_part(header, remark_size)
    return Command(
        code=code,
        ext=ext,
        flag=flag,
        language=LANGUAGE_NAMES.get(language, language),
        opaque=opaque,
        remark=remark,
        version=version,
        serialize_type=SERIALIZE_BINARY,
        ext_entries=entries,
    )


def _decode_variable_part(
    header: bytes, remark_size: int
) -> tuple[str | None, dict[str, str] | None, Entries | None]:
    """Remark, ext map, and the list of entries where the map does not hold all of them."""
    size = len(header)
    ext_at = FIXED.size + remark_size
    if remark_size < 0 or ext_at + 4 > size:
        raise RemoteProtocolError(f"remark length {remark_size} exceeds a header of {size} bytes")
    (ext_size,) = _LENGTH.unpack_from(header, ext_at)
    ext_at += 4
    end = ext_at + ext_size
    if ext_size < 0 or end > size:
        raise RemoteProtocolError(f"ext length {ext_size} exceeds a header of {size} bytes")
    remark = _decode(header[FIXED.size : FIXED.size + remark_size]) if remark_size else None
    if not ext_size:
        return remark, None, None
    ext, count = _decode_ext(header, ext_at, end)
    if ext is None or count != len(ext):
        return remark, ext, _decode_entries(header, ext_at, end)
    return remark, ext, None


def _decode_ext(header: bytes, position: int, end: int) -> tuple[dict[str, str] | None, int]:
    """The ext map, and how many entries the block has.

    The loop checks only the sign of sizes: an entry that overruns leaves ``position`` beyond
    ``end``, which one comparison after the loop finds.
    """
    text = header.decode("latin-1")
    unpack_one_letter = _ONE_LETTER_ENTRY.unpack_from
    letters = _LETTERS
    last = end - 7
    ext: dict[str, str] = {}
    count = 0
    while position <= last:
        key_size, letter, value_size = unpack_one_letter(header, position)
        if key_size == 1:
            key = letters[letter]
            position += 7
        else:
            key_end = position + 2 + key_size
            if key_size < 0 or key_end + 4 > end:
                raise RemoteProtocolError(f"ext key length {key_size} exceeds the header")
            key = text[position + 2 : key_end]
            (value_size,) = _LENGTH.unpack_from(header, key_end)
            position = key_end + 4
        value_end = position + value_size
        if value_size > 0 and key:
            ext[key] = text[position:value_end]
        elif value_size < 0:
            raise RemoteProtocolError(f"ext value length {value_size} is negative")
        count += 1
        position = value_end
    if position + 6 == end and header[position:end] == _NAMELESS_ENTRY:
        position = end
        count += 1
    if position != end:
        raise RemoteProtocolError("the ext entries do not fill their block of the header")
    if not text.isascii():  # usually only because of a byte in a length
        ext = {_from_latin(key): _from_latin(value) for key, value in ext.items()}
    return ext or None, count


def _from_latin(text: str) -> str:
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _decode_entries(header: bytes, position: int, end: int) -> Entries:
    """All entries in order, nulls and repetitions included; ``_decode_ext`` checked the bounds."""
    entries: Entries = []
    while position < end:
        (key_size,) = _KEY_LENGTH.unpack_from(header, position)
        key = _decode(header[position + 2 : position + 2 + key_size])
        position += 2 + key_size
        (value_size,) = _LENGTH.unpack_from(header, position)
        value = _decode(header[position + 4 : position + 4 + value_size])
        position += 4 + value_size
        entries.append((key or None, value or None))
    return entries


def encode_binary_header(command: Command) -> bytes:
    """Write the header of ``command``; codes above CODE_MAX do not fit and must go as JSON."""
    language = command.language
    if isinstance(language, str):
        language = LANGUAGE_CODES.get(language, LANGUAGE_CODES["OTHER"])
    entries = command.ext_entries
    try:
        remark = b"" if command.remark is None else command.remark.encode()
        ext = _encode_entries((command.ext or {}).items() if entries is None else entries)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"the header cannot be written as UTF-8: {error}") from error
    try:
        fixed = FIXED.pack(
            command.code, language or 0, command.version, command.opaque, command.flag, len(remark)
        )
    except struct.error as error:
        raise LocalProtocolError(
            f"code {command.code}, version {command.version} do not fit the binary header: {error}",
            hint="send this command with a JSON header",
        ) from error
    return b"".join((fixed, remark, _LENGTH.pack(len(ext)), ext))


def _encode_entries(entries: Iterable[tuple[str | None, str | None]]) -> bytes:
    parts = []
    for key, value in entries:
        key_bytes = (key or "").encode()
        value_bytes = (value or "").encode()
        if len(key_bytes) > 32767:
            raise LocalProtocolError(f"ext key of {len(key_bytes)} bytes: at most 32767")
        parts.append(_KEY_LENGTH.pack(len(key_bytes)))
        parts.append(key_bytes)
        parts.append(_LENGTH.pack(len(value_bytes)))
        parts.append(value_bytes)
    return b"".join(parts)
