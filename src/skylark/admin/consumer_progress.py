"""Progress of consumer groups (208): committed offset, lag and messages in flight per queue.

A broker reports the topics in which the group has offsets there, including its retry topic, except
topics that an online group no longer subscribes to. Progress is collected from all masters, because
each has its own queues. Counterpart of mqadmin's consumerProgress and Java's
``examineConsumeStats``.
"""

from __future__ import annotations

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.errors import ServerFailure
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.stats import ConsumeStats, OffsetWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.headers.admin import GetConsumeStatsRequestHeader


class QueueProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: its end, the offsets of the group, and the lag."""

    queue: MessageQueue
    broker_offset: int  #: offset of the next message to be stored
    consumer_offset: int  #: committed
    pull_offset: int  #: delivered to a member
    last_time_ms: int | None  #: store time of the last message consumed
    client_id: str | None = None  #: the member that reads it, if queried
    popped_in_flight: int = 0  #: popped, and neither acknowledged nor back

    @property
    def lag(self) -> int:
        """Messages not consumed yet; 0 if the offset is beyond the end of a topic made again."""
        return max(0, self.broker_offset - self.consumer_offset)

    @property
    def in_flight(self) -> int:
        """Messages delivered, and not committed or acknowledged yet."""
        return max(0, self.pull_offset - self.consumer_offset) + self.popped_in_flight


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """All queues of a group, by topic, broker and number."""

    group: str
    queues: tuple[QueueProgress, ...]
    consume_tps: float
    failures: tuple[ServerFailure, ...] = ()

    @property
    def lag(self) -> int:
        """Messages not consumed yet, over all queues."""
        return sum(queue.lag for queue in self.queues)

    @property
    def in_flight(self) -> int:
        return sum(queue.in_flight for queue in self.queues)


async def group_progress(session: Session, group: str, topic: str | None = None) -> GroupProgress:
    """The progress of a group, in one topic if given (names with namespace), from all masters.

    An unknown group has no queues. Raises if no broker responds.
    """
    header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
    code = RequestCode.GET_CONSUME_STATS
    answers = await session.ask_each(ConsumeStats, await session.masters(), code, header)
    found = answers.some().values()
    queues = [
        _progress(session.unwrap_queue(queue), offsets)
        for stats in found
        for queue, offsets in stats.offset_table.items()
    ]
    return GroupProgress(
        group=session.unwrap(group),
        queues=tuple(sorted(queues, key=lambda progress: progress.queue)),
        consume_tps=sum(stats.consume_tps for stats in found),
        failures=answers.failures,
    )


def _progress(queue: MessageQueue, offsets: OffsetWrapper) -> QueueProgress:
    return QueueProgress(
        queue=queue,
        broker_offset=offsets.broker_offset,
        consumer_offset=offsets.consumer_offset,
        pull_offset=offsets.pull_offset,
        last_time_ms=offsets.last_timestamp or None,
        popped_in_flight=offsets.popped_in_flight or 0,
    )
