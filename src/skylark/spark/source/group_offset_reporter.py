"""The progress of a stream as that of a consumer group, so that lag tools see it.

What a stream has read stands in its checkpoint, and nowhere else matters. With
``commitGroupOffsets`` it is told to the brokers as well (15), for queues that have moved. Nothing
depends on it: what cannot be told now is told with the next progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from skylark.admin.admin_session import Session
from skylark.core.errors import BrokerError, RemoteProtocolError, TransportError
from skylark.spark.source.queue_bounds import choose_address
from skylark.wire.bodies.common_body import MessageQueue

log = logging.getLogger(__name__)

WARN_INTERVAL_S: Final = 60.0


class GroupProgress:
    """Remembers what was told."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._told: dict[MessageQueue, int] = {}
        self._warned_at: float | None = None

    async def tell(
        self, offsets: Mapping[MessageQueue, int], addresses: Mapping[str, Mapping[int, str]]
    ) -> None:
        """Commit what is new in ``offsets``."""
        moved = [queue for queue, offset in offsets.items() if self._told.get(queue) != offset]
        await asyncio.gather(*(self._tell(queue, offsets[queue], addresses) for queue in moved))

    async def _tell(
        self, queue: MessageQueue, offset: int, addresses: Mapping[str, Mapping[int, str]]
    ) -> None:
        session = self._session
        address = choose_address(addresses.get(queue.broker_name, {}), "master")
        if address is None:
            return
        try:
            await session.calls.update_offset(
                address,
                session.wrap(self._group),
                session.namespace.wrap_queue(queue),
                offset,
                oneway=queue in self._told,
            )
        except (BrokerError, TransportError, RemoteProtocolError, TimeoutError) as error:
            now = session.clock.monotonic()
            if self._warned_at is None or now >= self._warned_at + WARN_INTERVAL_S:
                self._warned_at = now
                log.warning("the progress of group %s is not told: %s", self._group, error)
        else:
            self._told[queue] = offset
