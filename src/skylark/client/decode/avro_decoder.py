"""Avro bodies: one value each, without file header; the schema comes from elsewhere."""

from __future__ import annotations

import io
from typing import Any

import msgspec

from skylark.client.decode.body_decoders import DecodeError
from skylark.core.errors import ConfigError


def parse_schema(text: bytes) -> Any:
    """Parse a schema in JSON; raises ConfigError."""
    try:
        import fastavro
    except ImportError:
        raise ConfigError(
            "the format avro needs fastavro", hint='pip install "skylark-mq[schemas]"'
        ) from None
    try:
        return fastavro.parse_schema(msgspec.json.decode(text))
    except (msgspec.DecodeError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"the Avro schema cannot be read: {error}") from None
    except (fastavro.schema.UnknownType, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the Avro schema is not valid: {error!r}") from None


class AvroDecoder:
    """Decodes bodies with the schema of their writer."""

    def __init__(self, schema: bytes, *, reader_schema: bytes | None = None) -> None:
        """``reader_schema``: resolve the values to another version of the schema."""
        self._schema = parse_schema(schema)
        self._reader_schema = None if reader_schema is None else parse_schema(reader_schema)

    def decode(self, body: bytes) -> Any:
        import fastavro

        source = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(source, self._schema, self._reader_schema)
        except Exception as error:  # noqa: BLE001 - fastavro raises anything for broken bytes
            raise DecodeError(f"no Avro of this schema: {error or type(error).__name__}") from None
        if (left := len(body) - source.tell()) > 0:
            raise DecodeError(f"no Avro of this schema: {left} bytes are left")
        return value
