"""Offsets, lag and rates (202, 208, 303, 308, 315, 317). Maps by queue have objects as keys.

Counterpart of Java's ``TopicStatsTable``, ``ConsumeStats``, ``ConsumeStatsList``,
``BrokerStatsData``.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from skylark.wire.bodies.common_body import Body, MessageQueue
from skylark.wire.fastjson_reader import SIZE_MAX
from skylark.wire.fields import Int32, Int64


class TopicOffset(Body, kw_only=True):
    """The ends of one queue, and the store time of its last message (0 if it is empty)."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStatsTable(Body, kw_only=True):
    """All queues of a topic on one broker (202)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    topic_put_tps: float = 0.0
    offset_table: dict[MessageQueue, TopicOffset] = msgspec.field(default_factory=dict)


class OffsetWrapper(Body, kw_only=True):
    """How far a group has come in one queue."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    pull_offset: Int64 = 0
    last_timestamp: Int64 = 0  # store time of the last message consumed
    #: Messages that were popped, and are neither acknowledged nor back; only Skylark's brokers say.
    popped_in_flight: Int64 | None = None


class PoppedReport(Body, kw_only=True):
    """The last pop of a message by a group; only Skylark's brokers report it.

    ``pop_time`` is 0 if the broker has no check-point of the message: it was not popped, or was
    acknowledged while its check-point was in memory only.
    """

    #: The broker has looked for check-points that were written since this time.
    known_since: Int64 = 0
    #: Where the next pop of the queue reads; None if the group has no offset.
    next_offset: Int64 | None = None
    #: When it was popped; after a change of the invisible time perhaps the time of that.
    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    acknowledged: bool = False
    #: The invisible time is over, and the message is not acknowledged.
    expired: bool = False
    #: Of an ordered pop: how often the message was delivered before.
    earlier_count: Int32 = 0


class ConsumeStats(Body, kw_only=True):
    """All queues of a group on one broker (208)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    offset_table: dict[MessageQueue, OffsetWrapper] = msgspec.field(default_factory=dict)
    consume_tps: float = 0.0
    #: For the message that the request names.
    popped: PoppedReport | None = None


class ConsumeStatsList(Body, kw_only=True):
    """All groups of a broker (317)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = msgspec.field(default_factory=list)
    broker_addr: str | None = None
    total_diff: Int64 = 0
    total_inflight_diff: Int64 = 0


class BrokerStatsItem(Body, kw_only=True):
    """A sum over a period, per second, and per call."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    """One statistic over three periods (315)."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class QueueTimeSpan(Body, kw_only=True):
    """The store times that one queue covers; the texts are for people."""

    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """Answer of 303."""

    consume_time_span_set: list[QueueTimeSpan] = msgspec.field(default_factory=list)


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """Queue to offset (308)."""

    correction_offsets: dict[int, Int64] = msgspec.field(default_factory=dict)
