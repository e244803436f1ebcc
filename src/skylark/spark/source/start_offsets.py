"""Resolution of positions to offsets: what ``earliest`` or ``-10m`` mean in each queue now.

**Times.** Brokers since 5.0 find the first message that was stored at a time or later. Older ones
return the nearest message, the last one for later times, and any of several with the same time.
For these the neighbours of the returned message are read until the first one is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.topic_queues import committed_offset
from skylark.client.arrow.record_rows import rows_of
from skylark.client.consumer.range_reader import RangeTerms, fixed_address, pull_range
from skylark.core.errors import ConfigError
from skylark.spark.errors import first_available, queue_name
from skylark.spark.source.offset_options import ANY_BROKER, Ago, At, Named, Offsets, Position
from skylark.spark.source.queue_bounds import Bounds, ClusterSnapshot
from skylark.spark.source.source_options import SourceOptions
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import V5_0_0

SAMPLE_COUNT: Final = 32


class Sample(msgspec.Struct, frozen=True):
    """Offsets, store times and sizes of some messages of a queue."""

    offsets: list[int]
    times_ms: list[int]
    sizes: list[int]


async def sample(
    session: Session, address: str, queue: MessageQueue, start: int, end: int, group: str
) -> Sample:
    """Pull a few messages, from ``start`` to ``end``; the queue's topic has its namespace."""
    found = Sample([], [], [])
    terms = RangeTerms(group=group, count_max=max(1, end - start), patience_s=3.0)
    answers = pull_range(
        session.calls, fixed_address(address), queue, start, end, session.clock, terms
    )
    async for pulled in answers:
        columns = rows_of(pulled.body, start, end, (), pulled.offset_delta).columns
        found.offsets.extend(columns.queue_offset.tolist())
        found.times_ms.extend(columns.store_timestamp.tolist())
        found.sizes.extend(columns.total_size.tolist())
    return found


class OffsetResolver:
    """Resolves the positions of the options for the queues of one snapshot."""

    def __init__(self, session: Session, options: SourceOptions, snapshot: ClusterSnapshot) -> None:
        self._session = session
        self._options = options
        self._snapshot = snapshot

    async def start(self) -> dict[MessageQueue, int]:
        """The offsets at which reading starts; raises ConfigError, DataLossError."""
        return await self._resolve(self._options.start, self._options.start_default)

    async def end(self, start: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The offsets at which a batch ends: not before its start, not after the last message."""
        ends = await self._resolve(self._options.end, Named.LATEST, is_end=True)
        return {queue: max(start[queue], offset) for queue, offset in ends.items()}

    async def _resolve(
        self, position: Position, default: Named, *, is_end: bool = False
    ) -> dict[MessageQueue, int]:
        bounds = self._snapshot.bounds
        if isinstance(position, Offsets):
            position = self._with_brokers(position)
            self._check_known(position)
        if isinstance(position, Ago):
            position = At(self._session.clock.now_ms() - position.duration_ms)
        queues = list(bounds)
        offsets = await asyncio.gather(
            *(self._offset(queue, position, default, is_end=is_end) for queue in queues)
        )
        return dict(zip(queues, offsets, strict=True))

    def _with_brokers(self, position: Offsets) -> Offsets:
        """Put the brokers into offsets that name none, as in Kafka; raises ConfigError."""
        found: dict[MessageQueue, int | Named] = {}
        for queue, offset in position.by_queue.items():
            if queue.broker_name == ANY_BROKER:
                brokers = {
                    other.broker_name
                    for other in self._snapshot.bounds
                    if other.topic == queue.topic
                }
                if len(brokers) > 1:
                    broker = min(brokers)
                    raise ConfigError(
                        f"topic {queue.topic} is on {len(brokers)} brokers, and the offsets name"
                        " none",
                        hint=f'write {{"{queue.topic}": {{"{broker}": {{"0": 23}}}}}}',
                    )
                queue = msgspec.structs.replace(queue, broker_name=min(brokers, default=""))
            found[queue] = offset
        return Offsets(found)

    def _check_known(self, position: Offsets) -> None:
        known = self._snapshot.bounds
        if unknown := sorted(queue for queue in position.by_queue if queue not in known):
            names = ", ".join(queue_name(queue) for queue in sorted(known))
            raise ConfigError(
                f"the offsets name a queue that is not read: {queue_name(unknown[0])}",
                hint=f"there are {names}",
            )

    async def _offset(
        self, queue: MessageQueue, position: Position, default: Named, *, is_end: bool
    ) -> int:
        bounds = self._snapshot.bounds[queue]
        if isinstance(position, Offsets):
            listed = position.by_queue.get(queue, default)
            if isinstance(listed, int):
                return min(listed, bounds.high) if is_end else self._checked(queue, listed, bounds)
            position = listed
        if isinstance(position, At):
            return await self._at(queue, position.time_ms, bounds)
        if position is Named.GROUP:
            committed = await self._committed(queue)
            if committed is not None:
                return max(bounds.low, min(bounds.high, committed))
            position = default
        return bounds.low if position is Named.EARLIEST else bounds.high

    def _checked(self, queue: MessageQueue, offset: int, bounds: Bounds) -> int:
        if offset > bounds.high:
            raise ConfigError(
                f"{queue_name(queue)} ends at offset {bounds.high}, and {offset} is its start"
            )
        return first_available(queue, offset, bounds.low, fail=self._options.fail_on_data_loss)

    def _address(self, queue: MessageQueue) -> str:
        return self._snapshot.address(queue.broker_name, self._options.read_from)

    async def _committed(self, queue: MessageQueue) -> int | None:
        session = self._session
        group, wrapped = session.wrap(self._options.group), session.namespace.wrap_queue(queue)
        return await committed_offset(session, self._address(queue), group, wrapped)

    async def _at(self, queue: MessageQueue, time_ms: int, bounds: Bounds) -> int:
        wrapped = self._session.namespace.wrap_queue(queue)
        address = self._address(queue)
        found = await self._session.calls.search_offset(address, wrapped, time_ms)
        found = max(bounds.low, min(bounds.high, found))
        if self._snapshot.versions.get(queue.broker_name, V5_0_0) < V5_0_0:
            found = await self._first_since(wrapped, address, time_ms, found, bounds)
        return found

    async def _first_since(
        self, queue: MessageQueue, address: str, time_ms: int, near: int, bounds: Bounds
    ) -> int:
        """The first message stored at ``time_ms`` or later, searched from offset ``near``."""
        group = self._session.wrap(self._options.group)
        first = near
        while first > bounds.low:  # backwards, past messages with the same time
            since = max(bounds.low, first - SAMPLE_COUNT)
            part = await sample(self._session, address, queue, since, first, group)
            first = since
            if part.times_ms and part.times_ms[0] < time_ms:
                break
        while first < bounds.high:  # forwards, to the first message that is not older
            end = min(bounds.high, first + SAMPLE_COUNT)
            part = await sample(self._session, address, queue, first, end, group)
            for offset, stored_ms in zip(part.offsets, part.times_ms, strict=True):
                if stored_ms >= time_ms:
                    return offset
            first = end
        return bounds.high
