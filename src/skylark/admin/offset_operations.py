"""Offsets: where queues begin and end, where groups stand, and moving groups elsewhere.

A move has two steps: a *plan* says for every queue where the group stands and where it would go,
and changes nothing; :meth:`Offsets.apply` carries it out (:mod:`skylark.admin.offset_reset_plan`)::

    plan = await admin.offsets.plan_reset("billing", "orders", to=datetime(2026, 11, 1, tzinfo=UTC))
    for queue in plan.queues:
        print(queue.queue, queue.committed, "->", queue.new_offset)
    await admin.offsets.apply(plan)

Answers to mqadmin's resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset, and to the offset
functions of ``MQAdmin``.
"""

from __future__ import annotations

from collections.abc import Mapping

from skylark.admin.admin_session import Session
from skylark.admin.consumer_progress import group_progress
from skylark.admin.errors import NotFoundError
from skylark.admin.fan_out import on_each
from skylark.admin.offset_reset_plan import GroupReset, ResetPlan, ResetTo, apply_reset, make_plan
from skylark.admin.queue_stats import TopicStats, topic_stats
from skylark.admin.topic_queues import (
    Moment,
    commit_offset,
    committed_offset,
    per_queue,
    readable_queues,
    to_ms,
)
from skylark.client.core.argument_checks import checks_arguments
from skylark.core.errors import InvalidParameterError
from skylark.wire.bodies.common_body import MessageQueue


@checks_arguments
class Offsets:
    """The functions about offsets."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # ---- questions -------------------------------------------------------------------------------

    async def bounds(self, topic: str) -> TopicStats:
        """The first and the next offset of every queue; raises NotFoundError."""
        name = self._session.wrap(topic)
        return await topic_stats(self._session, name, await self._session.topic_masters(name))

    async def at_time(
        self, topic: str, moment: Moment, *, upper: bool = False
    ) -> dict[MessageQueue, int]:
        """Per queue, the offset of the first message stored then or later.

        Behind the last message if there is none; ``upper``: of the last one until then. Raises
        NotFoundError, PartialFailureError.
        """
        time_ms = to_ms(moment)
        session = self._session
        queues, masters = await readable_queues(session, topic)

        async def search(queue: MessageQueue) -> int:
            address = masters[queue.broker_name]
            return await session.calls.search_offset(address, queue, time_ms, upper=upper)

        return await per_queue(session, queues, search)

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """What a group has committed per queue, None for nothing; raises NotFoundError.

        Brokers before 5.0 say 0 for a young queue of which nothing is committed.
        """
        session, name = self._session, self._session.wrap(group)
        queues, masters = await readable_queues(session, topic)

        async def query(queue: MessageQueue) -> int | None:
            return await committed_offset(session, masters[queue.broker_name], name, queue)

        return await per_queue(session, queues, query)

    # ---- moving groups ---------------------------------------------------------------------------

    async def plan_reset(
        self,
        group: str,
        topic: str,
        to: ResetTo,
        *,
        broker: str | None = None,
        queue_id: int | None = None,
    ) -> ResetPlan:
        """Where a reset would send a group; changes nothing.

        ``to``: ``"earliest"``, ``"latest"``, a time (the first message stored then or later), or an
        offset, which counts for every queue and is brought into its bounds. ``broker`` and
        ``queue_id`` narrow it. Raises NotFoundError for a topic or group that does not exist.
        """
        return await make_plan(
            self._session, group, topic, to, broker_name=broker, queue_id=queue_id
        )

    async def apply(self, plan: ResetPlan) -> GroupReset:
        """Carry a plan out, for a group with members or without; what came of it, per queue.

        Raises PartialFailureError if only some brokers did it: make a new plan then.
        """
        return await apply_reset(self._session, plan)

    async def reset(
        self,
        group: str,
        topic: str,
        to: ResetTo,
        *,
        broker: str | None = None,
        queue_id: int | None = None,
    ) -> GroupReset:
        """Plan and apply in one."""
        plan = await self.plan_reset(group, topic, to, broker=broker, queue_id=queue_id)
        return await self.apply(plan)

    async def plan_skip(self, group: str, topic: str | None = None) -> list[ResetPlan]:
        """Plans that leave out all that waits: of one topic, or of all and of the retries.

        Raises NotFoundError.
        """
        if topic is not None:
            return [await self.plan_reset(group, topic, "latest")]
        progress = await group_progress(self._session, self._session.wrap(group))
        topics = sorted({queue.queue.topic for queue in progress.queues})
        if not topics:
            raise NotFoundError(f"group {group} has no offsets")
        return [await self.plan_reset(group, name, "latest") for name in topics]

    async def skip(self, group: str, topic: str | None = None) -> list[GroupReset]:
        """Leave out all that waits; see :meth:`plan_skip`."""
        return [await self.apply(plan) for plan in await self.plan_skip(group, topic)]

    async def clone(self, source: str, target: str, topic: str) -> dict[MessageQueue, int]:
        """Let one group begin where another stands; what was set.

        Members of the target must not be connected: they would write their own offsets over it.
        Queues of which the source has committed nothing stay as they are. Raises NotFoundError if
        that is all of them, SubscriptionGroupNotExistError, PartialFailureError.
        """
        found = await self.committed(source, topic)
        offsets = {queue: offset for queue, offset in found.items() if offset is not None}
        if not offsets:
            raise NotFoundError(f"group {source} has committed nothing of topic {topic}")
        await self.commit(target, offsets)
        return offsets

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set offsets of a group as its members do (15); members that are connected win.

        Raises SubscriptionGroupNotExistError, BrokerError if a reset of the group is pending,
        PartialFailureError.
        """
        session, name = self._session, self._session.wrap(group)
        by_broker: dict[str, list[tuple[MessageQueue, int]]] = {}
        for queue, offset in offsets.items():
            if offset < 0:
                raise InvalidParameterError(f"{offset} is no offset")
            pair = session.namespace.wrap_queue(queue), offset
            by_broker.setdefault(queue.broker_name, []).append(pair)
        masters = await session.masters()
        if missing := by_broker.keys() - masters.keys():
            raise NotFoundError(f"there is no broker {', '.join(sorted(missing))}")

        async def commit(broker: str, address: str) -> None:
            for queue, offset in by_broker[broker]:
                await commit_offset(session, address, name, queue, offset)

        targets = {broker: masters[broker] for broker in by_broker}
        (await on_each(targets, commit)).all()
