"""Resets the offsets of a running consumer: by a broker's request (220), or to a time.

The consumer is paused, the queues concerned are given up at once and their messages forgotten; ten
seconds later, when commits under way have ended, the new offsets are saved and the
queues are taken up anew from there. Other consumers of the group hear the same from the broker.
OffsetResets may overlap: the queues come back after the last of them, where that one says.

Runs on the control loop. Counterpart of Java's ``ResetOffset`` handling in ``MQClientInstance`` and
of ``resetOffsetByTimeStamp`` of ``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.push.rebalance_executor import RebalanceExecutor
from skylark.client.core.client_instance import ClientInstance
from skylark.wire.bodies.common_body import MessageQueue

log = logging.getLogger(__name__)

RESET_WAIT_S: Final = 10.0


class OffsetResets:
    """OffsetResets of one consumer; ``under_way`` counts them, and the consumer is paused
    meanwhile."""

    def __init__(
        self,
        instance: ClientInstance,
        rebalancer: RebalanceExecutor,
        forget_messages: Callable[[ProcessQueue], None],
    ) -> None:
        """``forget_messages`` hands over to the loop that consumes."""
        self._instance = instance
        self._rebalancer = rebalancer
        self._forget_messages = forget_messages
        self.under_way = 0
        self._given_up: set[MessageQueue] = set()  # by resets since the first that is under way

    async def to_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets, as far as the queues are ours."""
        self.under_way += 1
        try:
            ours = self._ours()
            mine = {queue: offset for queue, offset in offsets.items() if queue in ours}
            self._given_up.update(mine)
            for queue, offset in mine.items():
                log.info("%s is reset to offset %d", queue, offset)
                process_queue = self._rebalancer.rebalance.table.get(queue)
                if process_queue is not None:
                    process_queue.dropped = True
                    self._forget_messages(process_queue)
            await self._instance.runtime.clock.sleep(RESET_WAIT_S)
            await self._rebalancer.jump(mine)
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._given_up.clear()
            self._instance.rebalance_soon()

    async def to_time(self, topics: Iterable[str], time_ms: int) -> None:
        """Go on with what was stored at or after a time; raises SkylarkError."""
        wanted = frozenset(topics)
        link = self._instance.control_link
        offsets = {}
        for queue in sorted(self._ours()):
            if queue.topic in wanted:
                address = await link.lookup.master_of(queue)
                offsets[queue] = await link.calls.search_offset(address, queue, time_ms)
        await self.to_offsets(offsets)

    def _ours(self) -> set[MessageQueue]:
        """The queues that we have, or will have again when the resets under way are done."""
        return {*self._rebalancer.rebalance.table, *self._given_up}
