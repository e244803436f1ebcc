"""Sizes of the records of queues, for ``maxBytesPerTrigger``: averages of a few samples.

A sample is a pull of a few messages. Few queues are sampled at the same time, at most
:data:`SAMPLES_MAX` at each trigger, and a queue again after :data:`SIZE_AGE_S`. Queues without a
sample count with the average of the others.
"""

from __future__ import annotations

import logging
from typing import Final

from skylark.admin.admin_session import Session
from skylark.admin.fan_out import few_at_a_time
from skylark.core.errors import SkylarkError
from skylark.spark.source.offset_planning import BatchPlan
from skylark.spark.source.queue_bounds import ClusterSnapshot
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import SAMPLE_COUNT, sample
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

SAMPLES_MAX: Final = 256
SIZE_AGE_S: Final = 10.0
_SIZE_UNKNOWN: Final = 1024


class RecordSizes:
    """The record sizes that one stream has found so far."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._sizes: dict[MessageQueue, tuple[int, float]] = {}  # and when it was sampled

    async def sizes(self, plan: BatchPlan, snapshot: ClusterSnapshot) -> dict[MessageQueue, int]:
        """The average size of the next messages of each queue with a backlog."""
        since = self._session.clock.monotonic() - SIZE_AGE_S
        old = [q for q in plan.backlogs if q not in self._sizes or self._sizes[q][1] < since]
        old.sort(key=lambda queue: self._sizes.get(queue, (0, float("-inf")))[1])

        async def refresh(queue: MessageQueue) -> None:
            size = await self._sample(queue, plan, snapshot)
            if size is not None:
                self._sizes[queue] = size, self._session.clock.monotonic()

        await few_at_a_time(old[:SAMPLES_MAX], refresh)
        known = {queue: self._sizes[queue][0] for queue in plan.backlogs if queue in self._sizes}
        mean = sum(known.values()) // len(known) if known else _SIZE_UNKNOWN
        return {queue: known.get(queue, mean) for queue in plan.backlogs}

    async def _sample(
        self, queue: MessageQueue, plan: BatchPlan, snapshot: ClusterSnapshot
    ) -> int | None:
        session, begin = self._session, plan.positions[queue]
        try:
            found = await sample(
                session,
                snapshot.address(queue.broker_name, self._options.read_from),
                session.namespace.wrap_queue(queue),
                begin,
                begin + min(SAMPLE_COUNT, plan.backlogs[queue]),
                session.wrap(self._options.group),
            )
        except (SkylarkError, TimeoutError) as error:
            logger.info("cannot sample the message sizes of %s: %s", queue, error)
            return None
        return max(1, sum(found.sizes) // len(found.sizes)) if found.sizes else None
