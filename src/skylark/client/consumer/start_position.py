"""Start position of a consumer in a queue that it takes up.

A committed offset has precedence over all settings. Without one the setting ``consume_from_where``
decides, and retries are never skipped::

    setting      normal topic                             retry topic of the group
    last         the end of the queue                     0
    first        0 (the broker corrects it)               0
    a time       first message stored at or after it      the end of the queue

The committed offset must come from the store: the broker, or the file of a broadcasting consumer.
If it cannot be read, the queue is not taken up, and the next round tries again; a guess would skip
or repeat messages.

A broker without an offset of the group responds with 0 while the queue still has its first message
in memory. So a new group on a new topic reads from the beginning, also with *last*. This holds also
for a message that comes while the first consumer of the group starts: see ``first_offset`` of
:mod:`skylark.client.consumer.pull_api`. Java's client may skip such a message.

Counterpart of Java's ``RebalancePushImpl.computePullFromWhereWithException``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from skylark.core.errors import ConfigError
from skylark.core.names import is_retry_topic
from skylark.wire.bodies.heartbeat import ConsumeFromWhere

_TIMESTAMP_FORMAT: Final = "%Y%m%d%H%M%S"
_START_BEFORE_MS: Final = 30 * 60 * 1000


class UseOffset(msgspec.Struct, frozen=True):
    """Start at this offset."""

    offset: int


class AskMaxOffset(msgspec.Struct, frozen=True):
    """Start at the end of the queue, as the master reports it."""


class AskOffsetByTime(msgspec.Struct, frozen=True):
    """Start at the first message stored at or after this time, as the master reports it."""

    time_ms: int


Start: TypeAlias = UseOffset | AskMaxOffset | AskOffsetByTime


def start_position(
    topic: str, stored_offset: int | None, where: ConsumeFromWhere, time_ms: int
) -> Start:
    """How to find the start offset; ``stored_offset`` is None if the store has none.

    ``time_ms`` is for CONSUME_FROM_TIMESTAMP only.
    """
    if stored_offset is not None and stored_offset >= 0:
        return UseOffset(stored_offset)
    is_retry = is_retry_topic(topic)
    if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return UseOffset(0)
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return AskMaxOffset() if is_retry else AskOffsetByTime(time_ms)
    return UseOffset(0) if is_retry else AskMaxOffset()


def parse_consume_timestamp(text: str) -> int:
    """``yyyyMMddHHmmss`` in local time as milliseconds; raises ConfigError."""
    try:
        local = datetime.strptime(text if len(text) == 14 else "", _TIMESTAMP_FORMAT).astimezone()
        return int(local.timestamp()) * 1000
    except (ValueError, OverflowError):
        raise ConfigError(
            f"consume_timestamp must have the form yyyyMMddHHmmss, not {text[:40]!r}"
        ) from None


def consume_timestamp(given: str | datetime | None, created_ms: int) -> str:
    """The start time as text; default: half an hour before the consumer was made."""
    if isinstance(given, str):
        return given
    if given is None:
        return format_consume_timestamp(created_ms - _START_BEFORE_MS)
    return format_consume_timestamp(int(given.timestamp() * 1000))


def format_consume_timestamp(time_ms: int) -> str:
    """The inverse of :func:`parse_consume_timestamp`."""
    return datetime.fromtimestamp(time_ms // 1000).astimezone().strftime(_TIMESTAMP_FORMAT)
