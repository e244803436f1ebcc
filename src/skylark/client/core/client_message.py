"""Messages and results of the client: to send, received, and the outcomes of both.

A :class:`Message` never changes: the client copies its properties, so the same object can be sent
again. A :class:`MessageExt` is a view of the record that the broker stored; body and properties are
decoded on access. Its topic is that of the send, also for a retry, which is stored in the retry
topic.

Counterpart of Java's ``Message``, ``MessageExt``, ``SendResult`` and ``MessageQueue``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Never, TypeVar, overload

import msgspec

from skylark.core.errors import ConfigError, InvalidMessageError, SkylarkError
from skylark.core.names import is_retry_topic
from skylark.filter.tag import is_selectable
from skylark.wire import properties as names
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.message import MessageRecord, format_host, inflate_record

T = TypeVar("T")

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
KEY_SEPARATOR: Final = " "


class Message(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """A message to send: with a body, or with a value for the producer's ``value_serializer``."""

    topic: str
    body: bytes = b""
    tag: str | None = None
    keys: Sequence[str] = ()  #: words by which ``skylark message query`` finds it
    properties: Mapping[str, str] = _NOTHING
    flag: int = 0
    wait_store_ok: bool = True  #: wait until disk and replicas have it, where the broker does so
    value: Any = msgspec.UNSET  #: instead of a body: what ``value_serializer`` makes one of

    def __hash__(self) -> int:
        # Keys and properties may be lists and dicts; equal messages have these in common anyway.
        return hash((self.topic, bytes(self.body), self.tag))

    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]:
        values = msgspec.structs.asdict(self)  # views of bytes or of a dict cannot be pickled
        values |= {"body": bytes(self.body), "properties": dict(self.properties)}
        return type(self), tuple(values.values())

    def encoded_properties(self) -> dict[str, str]:
        """All properties as the broker gets them; a new dict."""
        found = dict(self.properties)
        if self.tag is not None:
            found[names.PROPERTY_TAGS] = checked_tag(self.tag)
        if self.keys:
            found[names.PROPERTY_KEYS] = joined_keys(self.keys)
        found[names.PROPERTY_WAIT] = "true" if self.wait_store_ok else "false"
        return found


def checked_tag(tag: str) -> str:
    """The tag; raises InvalidMessageError unless it is text that a subscription can name."""
    if not isinstance(tag, str):
        raise InvalidMessageError(f"tag is text, not {type(tag).__name__}")
    if not is_selectable(tag):
        raise InvalidMessageError(
            f"no subscription could select the tag {tag!r}",
            hint="a tag must not be empty, contain || or begin or end with a blank",
        )
    return tag


def joined_keys(keys: Sequence[str]) -> str:
    """Keys as one text; raises InvalidMessageError."""
    if isinstance(keys, str):
        return keys
    try:
        text = KEY_SEPARATOR.join(keys)
    except TypeError as error:
        kinds = {type(keys).__name__}
        if isinstance(keys, (list, tuple, set, frozenset)):
            kinds = {type(key).__name__ for key in keys} - {"str"}
        raise InvalidMessageError(
            f"keys are text, not {', '.join(sorted(kinds))}", hint='keys=["k1", "k2"]'
        ) from error
    if KEY_SEPARATOR in text or not text:  # else it is one key
        for key in keys:
            if not key or KEY_SEPARATOR in key:
                raise InvalidMessageError(
                    f"a key must not be empty or contain a blank, which separates keys: {key!r}"
                )
    return text


class SendStatus(enum.Enum):
    """The status of a stored message; sending it again would duplicate it."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a message was stored."""

    status: SendStatus
    msg_id: str  #: the unique id, drawn by the client
    offset_msg_id: str | None  #: place in the broker's log; ``skylark message get`` takes both
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True


class TxState(enum.Enum):
    """How a local transaction ended."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"  # as Java spells it


_LEVEL_HINT: Final = (
    "RetryLater(level=3) chooses a delay level of the broker: 1 is 1 s, 2 is 5 s, 3 is 10 s and so"
    " on, by default up to 18, which is 2 h"
)
_LEVEL_MAX: Final = 2**31 - 1


class RetryLater(SkylarkError):
    """Raised by a handler: deliver the message again, after the delay of ``level`` if given.

    ``level`` is a delay level of the broker: 1 is 1 s, 2 is 5 s, 3 is 10 s and so on. Without one,
    the delay grows with the number of failures. Raises ConfigError for any other argument, such as
    a number of seconds.
    """

    def __init__(
        self,
        reason: str | BaseException = "to be delivered again",
        *,
        level: int = 0,
        **unknown: Never,
    ) -> None:
        for name in unknown:  # the first of them
            raise ConfigError(
                f"RetryLater got an unexpected keyword argument {name!r}", hint=_LEVEL_HINT
            )
        if not isinstance(reason, (str, BaseException)):
            raise ConfigError(
                f"the reason of RetryLater must be text, not {reason!r}", hint=_LEVEL_HINT
            )
        if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= _LEVEL_MAX:
            raise ConfigError(
                f"the level of RetryLater must be a whole number from 0, not {level!r}",
                hint=_LEVEL_HINT,
            )
        super().__init__(str(reason))
        self.level = level


class DeadLetter(SkylarkError):
    """Raised by a handler: make the message a dead letter of the group at once."""

    def __init__(self, reason: str | BaseException = "for the dead letters") -> None:
        super().__init__(str(reason))


class MessageExt:
    """A received message. Attributes are read-only; ``record`` is what the broker sent."""

    __slots__ = ("_deserialize", "_inflated", "_topic", "_value", "broker_name", "record")
    _deserialize: Callable[[bytes], Any]  # set only where a consumer has a value_deserializer
    _value: Any  # set at the first use

    def __init__(self, record: MessageRecord, broker_name: str, topic: str | None = None) -> None:
        """``topic`` is the name to show, if it differs from the stored one (namespaces)."""
        self.record = record
        self.broker_name = broker_name
        self._topic = topic
        self._inflated = False

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.topic!r}, {self.broker_name}:{self.queue_id}"
            f"@{self.queue_offset}, msg_id={self.msg_id!r}, body={len(self.record.body)} bytes)"
        )

    @property
    def topic(self) -> str:
        """The topic it was sent to, also for a retry."""
        if self._topic is None:
            stored = self.record.topic
            if is_retry_topic(stored):
                stored = self.record.properties.get(names.PROPERTY_RETRY_TOPIC, stored)
            self._topic = stored
        return self._topic

    @property
    def body(self) -> bytes:
        """The body as it was sent; raises RemoteProtocolError if it cannot be decompressed."""
        if not self._inflated:
            inflate_record(self.record)
            self._inflated = True
        return self.record.body

    @property
    def value(self) -> Any:
        """What the consumer's ``value_deserializer`` makes of the body; without one, the body.

        Raises what that function raises.
        """
        try:
            return self._value
        except AttributeError:
            deserialize = getattr(self, "_deserialize", None)
        self._value = self.body if deserialize is None else deserialize(self.body)
        return self._value

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """The body read as JSON: as dicts and lists, or as an object of a type.

        Raises InvalidMessageError if it is something else.
        """
        try:
            return json_decoder(kind).decode(self.body)
        except msgspec.DecodeError as error:
            raise InvalidMessageError(
                f"the body of message {self.msg_id} is not the expected JSON: {error}"
            ) from error

    @property
    def properties(self) -> Mapping[str, str]:
        return self.record.properties

    @property
    def tag(self) -> str | None:
        return self.record.properties.get(names.PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        text = self.record.properties.get(names.PROPERTY_KEYS, "")
        return tuple(key for key in text.split(KEY_SEPARATOR) if key)

    @property
    def msg_id(self) -> str:
        """The unique id of the producer, or the offset message id if there is none."""
        return self.record.properties.get(names.PROPERTY_UNIQ_KEY) or self.record.offset_id

    @property
    def offset_msg_id(self) -> str:
        return self.record.offset_id

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from, with the topic as the application knows it."""
        record = self.record
        topic = record.topic if is_retry_topic(record.topic) else self.topic
        return MessageQueue(topic=topic, broker_name=self.broker_name, queue_id=record.queue_id)

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before."""
        return self.record.reconsume_times

    @property
    def born_time(self) -> datetime:
        """When the producer sent it, by its own clock."""
        return _time(self.record.born_timestamp)

    @property
    def store_time(self) -> datetime:
        """When the broker stored it."""
        return _time(self.record.store_timestamp)

    @property
    def born_host(self) -> str:
        """Address of the producer."""
        return format_host(self.record.born_host)

    @property
    def store_host(self) -> str:
        """Address of the broker that stored it."""
        return format_host(self.record.store_host)

    @property
    def flag(self) -> int:
        return self.record.flag

    @property
    def transaction_id(self) -> str | None:
        """The unique id, for a message that was sent in a transaction."""
        properties = self.record.properties
        if properties.get(names.PROPERTY_TRAN_MSG, "").lower() != "true":
            return None
        return properties.get(names.PROPERTY_UNIQ_KEY)


def set_deserializer(messages: Iterable[MessageExt], deserialize: Callable[[bytes], Any]) -> None:
    """Set the function that makes the values of received messages."""
    for message in messages:
        message._deserialize = deserialize


@lru_cache(maxsize=256)
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type; making one takes longer than most uses of it."""
    return msgspec.json.Decoder(kind)


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC)
