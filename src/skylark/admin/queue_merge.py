"""Merges the messages of several queues by store time.

Each queue is read lazily (:mod:`skylark.client.consumer.range_reader`), so a request for ten
messages of a topic with many queues costs one small pull per queue.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.message_lookup import message_of, records_of
from skylark.client.consumer.range_reader import RangeTerms, fixed_address, pull_range
from skylark.client.core.client_message import MessageExt
from skylark.client.errors import Missing
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

#: Messages per pull: few, because most of them may not be needed.
PULL_COUNT: Final = 32
PULL_SIZE: Final = 1024 * 1024
PATIENCE_S: Final = 10.0


class QueueRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets [start, end) of a queue (with namespace), and the address to read it from."""

    queue: MessageQueue
    address: str
    start: int
    end: int


async def queue_messages(
    session: Session, part: QueueRange, begin_ms: int, end_ms: int, tags: str = "*"
) -> AsyncGenerator[MessageExt, None]:
    """The messages of a range that were stored in a time range; skips expired messages."""
    terms = RangeTerms(
        expression=tags, count_max=PULL_COUNT, size_max=PULL_SIZE, patience_s=PATIENCE_S
    )
    pulls = pull_range(
        session.calls,
        fixed_address(part.address),
        part.queue,
        part.start,
        part.end,
        session.clock,
        terms,
        _log_missing,
    )
    try:
        async for pulled in pulls:
            for record in records_of(pulled):
                in_range = part.start <= record.queue_offset < part.end
                if in_range and begin_ms <= record.store_timestamp < end_ms:
                    yield message_of(session, record, part.queue.broker_name)
    finally:
        await pulls.aclose()


def _log_missing(missing: Missing) -> None:
    logger.info("%d messages of %s expired before they were read", missing.count, missing.queue)


async def merged(
    sources: Sequence[AsyncGenerator[MessageExt, None]], limit: int | None = None
) -> AsyncGenerator[MessageExt, None]:
    """The messages of all sources by store time, then log offset, at most ``limit`` of them.

    Reads one message ahead, and closes the sources.
    """
    heads: list[tuple[int, int, int, MessageExt]] = []

    async def push(number: int) -> None:
        message = await anext(sources[number], None)
        if message is not None:
            record = message.record
            heapq.heappush(heads, (record.store_timestamp, record.log_offset, number, message))

    try:
        await few_at_a_time(range(len(sources)), push)
        for count in itertools.count(1):
            if not heads:
                return
            _, _, number, message = heapq.heappop(heads)
            yield message
            if count == limit:
                return
            await push(number)
    finally:
        for source in sources:
            await source.aclose()
