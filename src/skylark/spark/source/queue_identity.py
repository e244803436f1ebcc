"""Identity of queues: notices that a topic was deleted and created again under the same name.

Offsets alone do not show it once the new topic is longer than the old one. So the checkpoint has a
witness of each queue (:class:`~skylark.spark.source.stream_offset.QueueIdentity`): an offset, and
when the message before it was stored. Brokers report both with the bounds of a queue, for the last
message, so that it costs no request. Messages of a new topic are stored later than all of the old
one, hence the message at that offset has another time, or is not there.

A check is a pull of one message. All queues with something to read are checked when a run begins,
up to :data:`FIRST_COUNT_MAX`, and then :data:`COUNT_MAX` of them at each trigger, in turn: a stream
with more queues notices a new topic some triggers later. A queue that is not checked, or cannot be
read now, keeps its witness. If the message has expired, or was removed by compaction, nothing can
be said, and the queue is read on.

After a crash Spark repeats a batch that was planned before. All queues of such a batch are checked
by the witnesses in its end: otherwise it could have rows of a new topic.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.fan_out import few_at_a_time
from skylark.client.errors import MissingError
from skylark.core.errors import SkylarkError
from skylark.spark.outages import is_outage
from skylark.spark.source.queue_bounds import ClusterSnapshot
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import sample
from skylark.spark.source.stream_offset import StreamOffset
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

FIRST_COUNT_MAX: Final = 1024
COUNT_MAX: Final = 64


class IdentityReport(msgspec.Struct, frozen=True):
    """The result of a check of queues with unread messages."""

    recreated: Collection[MessageQueue]
    unchecked: Collection[MessageQueue]  #: later, or not now: they keep their witness


class IdentityChecker:
    """Finds queues that are not those of the checkpoint any more; one for each run."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._count_max = FIRST_COUNT_MAX
        self._turn = 0

    async def check(self, begin: StreamOffset, snapshot: ClusterSnapshot) -> IdentityReport:
        """Compare queues with unread messages with their witnesses in ``begin``."""
        shorter, candidates = set(), []
        for queue, identity in begin.identities.items():
            bounds = snapshot.bounds.get(queue)
            wanted = begin.queues.get(queue, 0)
            if bounds is None or queue.broker_name in snapshot.slave_only:
                continue
            if bounds.high < identity.offset:
                shorter.add(queue)
            elif bounds.high > wanted:
                candidates.append(queue)
        chosen = self._choose(candidates)
        unchecked = set(candidates) - set(chosen)

        async def is_other(queue: MessageQueue) -> bool:
            try:
                return await self._is_other(queue, begin, snapshot)
            except (SkylarkError, TimeoutError) as error:
                logger.info("cannot check whether %s was created again: %s", queue, error)
                unchecked.add(queue)
                return False

        others = await _those(chosen, is_other)
        return IdentityReport(shorter | others, unchecked)

    async def recreated_since(
        self, end: StreamOffset, queues: Collection[MessageQueue], snapshot: ClusterSnapshot
    ) -> Collection[MessageQueue]:
        """Those of ``queues`` that are others now than when the batch to ``end`` was planned.

        Raises the errors of an outage.
        """
        shorter, candidates = set(), []
        for queue in queues:
            identity, bounds = end.identities.get(queue), snapshot.bounds.get(queue)
            if identity is None or bounds is None or queue.broker_name in snapshot.slave_only:
                continue
            if bounds.high < identity.offset:
                shorter.add(queue)
            else:
                candidates.append(queue)

        async def is_other(queue: MessageQueue) -> bool:
            try:
                return await self._is_other(queue, end, snapshot)
            except (SkylarkError, TimeoutError) as error:
                if is_outage(error):
                    raise
                logger.info("cannot check whether %s was created again: %s", queue, error)
                return False

        return shorter | await _those(candidates, is_other)

    def _choose(self, candidates: list[MessageQueue]) -> list[MessageQueue]:
        count_max, self._count_max = self._count_max, COUNT_MAX
        if len(candidates) <= count_max:
            return candidates
        first = self._turn % len(candidates)
        self._turn += count_max
        return (candidates[first:] + candidates[:first])[:count_max]

    async def _is_other(
        self, queue: MessageQueue, begin: StreamOffset, snapshot: ClusterSnapshot
    ) -> bool:
        session, identity = self._session, begin.identities[queue]
        place = identity.offset - 1
        try:
            found = await sample(
                session,
                snapshot.address(queue.broker_name, self._options.read_from),
                session.namespace.wrap_queue(queue),
                place,
                identity.offset,
                session.wrap(self._options.group),
            )
        except MissingError:
            return False
        times: Mapping[int, int] = dict(zip(found.offsets, found.times_ms, strict=True))
        return times.get(place, identity.time_ms) != identity.time_ms


async def _those(
    queues: Collection[MessageQueue], is_one: Callable[[MessageQueue], Awaitable[bool]]
) -> set[MessageQueue]:
    """The queues for which ``is_one`` is true; asks about few at a time."""
    found = await few_at_a_time(queues, is_one)
    return {queue for queue, is_so in zip(queues, found, strict=True) if is_so}
