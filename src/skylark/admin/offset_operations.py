"""Offsets: first and next offsets of queues, committed offsets of groups, and resets.

A reset has two steps: a *plan* has the current and the new offset of every queue and changes
nothing; :meth:`Offsets.apply` applies it (:mod:`skylark.admin.offset_reset_plan`)::

    plan = await admin.offsets.plan_reset("billing", "orders", to=datetime(2026, 11, 1, tzinfo=UTC))
    for queue in plan.queues:
        print(queue.queue, queue.committed, "->", queue.new_offset)
    await admin.offsets.apply(plan)

Counterpart of mqadmin's resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset, and of the
offset functions of Java's ``MQAdmin``.
"""

from __future__ import annotations

from collections.abc import Mapping

from skylark.admin.admin_session import Operations
from skylark.admin.consumer_progress import group_progress
from skylark.admin.errors import NotFoundError
from skylark.admin.fan_out import on_each
from skylark.admin.offset_reset_plan import GroupReset, ResetPlan, ResetTo, apply_reset, make_plan
from skylark.admin.topic_queues import (
    Moment,
    TopicStats,
    commit_offset,
    committed_offset,
    per_queue,
    readable_queues,
    to_ms,
    topic_stats,
)
from skylark.client.core.argument_checks import checks_arguments
from skylark.core.errors import InvalidParameterError
from skylark.wire.bodies.common_body import MessageQueue


@checks_arguments
class Offsets(Operations):
    """Functions about offsets."""

    # ---- queries ---------------------------------------------------------------------------------

    async def bounds(self, topic: str) -> TopicStats:
        """The first and the next offset of every queue; raises NotFoundError."""
        name = self._session.wrap(topic)
        return await topic_stats(self._session, name, await self._session.topic_masters(name))

    async def at_time(
        self, topic: str, moment: Moment, *, upper: bool = False
    ) -> dict[MessageQueue, int]:
        """Per queue, the offset of the first message stored at this time or later.

        The end of the queue if there is none; ``upper``: the last one stored until then. Raises
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
        """The committed offset of a group per queue, None for none; raises NotFoundError.

        Brokers before 5.0 return 0 for a new queue without a committed offset.
        """
        session, name = self._session, self._session.wrap(group)
        queues, masters = await readable_queues(session, topic)

        async def query(queue: MessageQueue) -> int | None:
            return await committed_offset(session, masters[queue.broker_name], name, queue)

        return await per_queue(session, queues, query)

    # ---- resets ----------------------------------------------------------------------------------

    async def plan_reset(
        self,
        group: str,
        topic: str,
        to: ResetTo,
        *,
        broker: str | None = None,
        queue_id: int | None = None,
    ) -> ResetPlan:
        """Plan a reset; changes nothing.

        ``to``: ``"earliest"``, ``"latest"``, a time (the first message stored then or later), or an
        offset, which applies to every queue and is clamped to its bounds. ``broker`` and
        ``queue_id`` select queues. Raises NotFoundError for a topic or group that does not exist.
        """
        return await make_plan(
            self._session, group, topic, to, broker_name=broker, queue_id=queue_id
        )

    async def apply(self, plan: ResetPlan) -> GroupReset:
        """Apply a plan, for a group with members or without; returns the result per queue.

        Raises PartialFailureError if only some brokers applied it: make a new plan then.
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
        """Plan and apply a reset."""
        plan = await self.plan_reset(group, topic, to, broker=broker, queue_id=queue_id)
        return await self.apply(plan)

    async def plan_skip(self, group: str, topic: str | None = None) -> list[ResetPlan]:
        """Plans that skip the backlog of one topic, or of all topics and retries.

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
        """Skip the backlog; see :meth:`plan_skip`."""
        return [await self.apply(plan) for plan in await self.plan_skip(group, topic)]

    async def clone(self, source: str, target: str, topic: str) -> dict[MessageQueue, int]:
        """Copy the committed offsets of one group to another; returns the copied offsets.

        Members of the target must not be connected: they would overwrite the offsets. Queues
        without a committed offset of the source are not changed. Raises NotFoundError if that is
        all of them, SubscriptionGroupNotExistError, PartialFailureError.
        """
        found = await self.committed(source, topic)
        offsets = {queue: offset for queue, offset in found.items() if offset is not None}
        if not offsets:
            raise NotFoundError(f"group {source} has no committed offsets in topic {topic}")
        await self.commit(target, offsets)
        return offsets

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets for a group (15), as members do; connected members may overwrite them.

        Raises SubscriptionGroupNotExistError, BrokerError if a reset of the group is pending,
        PartialFailureError.
        """
        session, name = self._session, self._session.wrap(group)
        by_broker: dict[str, list[tuple[MessageQueue, int]]] = {}
        for queue, offset in offsets.items():
            if offset < 0:
                raise InvalidParameterError(f"{offset} is not a valid offset")
            pair = session.namespace.wrap_queue(queue), offset
            by_broker.setdefault(queue.broker_name, []).append(pair)
        masters = await session.masters()
        if missing := by_broker.keys() - masters.keys():
            raise NotFoundError(f"broker {', '.join(sorted(missing))} does not exist")

        async def commit(broker: str, address: str) -> None:
            for queue, offset in by_broker[broker]:
                await commit_offset(session, address, name, queue, offset)

        targets = {broker: masters[broker] for broker in by_broker}
        (await on_each(targets, commit)).all()
