"""Serializers: convert values of an application to message bodies, and back.

::

    Producer("g", options, value_serializer=json_serializer).send(Message("T", value=order))
    PushConsumer("h", options, value_deserializer=json_deserializer(Order))  # message.value

A *serializer* is any function from a value to bytes, a *deserializer* any function from bytes to a
value; those below use msgspec, which knows its structs, dataclasses, dates and more. A producer
calls its serializer for messages that have a ``value`` instead of a body; a received message calls
the deserializer of its consumer at the first use of ``message.value``. So a body that cannot be
read fails in the handler, as other errors of a handler: the message is delivered again and becomes
a dead letter in the end, and the messages behind it are not held up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import msgspec

from skylark.client.core.argument_checks import shown
from skylark.client.core.client_message import (
    Message,
    MessageExt,
    json_decoder,
    set_deserializer,
)
from skylark.core.errors import InvalidMessageError
from skylark.wire.bodies.common_body import MessageQueue

T = TypeVar("T")

Serializer: TypeAlias = Callable[[Any], bytes]
Deserializer: TypeAlias = Callable[[bytes], Any]


def json_serializer(value: Any) -> bytes:
    """A value as JSON."""
    return msgspec.json.encode(value)


@overload
def json_deserializer() -> Callable[[bytes], Any]: ...


@overload
def json_deserializer(kind: type[T]) -> Callable[[bytes], T]: ...


def json_deserializer(kind: Any = Any) -> Callable[[bytes], Any]:
    """A function that reads JSON as dicts and lists, or as an object of a type."""
    return json_decoder(kind).decode


def msgpack_serializer(value: Any) -> bytes:
    """A value as MessagePack, which is smaller than JSON."""
    return msgspec.msgpack.encode(value)


@overload
def msgpack_deserializer() -> Callable[[bytes], Any]: ...


@overload
def msgpack_deserializer(kind: type[T]) -> Callable[[bytes], T]: ...


def msgpack_deserializer(kind: Any = Any) -> Callable[[bytes], Any]:
    """A function that reads MessagePack as dicts and lists, or as an object of a type."""
    return msgspec.msgpack.Decoder(kind).decode


def serialized(message: Message, serialize: Serializer) -> Message:
    """The message with its value as its body; raises InvalidMessageError."""
    if not isinstance(message, Message) or message.value is msgspec.UNSET:
        return message
    if message.body:
        raise InvalidMessageError("a message has a body or a value, not both")
    try:
        body = serialize(message.value)
    except Exception as error:
        raise InvalidMessageError(
            f"value_serializer cannot serialize {shown(message.value)}: {error!r}"
        ) from error
    if not isinstance(body, bytes):
        raise InvalidMessageError(f"value_serializer must return bytes, not {shown(body)}")
    return msgspec.structs.replace(message, body=body, value=msgspec.UNSET)


class DeserializingHook:
    """A filter hook that filters nothing, but tells received messages their deserializer."""

    def __init__(self, deserialize: Deserializer) -> None:
        self._deserialize = deserialize

    def filter_messages(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> None:
        """Called for pulled messages before handlers get them."""
        del queue
        set_deserializer(messages, self._deserialize)


def deserializing_hooks(deserialize: Deserializer | None) -> tuple[object, ...]:
    """The hooks of a consumer with a value_deserializer; none without one."""
    return () if deserialize is None else (DeserializingHook(deserialize),)
