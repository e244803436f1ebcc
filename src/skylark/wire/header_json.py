"""The JSON header of a command: compact, members sorted by name, nulls left out.

``{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,``
``"serializeTypeCurrentRPC":"JSON","version":513}``

Writing is strict (every ext value is a JSON string: the Go client drops the connection
otherwise). Reading takes what real clients send: C++ writes ``"queueId":0`` as a number, numeric
members may arrive as strings, members may be missing or unknown, the language may be a name we do
not know or an ordinal. The strict decoder is tried first and serves nearly every frame; a header
that it refuses is decoded a second time, leniently.

A text may hold half of a surrogate pair (``"\\ud800"``). Java keeps it in a string and writes ``?``
when it encodes that string as UTF-8. Python's decoders refuse it, so the lenient decoder puts ``?``
in its place: the request is handled, where an error would close the connection and fail the other
requests on it. Counterpart of Java's ``RemotingSerializable`` and
``RemotingCommand.headerDecode``.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.core.java_text import java_double
from skylark.wire.command import SERIALIZE_JSON, Command
from skylark.wire.fields import INT32_MAX, INT32_MIN


class _JsonHeader(msgspec.Struct, omit_defaults=True):
    """The members in the order Java writes them; UNSET members are left out."""

    code: int
    extFields: dict[str, str] | msgspec.UnsetType
    flag: int
    language: str | int | msgspec.UnsetType
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str | msgspec.UnsetType
    version: int


_decode_strict = msgspec.json.Decoder(Command).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_UNSET = msgspec.UNSET

#: Every escape of a JSON text, so that an escaped backslash is not taken for the start of one. The
#: group matches half of a surrogate pair: escaped, or as the three bytes that are invalid UTF-8.
_ESCAPES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\xed[\xa0-\xbf][\x80-\xbf])"
    rb"|\\.",
    re.DOTALL,
)


def decode_json_header(header: bytes) -> Command:
    """Decode a JSON header; the caller sets the body."""
    try:
        command = _decode_strict(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(header)
    command.body = None
    command.serialize_type = SERIALIZE_JSON
    command.ext_entries = None
    return command


def _decode_leniently(header: bytes) -> Command:
    try:
        members = _decode_members(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the JSON header cannot be decoded: {error}") from error
    if not isinstance(members, dict):
        raise RemoteProtocolError("the JSON header is not an object")
    ext = members.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise RemoteProtocolError("extFields in the JSON header is not an object")
    remark = members.get("remark")
    label = members.get("serializeTypeCurrentRPC")
    language = members.get("language", "JAVA")
    return Command(
        code=_int_member(members, "code"),
        ext=None if ext is None else _ext_as_text(ext),
        flag=_int_member(members, "flag"),
        language=language if isinstance(language, (str, int)) else None,
        opaque=_int_member(members, "opaque"),
        remark=None if remark is None else _as_text(remark),
        serialize_label=label if isinstance(label, str) else None,
        version=_int_member(members, "version"),
    )


def _decode_members(header: bytes) -> Any:
    try:
        return _decode_any(header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = _ESCAPES.sub(_replace_lone_surrogate, header).decode("utf-8", "replace").encode()
        if mended == header:
            raise
        return _decode_any(mended)


def _replace_lone_surrogate(escape: re.Match[bytes]) -> bytes:
    return escape[0] if escape[1] is None else b"?"


def _int_member(members: dict[str, Any], name: str) -> int:
    value = members.get(name, 0)
    if isinstance(value, str):
        sign_free = value[1:] if value[:1] in ("+", "-") else value
        if not (sign_free.isdecimal() and len(value) <= 11):
            raise RemoteProtocolError(f"{name} in the JSON header is not a number: {value[:32]!r}")
        value = int(value)
    elif value is None:
        value = 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RemoteProtocolError(f"{name} in the JSON header is not a number")
    if not INT32_MIN <= value <= INT32_MAX:
        raise RemoteProtocolError(f"{name} in the JSON header is out of range")
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "0"
    if isinstance(value, float):
        return java_double(value)
    return _encode(value).decode()


def _ext_as_text(ext: dict[str, Any]) -> dict[str, str]:
    return {name: _as_text(value) for name, value in ext.items() if value is not None}


def encode_json_header(command: Command) -> bytes:
    """Encode the header of ``command``; the label is ``JSON`` unless the command has its own."""
    header = _JsonHeader(
        command.code,
        _UNSET if command.ext is None else command.ext,
        command.flag,
        _UNSET if command.language is None else command.language,
        command.opaque,
        _UNSET if command.remark is None else command.remark,
        command.serialize_label or "JSON",
        command.version,
    )
    try:
        return _encode(header)
    except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, OverflowError) as error:
        raise LocalProtocolError(f"the header cannot be written as JSON: {error}") from error
