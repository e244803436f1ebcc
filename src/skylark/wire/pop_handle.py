"""Receipt handles of popped messages, and the header texts from which a client makes them.

A **receipt handle** (message property POP_CK, header field ``extraInfo``) names a popped message to
the broker in acks and in changes of its invisible time. It is a list of fields with one blank
between them::

    0 1700000000000 60000 3 0 broker-a 1 42
    |       |         |   | |     |    | +- offset of the message in its queue; old handles: absent
    |       |         |   | |     |    +--- queue
    |       |         |   | |     +-------- broker
    |       |         |   | +-------------- kind of the topic: 0 as subscribed, 1 and 2 retries
    |       |         |   +---------------- queue of the revive topic; 999: consumption in order
    |       |         +-------------------- invisible time, ms
    |       +------------------------------ time of the pop, ms since 1970
    +-------------------------------------- first offset of the check-point

Proxies append the position of the message in the log as a ninth field. The *kind* says which topic
the message was read from: 1 ``%RETRY%group_topic``, 2 ``%RETRY%group+topic`` (:func:`real_topic`).

For messages of the topic itself the **client** makes the handle. The answer to a pop has three
texts for that, whose entries are joined by ``;`` and begin with the kind and the queue:

==================  =========================================  =====================================
field               entry                                      decoded as
==================  =========================================  =====================================
startOffsetInfo     ``0 1 40``                                 ``{("0", 1): 40}``
msgOffsetInfo       ``0 1 40,42``                              ``{("0", 1): [40, 42]}``
orderCountInfo      ``0 1 2`` (queue) or ``0 qo1%40 2``        ``{("0", 1): 2}``,
                                                               ``{("0", 1, 40): 2}``
==================  =========================================  =====================================

All texts come from peers: a text that is not exactly of this form raises
:class:`HeaderFieldError`, which a broker answers with code 1. Counterpart of Java's
``ExtraInfoUtil``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from skylark.core.errors import HeaderFieldError, LocalProtocolError
from skylark.core.names import is_retry_topic, pop_retry_topic

#: The revive queue in handles of messages that are consumed in order: they have no check-point.
ORDER_REVIVE_QUEUE: Final = 999

#: Kinds of topics, as they stand in handles and texts.
NORMAL_TOPIC: Final = "0"
RETRY_TOPIC_V1: Final = "1"
RETRY_TOPIC_V2: Final = "2"

#: Kind of the topic, and queue.
QueueKey: TypeAlias = tuple[str, int]
#: Kind of the topic, queue, and offset in it.
OffsetKey: TypeAlias = tuple[str, int, int]

_TEXT_SHOWN_MAX: Final = 200  # characters of a wrong text that an error repeats
# 18 digits fit into 64 bits and 9 into 32, also where two of them are added.
_LONG: Final = r"(-?[0-9]{1,18})"
_INT: Final = r"(-?[0-9]{1,9})"
_HANDLE: Final = re.compile(
    rf"{_LONG} {_LONG} {_LONG} {_INT} ([012]) ([^ ]{{1,255}}) {_INT}(?: {_LONG}(?: {_LONG})?)?"
)
_START: Final = re.compile(rf"([012]) {_INT} {_LONG}")
_OFFSETS: Final = re.compile(rf"([012]) {_INT} (-?[0-9]{{1,18}}(?:,-?[0-9]{{1,18}})*)")
_COUNT: Final = re.compile(rf"([012]) (?:qo{_INT}%{_LONG}|{_INT}) {_INT}")

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class PopHandle(msgspec.Struct, frozen=True, gc=False):
    """A receipt handle; ``str()`` gives its text."""

    #: First offset of the check-point, not that of the message.
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: str
    broker_name: str
    queue_id: int
    #: -1 in handles of old clients.
    queue_offset: int = -1
    #: Only in handles of proxies, else -1.
    log_offset: int = -1

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    @property
    def visible_at_ms(self) -> int:
        """When the message may be popped again."""
        return self.pop_time_ms + self.invisible_ms

    def __str__(self) -> str:
        text = (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} "
            f"{self.kind} {self.broker_name} {self.queue_id}"
        )
        if self.queue_offset >= 0 or self.log_offset >= 0:
            text = f"{text} {self.queue_offset}"
        return text if self.log_offset < 0 else f"{text} {self.log_offset}"


def decode_handle(text: str, *, field: str = "extraInfo") -> PopHandle:
    """Read a receipt handle; raises HeaderFieldError, which names ``field``."""
    match = _HANDLE.fullmatch(text)
    if match is None:
        raise _wrong(field, text, "a receipt handle")
    start, time, invisible, revive, kind, broker, queue, offset, log_offset = match.groups()
    return PopHandle(
        int(start),
        int(time),
        int(invisible),
        int(revive),
        kind,
        broker,
        int(queue),
        -1 if offset is None else int(offset),
        -1 if log_offset is None else int(log_offset),
    )


def kind_of(topic: str) -> str:
    """The kind of a real topic, as it stands in handles and texts."""
    if not is_retry_topic(topic):
        return NORMAL_TOPIC
    return RETRY_TOPIC_V2 if "+" in topic else RETRY_TOPIC_V1


def real_topic(kind: str, topic: str, group: str) -> str:
    """The topic that a message was read from, of the topic that its consumer has subscribed to."""
    if kind == NORMAL_TOPIC:
        return topic
    return pop_retry_topic(topic, group, v2=kind == RETRY_TOPIC_V2)


# --- the texts of an answer -----------------------------------------------------------------------


def encode_start_offsets(starts: Mapping[QueueKey, int]) -> str:
    """``startOffsetInfo``: the first offset of the check-point of each queue."""
    return ";".join([f"{kind} {queue} {start}" for (kind, queue), start in starts.items()])


def encode_message_offsets(offsets: Mapping[QueueKey, Sequence[int]]) -> str:
    """``msgOffsetInfo``: the offsets of the messages of each queue, ascending."""
    entries = []
    for (kind, queue), each in offsets.items():
        if not each:
            raise LocalProtocolError(f"no offsets of queue {queue}")
        entries.append(f"{kind} {queue} {','.join(map(str, each))}")
    return ";".join(entries)


def encode_order_counts(counts: Mapping[QueueKey | OffsetKey, int]) -> str:
    """``orderCountInfo``: how often messages were delivered before, each or per queue."""
    return ";".join(
        [
            f"{key[0]} qo{key[1]}%{key[2]} {count}"
            if len(key) == 3
            else f"{key[0]} {key[1]} {count}"
            for key, count in counts.items()
        ]
    )


def decode_start_offsets(text: str | None) -> dict[QueueKey, int]:
    """Read ``startOffsetInfo``; absent and empty give no entries."""

    def entry(match: re.Match[str]) -> tuple[QueueKey, int]:
        return (match[1], int(match[2])), int(match[3])

    return _decode("startOffsetInfo", text, _START, entry)


def decode_message_offsets(text: str | None) -> dict[QueueKey, list[int]]:
    """Read ``msgOffsetInfo``; absent and empty give no entries."""

    def entry(match: re.Match[str]) -> tuple[QueueKey, list[int]]:
        return (match[1], int(match[2])), list(map(int, match[3].split(",")))

    return _decode("msgOffsetInfo", text, _OFFSETS, entry)


def decode_order_counts(text: str | None) -> dict[QueueKey | OffsetKey, int]:
    """Read ``orderCountInfo``; absent and empty give no entries."""

    def entry(match: re.Match[str]) -> tuple[QueueKey | OffsetKey, int]:
        kind, queue_of_offset, offset, queue, count = match.groups()
        if queue is not None:
            return (kind, int(queue)), int(count)
        return (kind, int(queue_of_offset), int(offset)), int(count)

    return _decode("orderCountInfo", text, _COUNT, entry)


def _decode(
    field: str,
    text: str | None,
    pattern: re.Pattern[str],
    entry: Callable[[re.Match[str]], tuple[_Key, _Value]],
) -> dict[_Key, _Value]:
    """The entries of a text; one that stands twice is an error, as for Java's client."""
    if not text:
        return {}
    decoded: dict[_Key, _Value] = {}
    for part in text.split(";"):
        match = pattern.fullmatch(part)
        if match is None:
            raise _wrong(field, part, "an entry of this text")
        key, value = entry(match)
        if key in decoded:
            raise _wrong(field, part, "an entry that stands only once")
        decoded[key] = value
    return decoded


def _wrong(field: str, text: str, expected: str) -> HeaderFieldError:
    shown = text if len(text) <= _TEXT_SHOWN_MAX else text[:_TEXT_SHOWN_MAX] + "..."
    return HeaderFieldError(field, f"{field}: {shown!r} is not {expected}")
