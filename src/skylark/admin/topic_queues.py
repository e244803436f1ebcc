"""The readable queues of a topic, their offsets and times, and committed offsets of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias, TypeVar

import msgspec

from skylark.admin.admin_session import Session, masters_of, no_topic
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import few_at_a_time
from skylark.client.core.broker_calls import make_request
from skylark.client.core.route_cache import make_route
from skylark.core.errors import BrokerError, QueryNotFoundError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.stats import TopicStatsTable
from skylark.wire.codes import RequestCode
from skylark.wire.headers.admin import TopicRequestHeader
from skylark.wire.headers.offset import UpdateConsumerOffsetRequestHeader

T = TypeVar("T")

#: A point in time: a datetime, or milliseconds since 1970.
Moment: TypeAlias = datetime | int


def to_ms(moment: Moment) -> int:
    """A point in time in milliseconds since 1970."""
    return moment if isinstance(moment, int) else round(moment.timestamp() * 1000)


async def readable_queues(
    session: Session, topic: str
) -> tuple[list[MessageQueue], dict[str, str]]:
    """The queues of a topic (with namespace), and the addresses of their masters.

    Without queues of brokers that have no master now; raises NotFoundError if none is left.
    """
    name = session.wrap(topic)
    route = await session.route(name)
    masters = masters_of(route)
    queues = [q for q in make_route(name, route).subscribe if q.broker_name in masters]
    if not queues:
        raise no_topic(topic)
    return sorted(queues), masters


def selected_queues(
    queues: Sequence[MessageQueue], topic: str, broker: str | None, queue_id: int | None
) -> list[MessageQueue]:
    """The queues of one broker or with one id, where these are given; raises NotFoundError."""
    wanted = [
        queue
        for queue in queues
        if broker in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not wanted:
        raise NotFoundError(f"topic {topic} has no such queue")
    return wanted


async def per_queue(
    session: Session, queues: Sequence[MessageQueue], work: Callable[[MessageQueue], Awaitable[T]]
) -> dict[MessageQueue, T]:
    """The result of ``work`` for each queue; keys are queues without namespace."""
    results = await few_at_a_time(queues, work)
    return dict(zip(map(session.unwrap_queue, queues), results, strict=True))


async def committed_offset(
    session: Session, address: str, group: str, queue: MessageQueue
) -> int | None:
    """The committed offset of a group (14); None if there is none."""
    try:
        return await session.calls.query_offset(address, group, queue, set_zero_if_not_found=False)
    except QueryNotFoundError:
        return None


async def commit_offset(
    session: Session, address: str, group: str, queue: MessageQueue, offset: int
) -> None:
    """Commit an offset for a group (15); raises BrokerError also if the broker ignores it."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    request = make_request(code, header, broker_name=queue.broker_name)
    answer = await session.call(address, request)
    if answer.remark and "previously reset" in answer.remark:
        raise BrokerError(
            f"the broker did not set the offset of queue {queue.queue_id}: {answer.remark}",
            broker_address=address,
            hint="a reset is pending until the next pull of the group; reset again instead",
        )


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
    answers = await session.ask_each(TopicStatsTable, masters, code, header)
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
