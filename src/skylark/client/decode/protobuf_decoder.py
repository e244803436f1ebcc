"""Protobuf bodies: one message each, decoded by a descriptor set.

A descriptor set is what the compiler makes of ``.proto`` files::

    protoc --include_imports --descriptor_set_out=order.desc order.proto

Values become plain ones: a message is a dictionary with all its fields, an enumeration the name of
its value (or its number, if it has none), a map a dictionary. A field that is not set has its
default, and is None if it is a message or ``optional``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from skylark.client.decode.body_decoders import DecodeError
from skylark.core.errors import ConfigError


class ProtobufDecoder:
    """Decodes bodies that are one message of a type."""

    def __init__(self, schema: bytes, message: str | None = None) -> None:
        """``schema`` is a descriptor set; ``message`` the full name, needed if it has several."""
        self.descriptor = find_message(schema, message)
        from google.protobuf import message_factory

        self._type = message_factory.GetMessageClass(self.descriptor)
        self._plain = _message_reader(self.descriptor)

    def decode(self, body: bytes) -> dict[str, Any]:
        from google.protobuf.message import DecodeError as ProtobufError

        try:
            return self._plain(self._type.FromString(body))
        except (ProtobufError, UnicodeDecodeError) as error:
            name = self.descriptor.full_name
            raise DecodeError(f"no Protobuf message {name}: {error}") from None


def find_message(schema: bytes, message: str | None) -> Any:
    """The descriptor of a message in a descriptor set, or in one file of it; raises ConfigError."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError as ProtobufError
    except ImportError:
        raise ConfigError(
            "the format protobuf needs protobuf", hint='pip install "skylark-mq[schemas]"'
        ) from None
    files = descriptor_pb2.FileDescriptorSet()
    with suppress(ProtobufError):
        files.ParseFromString(schema)
    if not any(file.message_type for file in files.file):
        raise ConfigError(
            "this is no descriptor set of Protobuf messages",
            hint="make one: protoc --include_imports --descriptor_set_out=FILE order.proto",
        )
    names = [name for file in files.file for name in _names(file)]
    if message is None:
        own = _names(files.file[-1])
        if len(own) != 1:
            raise ConfigError(
                "the descriptor set has several messages", hint=f"name one: {', '.join(names)}"
            )
        message = own[0]
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise ConfigError(
            f"the descriptor set has no message {message}", hint=f"it has {', '.join(names)}"
        ) from None
    except TypeError as error:
        raise ConfigError(
            f"the descriptor set is not complete: {error}",
            hint="make it with protoc --include_imports",
        ) from None


def _names(file: Any) -> list[str]:
    return [f"{file.package}.{each.name}".lstrip(".") for each in file.message_type]


def descriptor_of_text(text: str) -> bytes:
    """The descriptor set of one file, which a registry sends in base64; raises DecodeError."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError as ProtobufError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.file.add().ParseFromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, ProtobufError) as error:
        raise DecodeError(f"the registry sent no descriptor: {error}") from None
    return files.SerializeToString()


Reader = Callable[[Any], Any]


def _message_reader(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """A function that makes a dictionary of a message."""
    readers: dict[str, dict[str, Reader]] = {}

    def fields_of(kind: Any) -> dict[str, Reader]:
        if kind.full_name not in readers:
            found: dict[str, Reader] = {}
            readers[kind.full_name] = found  # before its fields: a message may hold itself
            found.update({field.name: field_reader(field) for field in kind.fields})
        return readers[kind.full_name]

    def read(message: Any) -> dict[str, Any]:
        fields = fields_of(message.DESCRIPTOR)
        return {name: reader(message) for name, reader in fields.items()}

    def value_reader(field: Any) -> Reader:
        if field.message_type is not None:
            return read
        if field.enum_type is not None:
            names = {value.number: value.name for value in field.enum_type.values}
            return lambda value: names.get(value, str(value))
        return lambda value: value

    def field_reader(field: Any) -> Reader:
        name = field.name
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                of_value = value_reader(field.message_type.fields_by_name["value"])
                return lambda message: {
                    key: of_value(value) for key, value in getattr(message, name).items()
                }
            of_each = value_reader(field)
            return lambda message: [of_each(each) for each in getattr(message, name)]
        of_one = value_reader(field)
        if field.has_presence:
            return lambda message: (
                of_one(getattr(message, name)) if message.HasField(name) else None
            )
        return lambda message: of_one(getattr(message, name))

    return read
