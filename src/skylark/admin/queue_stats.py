"""First and next offset and last store time of all queues of a topic (202), from all brokers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.errors import ServerFailure
from skylark.admin.fan_out import on_each
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.stats import TopicStatsTable
from skylark.wire.codes import RequestCode
from skylark.wire.headers.admin import TopicRequestHeader


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: first offset, next offset, store time of the last message."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_time_ms: int | None  #: None: it is empty

    @property
    def count(self) -> int:
        """The number of messages."""
        return max(0, self.max_offset - self.min_offset)


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """All queues of a topic, by broker and number, and brokers that did not respond."""

    topic: str
    queues: tuple[QueueStats, ...]
    put_tps: float
    failures: tuple[ServerFailure, ...] = ()


async def topic_stats(session: Session, topic: str, masters: Mapping[str, str]) -> TopicStats:
    """Query the masters of a topic (with namespace); raises if none responds."""
    header = TopicRequestHeader(topic=topic)
    code = RequestCode.GET_TOPIC_STATS_INFO
    answers = await on_each(
        masters, lambda _, address: session.ask(TopicStatsTable, address, code, header)
    )
    tables = answers.some().values()
    queues = [
        QueueStats(
            queue=session.unwrap_queue(queue),
            min_offset=offsets.min_offset,
            max_offset=offsets.max_offset,
            last_time_ms=offsets.last_update_timestamp or None,
        )
        for table in tables
        for queue, offsets in table.offset_table.items()
    ]
    return TopicStats(
        topic=session.unwrap(topic),
        queues=tuple(sorted(queues, key=lambda stats: stats.queue)),
        put_tps=sum(table.topic_put_tps for table in tables),
        failures=answers.failures,
    )
