"""Bodies with the number of their schema, which a schema registry knows, as Confluent writes them.

::

    byte 0      0: the version of this framing
    byte 1-4    the number of the schema, big-endian
    Protobuf    which message of the file: a count and indexes as zigzag varints; 0 is the first one
    rest        the value

The registry is asked once for each number (``GET /schemas/ids/<number>``); schemas never change.

=====================================  ===========================================================
the registry                           error
=====================================  ===========================================================
has no schema of this number (404)     :class:`~skylark.client.decode.body_decoders.DecodeError`
does not answer, or is overloaded or   :class:`RegistryUnavailableError`: the body may be good, and
broken (408, 429, 5xx)                 the next call asks again
=====================================  ===========================================================
"""

from __future__ import annotations

import struct
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec

from skylark.client.decode.body_decoders import DecodeError, Decoder, JsonDecoder
from skylark.core.errors import ConfigError, TransportError

_HEAD: Final = struct.Struct(">BI")  # version of the framing, number of the schema
assert _HEAD.size == 5
TIMEOUT_S: Final = 10.0
_ANSWER_SIZE_MAX: Final = 8 << 20
_INDEXES_MAX: Final = 32
#: Replies below 500 that pass: a time that was up, too many requests.
_PASSING: Final = (408, 429)


class RegistryUnavailableError(TransportError):
    """The schema registry does not answer, or not now; nothing is known about the body."""


class _Schema(msgspec.Struct):
    """The part of an answer that is used."""

    schema: str
    schema_type: str = msgspec.field(default="AVRO", name="schemaType")


class SchemaRegistry:
    """Fetches schemas by their number; remembers them."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{url!r} is no address of a schema registry", hint="such as http://host:8081"
            )
        self._url = url.rstrip("/")
        self._known: dict[int, _Schema] = {}

    def schema(self, number: int) -> _Schema:
        """A schema; raises DecodeError, RegistryUnavailableError."""
        if number not in self._known:
            self._known[number] = self._fetch(number)
        return self._known[number]

    def _fetch(self, number: int) -> _Schema:
        url = f"{self._url}/schemas/ids/{number}?format=serialized"
        request = Request(url, headers={"Accept": "application/json"})  # noqa: S310 - http only
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked above
                return msgspec.json.decode(answer.read(_ANSWER_SIZE_MAX), type=_Schema)
        except HTTPError as error:
            with error:  # it holds the connection
                text = f"the schema registry answers {error.code} for {number}"
            if error.code >= 500 or error.code in _PASSING:
                raise RegistryUnavailableError(text, hint=f"is {self._url} up?") from None
            raise DecodeError(text) from None
        except (URLError, HTTPException, OSError) as error:
            raise RegistryUnavailableError(
                f"the schema registry does not answer: {error}", hint=f"is {self._url} up?"
            ) from None
        except msgspec.DecodeError as error:
            raise DecodeError(f"the schema registry sent no schema: {error}") from None


class RegistryDecoder:
    """Decodes bodies that begin with the number of their schema."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        schema: bytes | None = None,
        message: str | None = None,
        kind: Any = Any,
    ) -> None:
        """``schema``: of Avro, the version to which values are resolved.

        Of Protobuf, it is used instead of the registry's. ``kind`` is the type of JSON values.
        """
        self._name = name
        self._schema = schema
        self._message = message
        self._kind = kind
        self._registry = SchemaRegistry(url)
        self._decoders: dict[tuple[int, tuple[int, ...]], Decoder] = {}

    def decode(self, body: bytes) -> Any:
        if len(body) < _HEAD.size:
            raise DecodeError(f"{len(body)} bytes are too few for the number of a schema")
        version, number = _HEAD.unpack_from(body)
        if version != 0:
            raise DecodeError(f"the first byte is {version}, and 0 before the number of a schema")
        start = _HEAD.size
        indexes: tuple[int, ...] = (0,)
        if self._name == "protobuf":
            indexes, start = read_indexes(body, start)
        key = (number, indexes)
        if key not in self._decoders:
            self._decoders[key] = self._make(number, indexes)
        return self._decoders[key].decode(body[start:])

    def _make(self, number: int, indexes: tuple[int, ...]) -> Decoder:
        found = self._registry.schema(number)
        if found.schema_type != self._name.upper():
            raise DecodeError(f"schema {number} is {found.schema_type}, not {self._name.upper()}")
        try:
            if self._name == "avro":
                from skylark.client.decode.avro_decoder import AvroDecoder

                return AvroDecoder(found.schema.encode(), reader_schema=self._schema)
            if self._name == "protobuf":
                return self._protobuf(found.schema, indexes)
        except ConfigError as error:
            raise DecodeError(f"schema {number}: {error}") from None
        return JsonDecoder(self._kind)

    def _protobuf(self, text: str, indexes: tuple[int, ...]) -> Decoder:
        from skylark.client.decode.protobuf_decoder import ProtobufDecoder, descriptor_of_text

        if self._schema is not None:
            return ProtobufDecoder(self._schema, self._message)
        schema = descriptor_of_text(text)
        return ProtobufDecoder(schema, self._message or _name_at(schema, indexes))


def _name_at(schema: bytes, indexes: tuple[int, ...]) -> str:
    """The name of the message that the indexes choose; raises DecodeError."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(schema).file[0]
    names, messages = [file.package] if file.package else [], file.message_type
    try:
        for index in indexes:
            chosen = messages[index]
            names.append(chosen.name)
            messages = chosen.nested_type
    except IndexError:
        raise DecodeError(f"the schema has no message {indexes}") from None
    return ".".join(names)


def read_indexes(body: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """The indexes of a Protobuf message, and where they end; raises DecodeError."""
    count, at = _varint(body, start)
    if count == 0:
        return (0,), at
    if not 0 < count <= _INDEXES_MAX:
        raise DecodeError(f"{count} indexes of a message are too many")
    found = []
    for _ in range(count):
        index, at = _varint(body, at)
        if index < 0:
            raise DecodeError(f"{index} is no index of a message")
        found.append(index)
    return tuple(found), at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift < 35:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise DecodeError("the indexes of the message are cut off")
