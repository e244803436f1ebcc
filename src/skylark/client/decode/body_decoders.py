"""Decoders of message bodies, by the name of a format.

::

    decoder = make_decoder("avro", schema=Path("order.avsc").read_bytes())
    order = decoder.decode(message.body)  # a dictionary; raises DecodeError

=============  ===================================================================================
format         result and schema
=============  ===================================================================================
``text``       a string; UTF-8
``hex``        a string of hexadecimal digits
``json``       plain Python values; no schema
``msgpack``    the same
``avro``       a dictionary; the schema of the writer, as JSON (needs the extra ``schemas``)
``protobuf``   a dictionary; a descriptor set, and the name of the message (the same extra)
=============  ===================================================================================

With a ``registry`` the bodies of ``avro``, ``protobuf`` and ``json`` begin with the number of their
schema, as Confluent's serializers write it (:mod:`skylark.client.decode.schema_registry`).

A decoder is used by one thread at a time. It never raises anything but :class:`DecodeError` for a
body, however broken. With a registry it also raises
:class:`~skylark.client.decode.schema_registry.RegistryUnavailableError`, which says nothing about
the body: the same one can be decoded later.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from skylark.core.errors import ClientError, ConfigError

#: The formats, in the order in which they are shown.
FORMATS: Final = ("text", "hex", "json", "msgpack", "avro", "protobuf")
WITH_SCHEMA: Final = ("avro", "protobuf")
WITH_REGISTRY: Final = ("avro", "protobuf", "json")


class DecodeError(ClientError):
    """A body that is not of the format, or does not fit its schema."""


class Decoder(Protocol):
    """Decodes bodies of one format."""

    def decode(self, body: bytes) -> Any:
        """The value in a body; raises DecodeError."""


def make_decoder(
    name: str,
    *,
    schema: bytes | None = None,
    message: str | None = None,
    registry: str | None = None,
    kind: Any = Any,
) -> Decoder:
    """The decoder of a format; raises ConfigError for a wrong name, schema or combination.

    ``schema`` is the content of a schema file, ``message`` the name of a Protobuf message, and
    ``registry`` the URL of a schema registry. ``kind`` is the type that values of ``json`` must
    have, as :class:`JsonDecoder` takes it.
    """
    if name not in FORMATS:
        raise ConfigError(f"no format {name!r}", hint=f"there are {', '.join(FORMATS)}")
    if registry is not None and name not in WITH_REGISTRY:
        raise ConfigError(
            f"format {name} has no schemas in a registry", hint=f"use {', '.join(WITH_REGISTRY)}"
        )
    if schema is not None and name not in WITH_SCHEMA:
        raise ConfigError(f"format {name} takes no schema", hint=f"use {', '.join(WITH_SCHEMA)}")
    if message is not None and name != "protobuf":
        raise ConfigError("only the format protobuf has a name of the message")
    if name in WITH_SCHEMA and schema is None and registry is None:
        raise ConfigError(f"format {name} needs a schema, or a schema registry")
    if registry is not None:
        from skylark.client.decode.schema_registry import RegistryDecoder

        return RegistryDecoder(name, registry, schema=schema, message=message, kind=kind)
    return plain_decoder(name, schema, message, kind)


def plain_decoder(name: str, schema: bytes | None, message: str | None, kind: Any = Any) -> Decoder:
    """The decoder of bodies without registry framing."""
    if name == "avro":
        from skylark.client.decode.avro_decoder import AvroDecoder

        assert schema is not None, "make_decoder has checked it"
        return AvroDecoder(schema)
    if name == "protobuf":
        from skylark.client.decode.protobuf_decoder import ProtobufDecoder

        assert schema is not None, "make_decoder has checked it"
        return ProtobufDecoder(schema, message)
    if name == "json":
        return JsonDecoder(kind)
    kinds: dict[str, type[Decoder]] = {
        "text": TextDecoder,
        "hex": HexDecoder,
        "msgpack": MsgpackDecoder,
    }
    return kinds[name]()


class TextDecoder:
    """UTF-8 text."""

    def decode(self, body: bytes) -> str:
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"no UTF-8 text: {error.reason} at byte {error.start}") from None


class HexDecoder:
    """Hexadecimal digits of any bytes."""

    def decode(self, body: bytes) -> str:
        return body.hex()


class JsonDecoder:
    """JSON; ``kind`` is a type of msgspec by which values are checked."""

    def __init__(self, kind: Any = Any) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def decode(self, body: bytes) -> Any:
        try:
            return self._decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            kind = "not valid" if isinstance(error, msgspec.ValidationError) else "no JSON"
            raise DecodeError(f"{kind}: {error}") from None


class MsgpackDecoder:
    """MessagePack."""

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder().decode

    def decode(self, body: bytes) -> Any:
        try:
            return self._decode(body)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise DecodeError(f"no MessagePack: {error}") from None
