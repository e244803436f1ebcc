"""Validation of names, bodies and properties before a message is sent.

Names are checked as the application gives them, bodies before compression. Errors have the texts of
Java's client. Counterpart of Java's ``Validators`` and of the checks of
``Message.putUserProperty``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec import UNSET

from skylark.client.core.argument_checks import shown
from skylark.client.core.client_message import Message, MessageExt
from skylark.core.errors import ClientError, ConfigError, InvalidMessageError
from skylark.core.names import (
    DEFAULT_PRODUCER_GROUP,
    group_problem,
    send_problem,
    topic_problem,
)
from skylark.wire.properties import (
    ITEM_END,
    NAME_END,
    PROPERTY_INNER_MULTI_DISPATCH,
    is_reserved,
)

MESSAGE_SIZE_MAX: Final = 4 * 1024 * 1024  # maxMessageSize
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
_RESERVED_GROUPS: Final = frozenset({DEFAULT_PRODUCER_GROUP, DEFAULT_CONSUMER_GROUP})
_PATH_SEPARATOR: Final = "/"


def check_group(group: str) -> None:
    """Raise ClientError unless an application may use this name for a group."""
    _check_text(group, "a group")
    problem = group_problem(group)
    if problem is None and group in _RESERVED_GROUPS:
        problem = f"the group cannot be {group}, which is reserved: choose another name"
    if problem is not None:
        raise ClientError(problem)


def check_topic(topic: str) -> None:
    """Raise ClientError unless this can be the name of a topic."""
    _check_text(topic, "a topic")
    problem = topic_problem(topic)
    if problem is not None:
        raise ClientError(problem)


def check_hooks(hooks: Iterable[object]) -> tuple[object, ...]:
    """The hooks of a client as a tuple; raises ConfigError if it is not a list."""
    if isinstance(hooks, (str, bytes)) or not isinstance(hooks, Iterable):
        raise ConfigError(f"hooks must be a list of objects, not {shown(hooks)}")
    return tuple(hooks)


def not_a_message(given: object) -> InvalidMessageError:
    """The error for an argument that is not a Message."""
    hint = "Message(topic, body)"
    if isinstance(given, MessageExt):
        hint = "a message that was received is sent again as Message(m.topic, m.body, tag=m.tag)"
    return InvalidMessageError(f"message must be a Message, not {shown(given)}", hint=hint)


def too_many_arguments(message: object) -> InvalidMessageError:
    """The error for a send with more than the message, such as a topic and a body."""
    if not isinstance(message, Message):
        return not_a_message(message)
    return InvalidMessageError(
        "a send takes one message, and its options by keyword", hint="send(message, delay=10)"
    )


def checked_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages of a batch as a tuple; raises InvalidMessageError if it is not a list."""
    if isinstance(messages, (str, bytes, Message)) or not isinstance(messages, Iterable):
        raise InvalidMessageError(
            f"messages must be a list of Message, not {shown(messages)}", hint="[message]"
        )
    return tuple(messages)


def check_message(message: Message, size_max: int = MESSAGE_SIZE_MAX) -> None:
    """Raise ClientError for an invalid topic, InvalidMessageError for other problems."""
    if not isinstance(message, Message):
        raise not_a_message(message)
    topic, body = message.topic, message.body
    _check_text(topic, "a topic")
    problem = _problem_of_sending_to(topic)
    if problem is not None:
        raise ClientError(problem)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessageError(
            f"the message body is {type(body).__name__}, not bytes",
            hint=_how_to_encode(body),
        )
    if not 1 <= len(body) <= size_max:
        if message.value is not UNSET:
            raise InvalidMessageError(
                "the message has a value, and the producer has no value_serializer",
                hint="Producer(group, options, value_serializer=json_serializer)",
            )
        if not body:
            raise InvalidMessageError("the message body length is zero")
        raise InvalidMessageError(
            f"the message body size over max value, MAX: {size_max}, not {len(body)}",
            hint="split it, or raise max_message_size here and at the broker",
        )
    if message.properties:
        check_properties(message.properties)


def _how_to_encode(body: object) -> str | None:
    """The hint for a body that is not bytes."""
    if isinstance(body, str):
        return "encode text: body.encode()"
    if body is None:
        return None
    return (
        "encode it, as with json.dumps(body).encode(), or let the producer do so:"
        " Producer(..., value_serializer=json_serializer) and Message(topic, value=...)"
    )


def _check_text(name: object, of_what: str) -> None:
    if not isinstance(name, str):
        raise ClientError(f"the name of {of_what} is text, not {type(name).__name__}")


@lru_cache(maxsize=1024)
def _problem_of_sending_to(topic: str) -> str | None:
    return topic_problem(topic) or send_problem(topic)


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidMessageError unless an application may set these."""
    if not isinstance(properties, Mapping):
        raise InvalidMessageError(
            f"properties must be a mapping of text to text, not {shown(properties)}"
        )
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessageError(f"the name and value of property {name!r} must be text")
        if not name.strip() or not value.strip():
            raise InvalidMessageError(
                f"The name or value of property can not be blank string! {name!r}"
            )
        if NAME_END in name or ITEM_END in name or ITEM_END in value:
            raise InvalidMessageError(f"property {name!r} contains a separator (0x01 or 0x02)")
        if is_reserved(name):
            raise InvalidMessageError(
                f"The Property<{name}> is used by system, input another please",
                hint="use the parameters tag, keys and delay",
            )
    dispatch = properties.get(PROPERTY_INNER_MULTI_DISPATCH, "")
    if _PATH_SEPARATOR in dispatch:
        raise InvalidMessageError(
            f"INNER_MULTI_DISPATCH {dispatch} can not contains path separator"
        )
