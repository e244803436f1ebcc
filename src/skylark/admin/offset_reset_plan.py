"""Plans and applies resets of the offsets of a consumer group.

**The plan** is made from the current bounds of every queue, the committed offsets of the group and,
for a time, the first message stored then or later. A time after the last message means the end,
also with older brokers, whose search returns the last message.

**Applying** depends on the settings of each broker (26):

=============================  =====================================================================
``useServerSideResetOffset``   222 for each queue with its offset: the broker sets it and redirects
(5.x, the default)             the next pull. Members may be connected or not
without it (4.x), members      222 with the time for the whole topic: the broker computes the
are connected                  offsets again and notifies the members (220). A reset to an offset
                               or of a single queue is refused
without it, no members         (206) the offsets are committed directly (15), which is mqadmin's
                               fallback too
=============================  =====================================================================

At the end every offset is read again, so the result has the actual offsets. Counterpart of Java's
``ResetOffsetByTimeCommand``, ``resetOffsetByTimestamp`` and ``resetOffsetByTimestampOld`` with
``force``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.connected_clients import group_members
from skylark.admin.errors import NotFoundError
from skylark.admin.fan_out import few_at_a_time, on_each
from skylark.admin.topic_queues import (
    QueueStats,
    commit_offset,
    committed_offset,
    readable_queues,
    selected_queues,
    to_ms,
    topic_stats,
)
from skylark.client.core.broker_calls import make_request
from skylark.core.errors import (
    BrokerError,
    ClientError,
    ConsumerNotOnlineError,
    InvalidParameterError,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.slave_sync_body import SubscriptionGroupWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.headers.offset import ResetOffsetRequestHeader

#: The new position: an end, a time, or an offset in every queue.
ResetTo: TypeAlias = Literal["earliest", "latest"] | datetime | int

SERVER_SIDE: Final = b"useServerSideResetOffset=true"
TO_END: Final = -1
TO_START: Final = 0


class QueueReset(msgspec.Struct, frozen=True, kw_only=True):
    """The current and the new offset of one queue."""

    queue: MessageQueue
    committed: int | None  #: None: nothing
    new_offset: int
    min_offset: int
    max_offset: int

    @property
    def step(self) -> int:
        """New minus current offset: below zero, messages are consumed again; above, skipped.

        A queue without a committed offset counts from its first offset.
        """
        return self.new_offset - (self.min_offset if self.committed is None else self.committed)


class ResetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned reset; ``time_ms`` is for brokers that reset only by time."""

    group: str
    topic: str
    queues: tuple[QueueReset, ...]
    is_online: bool  #: a member was connected
    time_ms: int | None  #: -1 for the end; None: not a time
    is_whole: bool = True  #: all queues of the topic


class QueueDone(msgspec.Struct, frozen=True, kw_only=True):
    """One queue after a reset."""

    queue: MessageQueue
    old_offset: int | None
    offset: int | None  #: current offset; members may not have applied it yet


class GroupReset(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reset."""

    group: str
    topic: str
    queues: tuple[QueueDone, ...]
    by_members: bool = False  #: members were notified, and commit later


# ---- plan ----------------------------------------------------------------------------------------


async def make_plan(
    session: Session,
    group: str,
    topic: str,
    to: ResetTo,
    *,
    broker_name: str | None = None,
    queue_id: int | None = None,
) -> ResetPlan:
    """See :meth:`skylark.admin.offset_operations.Offsets.plan_reset`."""
    _check_target(to)
    all_queues, masters = await readable_queues(session, topic)
    queues = selected_queues(all_queues, topic, broker_name, queue_id)
    name = session.wrap(group)
    members = await group_members(session, name)
    stats = await topic_stats(session, session.wrap(topic), masters)
    if stats.failures:
        failed = stats.failures[0]
        raise ClientError(f"cannot plan the reset: {failed.server}: {failed.problem}")
    bounds = {entry.queue: entry for entry in stats.queues}

    async def plan(queue: MessageQueue) -> QueueReset:
        address = masters[queue.broker_name]
        shown = session.unwrap_queue(queue)
        ends = bounds.get(shown) or QueueStats(
            queue=shown, min_offset=0, max_offset=0, last_time_ms=None
        )
        return QueueReset(
            queue=shown,
            committed=await committed_offset(session, address, name, queue),
            new_offset=await _target(session, address, queue, to, ends),
            min_offset=ends.min_offset,
            max_offset=ends.max_offset,
        )

    planned = await few_at_a_time(queues, plan)
    if all(entry.committed is None for entry in planned):
        await _require_group(session, name, masters)
    return ResetPlan(
        group=group,
        topic=topic,
        queues=tuple(planned),
        is_online=bool(members.members),
        time_ms=_time_of(to),
        is_whole=len(queues) == len(all_queues),
    )


def _check_target(to: ResetTo) -> None:
    if isinstance(to, str) and to not in ("earliest", "latest"):
        raise InvalidParameterError(f"{to!r} is not earliest, latest, a time or an offset")
    if isinstance(to, int) and to < 0:
        raise InvalidParameterError(f"{to} is not a valid offset")


async def _target(
    session: Session, address: str, queue: MessageQueue, to: ResetTo, ends: QueueStats
) -> int:
    if to == "earliest":
        return ends.min_offset
    if to == "latest":
        return ends.max_offset
    if isinstance(to, datetime):
        time_ms = to_ms(to)
        if ends.last_time_ms is None or time_ms > ends.last_time_ms:
            return ends.max_offset
        wanted = await session.calls.search_offset(address, queue, time_ms)
    else:
        assert isinstance(to, int)
        wanted = to
    return min(max(wanted, ends.min_offset), ends.max_offset)


def _time_of(to: ResetTo) -> int | None:
    if to == "earliest":
        return TO_START
    if to == "latest":
        return TO_END
    return to_ms(to) if isinstance(to, datetime) else None


async def _require_group(session: Session, group: str, masters: dict[str, str]) -> None:
    """Raise NotFoundError unless a broker of the topic knows the group."""
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    tables = await session.ask_each(SubscriptionGroupWrapper, masters, code)
    if not any(group in table.subscription_group_table for table in tables.all().values()):
        raise NotFoundError(f"group {session.unwrap(group)} does not exist")


# ---- apply ---------------------------------------------------------------------------------------


async def apply_reset(session: Session, plan: ResetPlan) -> GroupReset:
    """See :meth:`skylark.admin.offset_operations.Offsets.apply`."""
    by_broker: dict[str, list[QueueReset]] = {}
    for queue in plan.queues:
        by_broker.setdefault(queue.queue.broker_name, []).append(queue)
    masters = await session.topic_masters(session.wrap(plan.topic))
    if missing := by_broker.keys() - masters.keys():
        raise NotFoundError(f"broker {', '.join(sorted(missing))} has no master now")

    async def apply(broker: str, address: str) -> bool:
        return await _apply_on(session, plan, address, by_broker[broker])

    told = (await on_each({b: masters[b] for b in by_broker}, apply)).all()

    async def read(queue: QueueReset) -> QueueDone:
        return QueueDone(
            queue=queue.queue,
            old_offset=queue.committed,
            offset=await committed_offset(
                session,
                masters[queue.queue.broker_name],
                session.wrap(plan.group),
                session.namespace.wrap_queue(queue.queue),
            ),
        )

    return GroupReset(
        group=plan.group,
        topic=plan.topic,
        queues=tuple(await few_at_a_time(plan.queues, read)),
        by_members=any(told.values()),
    )


async def _apply_on(
    session: Session, plan: ResetPlan, address: str, queues: Sequence[QueueReset]
) -> bool:
    """Apply one broker's part of a plan; returns whether it notified members."""
    if await _resets_on_server_side(session, address):

        async def reset(queue: QueueReset) -> None:
            request = _request(session, plan, queue.queue.queue_id, queue.new_offset)
            await session.call(address, request)

        # Concurrently: the broker responds when the offsets are on disk, and one write serves many.
        await few_at_a_time(queues, reset)
        return False
    if plan.time_ms is not None and plan.is_whole:
        try:
            await session.call(address, _request(session, plan))
        except ConsumerNotOnlineError:
            pass
        else:
            return True
    elif plan.is_online:
        raise ClientError(
            f"this broker cannot reset {plan.group} to offsets while members are connected",
            hint="stop the members first, or reset all queues by time",
        )
    group = session.wrap(plan.group)
    for queue in queues:
        name = session.namespace.wrap_queue(queue.queue)
        await commit_offset(session, address, group, name, queue.new_offset)
    return False


async def _resets_on_server_side(session: Session, address: str) -> bool:
    try:
        answer = await session.call(address, make_request(RequestCode.GET_BROKER_CONFIG))
    except BrokerError:  # this user may not read settings: assume the default
        return True
    return SERVER_SIDE in (answer.body or b"").split(b"\n")


def _request(
    session: Session, plan: ResetPlan, queue_id: int = -1, offset: int | None = None
) -> Command:
    header = ResetOffsetRequestHeader(
        topic=session.wrap(plan.topic),
        group=session.wrap(plan.group),
        queue_id=queue_id,
        offset=offset,
        timestamp=TO_START if plan.time_ms is None else plan.time_ms,
        is_force=True,
    )
    return make_request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
