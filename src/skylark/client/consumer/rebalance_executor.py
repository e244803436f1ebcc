"""Executes the instructions of :mod:`skylark.client.consumer.rebalance`, on the control loop.

It takes up and gives up queues, saves the offsets of queues that are given up, and renews locks,
even while an application blocks its loop. It notifies the loop that consumes by ``start_pull`` and
``stop_pull``, which only hand over. It gives a queue up by a flag (``ProcessQueue.dropped``), so
even a blocked loop cannot commit to that queue later.

Rounds and offset jumps run one at a time. Within a round requests for several queues are sent
concurrently: first those that give up queues, then those that take up queues.

Counterpart of the executing parts of Java's ``RebalanceImpl`` and ``RebalancePushImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from skylark.client.consumer.offset_persistence import OffsetStore
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.rate_limited_log import RateLimitedLog
from skylark.client.consumer.rebalance import (
    AwaitHandover,
    AwaitIdle,
    Freeze,
    Instruction,
    Lock,
    Open,
    Persist,
    Rebalance,
    Release,
    Settled,
    StartPull,
    WakeRebalance,
    locks_by_broker,
)
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.route_cache import Route
from skylark.core.errors import SkylarkError
from skylark.core.lifecycle import Tasks
from skylark.core.names import is_retry_topic
from skylark.wire.bodies.admin_body import ConsumerConnection, SubscriptionSide
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

#: Interval of the check whether a handler has ended.
IDLE_CHECK_MS: Final = 10
#: Pause between requests for locks that another consumer holds.
RELOCK_S: Final = 1.0
#: How long to wait until another member has released a queue, and the pause between two checks.
HANDOVER_WAIT_MS: Final = 5_000
HANDOVER_CHECK_MS: Final = 100
HANDOVER_TIMEOUT_S: Final = 1.0
CONFLICTS_SHOWN_MAX: Final = 5
CONFLICTS_EVERY_MS: Final = 60_000


class DataPlane(Protocol):
    """The loop that consumes; methods are called on the control loop and only hand over."""

    def start_pull(
        self, queue: MessageQueue, process_queue: ProcessQueue, offset: int, delay_ms: int
    ) -> bool:
        """Start to pull a queue; False if that loop is closed."""

    def stop_pull(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """The queue was given up."""

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Whether a handler runs on the queue."""

    def alive_ms(self) -> int | None:
        """A time since which pull loops have run; None if their event loop was closed."""

    def queues_changed(self, settled: Settled) -> None:
        """The queues of a topic have changed: apply the limits, and call listeners."""


class BrokerShares(Protocol):
    """Gets shares from brokers, instead of computing them of the members."""

    async def share(self, topic: str) -> frozenset[MessageQueue] | None:
        """The queues of a topic to pull; None: keep the old ones. Starts and ends pops itself."""

    def retain_topics(self, topics: Collection[str]) -> None:
        """All other topics are no longer subscribed."""


class RebalanceExecutor:
    """Rebalances the queues of one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        rebalance: Rebalance,
        *,
        subscriptions: Callable[[], Mapping[str, Subscription]],
        offsets: OffsetStore,
        first_offset: Callable[[MessageQueue], Awaitable[int]],
        data_plane: DataPlane,
        on_abandoned: Callable[[], Coroutine[Any, Any, None]],
        by_broker: BrokerShares | None = None,
    ) -> None:
        """``subscriptions`` are by topic, as brokers know it.

        ``first_offset`` finds the start offset of a queue or raises SkylarkError; ``on_abandoned``
        leaves the group after the event loop of the application was closed.
        """
        self.rebalance = rebalance
        self._group = rebalance.group
        self.tasks = Tasks(f"rebalance {self._group}")  #: on the control loop
        self._instance = instance
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._first_offset = first_offset
        self._data_plane = data_plane
        self._clock = instance.runtime.clock
        self._one_at_a_time = asyncio.Lock()
        self._limited_log = RateLimitedLog(logger, self._clock)
        self._strays: set[MessageQueue] = set()  # queues that may be locked for us but are not ours
        self._on_abandoned = on_abandoned
        self._by_broker = by_broker
        self._report_conflicts_ms = 0
        self.closed = False

    # ---- rounds ----------------------------------------------------------------------------------

    async def round(self) -> bool:
        """Rebalance all topics once; returns whether we have exactly our share."""
        balanced = True
        async with self._one_at_a_time:
            alive_ms = self._data_plane.alive_ms()
            if alive_ms is None:
                self._abandon()
                return True
            if self.rebalance.clustering:
                # Before others learn that they may take queues over.
                await self._offsets.save(tuple(self.rebalance.table), changed=True)
            for topic in tuple(self._subscriptions()):
                if self.closed:
                    return True
                balanced &= await self._share_topic(topic, alive_ms)
            topics = self._subscriptions()
            await self._carry_out(self.rebalance.retain_topics(topics, self._clock.steady_ms()))
            await self._free_strays(lambda queue: queue.topic not in topics)
            if self._by_broker is not None:
                self._by_broker.retain_topics(topics)
        return balanced

    async def _share_topic(self, topic: str, alive_ms: int) -> bool:
        route = self._instance.routes.get(topic) or await self._route(topic)
        if route is None:
            return True  # the topic has no queues yet
        share = await self._find_share(topic, route)
        if share is None or self.closed:
            return False
        now_ms = self._clock.steady_ms()
        await self._carry_out(self.rebalance.apply(topic, share, now_ms, alive_ms))
        await self._free_strays(lambda queue: queue.topic == topic and queue not in share)
        settled = self.rebalance.settled(topic, route.subscribe, share, self._clock.steady_ms())
        if settled is not None:
            await self._announce(settled)
        # A dropped queue whose handler runs needs the next round soon, not in 20 s as in Java.
        return self.rebalance.is_balanced(topic, share) and not self._holds_dropped(topic)

    async def _find_share(self, topic: str, route: Route) -> frozenset[MessageQueue] | None:
        """The queues that should be ours; None: keep the old ones."""
        if self._by_broker is not None:
            return await self._by_broker.share(topic)
        members = await self._members(topic) if self.rebalance.clustering else ()
        try:
            return self.rebalance.share(topic, route.subscribe, members)
        except Exception:
            strategy = self.rebalance.strategy
            logger.exception("allocation strategy %s failed for %s", strategy, topic)
            return None

    def _holds_dropped(self, topic: str) -> bool:
        table = tuple(self.rebalance.table.items())
        return any(queue.topic == topic and each.is_closing for queue, each in table)

    async def _route(self, topic: str) -> Route | None:
        """Fetch an unknown route now: the retry topic of a group is created with its first member,
        and should not wait for the next refresh of all routes."""
        try:
            return await self._instance.refresh_route(topic)
        except SkylarkError as error:
            self._limited_log.failed(("route", topic), error, "%s has no route yet", topic)
            return None

    async def _members(self, topic: str) -> list[str] | None:
        link = self._instance.control_link
        try:
            address = await link.lookup.broker_of_topic(topic)
            return await link.calls.consumer_ids(address, self._group) or None
        except SkylarkError as error:
            self._limited_log.failed(
                "members", error, "cannot get the members of %s now", self._group
            )
            return None

    async def _announce(self, settled: Settled) -> None:
        logger.info(
            "%s has %d of %d queues of %s now", self._group, len(settled.my_queues),
            len(settled.all_queues), settled.topic,
        )  # fmt: skip
        subscription = self._subscriptions().get(settled.topic)
        if subscription is not None:
            subscription.renew(settled.sub_version)
        await self._instance.heartbeat_all(whole=True)
        self._data_plane.queues_changed(settled)

    # ---- instructions ----------------------------------------------------------------------------

    async def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        giving: list[Instruction] = []
        taking: list[Instruction] = []
        for each in instructions:
            (giving if isinstance(each, Persist | AwaitIdle | Release) else taking).append(each)
        await asyncio.gather(*map(self._do, giving))
        await asyncio.gather(*map(self._do, taking))

    async def _do(self, instruction: Instruction) -> None:
        try:
            for further in await self._step(instruction):
                await self._do(further)
        except SkylarkError as error:
            kind = type(instruction)  # many queues of one broker fail for one reason
            self._limited_log.failed(kind, error, "the next round repeats %s", instruction)
        except Exception:
            logger.exception("%s failed", instruction)

    async def _step(self, instruction: Instruction) -> list[Instruction]:
        match instruction:
            case Persist(queue):
                await self._offsets.save([queue])
            case AwaitIdle(queue, process_queue, wait_ms):
                idle = await self._is_idle_within(process_queue, wait_ms)
                return self.rebalance.awaited(queue, process_queue, idle=idle)
            case Release():
                await self._release(instruction)
            case Lock(broker_name, queues):
                self._strays.update(queues)
                held = await self._lock(broker_name, queues)
                return self.rebalance.locked(queues, held)
            case AwaitHandover(owner, queues):
                self.tasks.spawn(self._await_handover(owner, queues), name="handover")
            case Open(queue, delay_ms):
                self._offsets.table.forget(queue)
                offset = await self._first_offset(queue)
                now_ms = self._clock.steady_ms()
                return [] if self.closed else self.rebalance.opened(queue, offset, now_ms, delay_ms)
            case StartPull(queue, process_queue, offset, delay_ms):
                delay_ms *= self._instance.runtime.delays_first_pull
                if not self._data_plane.start_pull(queue, process_queue, offset, delay_ms):
                    self._abandon()
            case Freeze(queue, offset):
                self._offsets.table.update_and_freeze(queue, offset)
            case WakeRebalance(delay_ms):
                self._wake(delay_ms)
        return []

    async def _release(self, release: Release) -> None:
        queue = release.queue
        self._data_plane.stop_pull(queue, release.process_queue)
        await self._offsets.save([queue], wait=True)  # the next owner reads it at once
        self._offsets.table.forget(queue)
        if release.unlock and not await self._unlock([queue], oneway=True):
            self._strays.add(queue)

    async def _is_idle_within(self, process_queue: ProcessQueue, wait_ms: int) -> bool:
        for _ in range(wait_ms // IDLE_CHECK_MS):
            was_busy = self._data_plane.is_busy(process_queue)
            # A result may be committed a moment later, in the other thread: check twice.
            await self._clock.sleep(IDLE_CHECK_MS / 1000)
            if not was_busy and not self._data_plane.is_busy(process_queue):
                return True
        return False

    async def _await_handover(self, owner: str, queues: Collection[MessageQueue]) -> None:
        """Take up queues when another member has released them, or after a time anyway."""
        deadline_ms = self._clock.steady_ms() + HANDOVER_WAIT_MS
        held = await self._holds(owner, queues)
        while held and self._clock.steady_ms() < deadline_ms:
            await self._clock.sleep(HANDOVER_CHECK_MS / 1000)
            held = await self._holds(owner, queues)
        async with self._one_at_a_time:
            if not self.closed:
                confirmed = held is False
                await self._carry_out(self.rebalance.handed_over(queues, confirmed=confirmed))
        if not self.closed:
            self._instance.rebalance_soon()  # announces the new share

    async def _holds(self, owner: str, queues: Collection[MessageQueue]) -> bool | None:
        """Whether a member still has an offset of one of these queues; None if that is unknown.

        The broker relays the question to the member, which removes an offset after it has saved it.
        """
        queue = next(iter(queues))
        try:
            link = self._instance.control_link  # raises if the client is being stopped
            address = await link.lookup.master_of(queue)
            offsets = await link.calls.consumer_status(
                address, self._group, queue.topic, owner, HANDOVER_TIMEOUT_S
            )
        except SkylarkError as error:
            logger.info("cannot ask %s whether it has released %s: %s", owner, queues, error)
            return None
        except Exception:  # such as an error of a hook
            logger.exception("cannot ask %s whether it has released %s", owner, queues)
            return None
        return None if offsets is None else any(queue in offsets for queue in queues)

    def save_soon(self, queues: Collection[MessageQueue]) -> None:
        """Save offsets that have changed; on the control loop."""
        if not self.tasks.closed:
            self.tasks.spawn(self._save_changed(queues), name="save")

    async def _save_changed(self, queues: Collection[MessageQueue]) -> None:
        await self._offsets.save(queues, changed=True)

    def _wake(self, delay_ms: int) -> None:
        if not delay_ms:
            self._instance.rebalance_soon()
        elif not self.tasks.closed:
            self.tasks.spawn(self._wake_later(delay_ms), name="wake")

    async def _wake_later(self, delay_ms: int) -> None:
        await self._clock.sleep(delay_ms / 1000)
        self._instance.rebalance_soon()

    # ---- members that differ ---------------------------------------------------------------------

    def report_conflicts(self) -> bool:
        """Log which members subscribe differently, at most once a minute; on the control loop.

        Returns whether this looks for them, which ends later.
        """
        now_ms, topics = self._clock.steady_ms(), tuple(self._subscriptions())
        if self.tasks.closed or not topics or now_ms < self._report_conflicts_ms:
            return False
        self._report_conflicts_ms = now_ms + CONFLICTS_EVERY_MS
        self.tasks.spawn(self._report_conflicts(topics), name="conflicts")
        return True

    async def _report_conflicts(self, topics: Sequence[str]) -> None:
        link = self._instance.control_link
        try:
            address = await link.lookup.broker_of_topic(topics[0])
            members = await link.calls.consumer_connection(address, self._group)
        except SkylarkError as error:
            logger.info("cannot find out which members of %s differ: %s", self._group, error)
            return
        if text := describe_conflicts(members, self._instance.client_id, topics):
            logger.error(
                "the members of group %s subscribe differently, so each of them misses messages:"
                " %s; all members of a group must subscribe to the same topics with the same"
                " filters: use two groups",
                self._group,
                text,
            )

    # ---- offset jumps ------------------------------------------------------------------------

    def offset_illegal(
        self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int
    ) -> None:
        """The broker does not have the pull offset; on the control loop."""
        if not self.tasks.closed:
            work = self._move(queue, process_queue, next_offset)
            self.tasks.spawn(work, name=f"move {queue}")

    async def _move(
        self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int
    ) -> None:
        async with self._one_at_a_time:
            now_ms = self._clock.steady_ms()
            for each in self.rebalance.offset_illegal(queue, process_queue, next_offset, now_ms):
                await self._do(each)

    async def jump(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Give up queues so that they start again at these offsets, which may be lower.

        A queue that was already given up will also start there.
        """
        async with self._one_at_a_time:
            for queue, offset in offsets.items():
                if queue in self.rebalance.table:
                    self._offsets.table.update(queue, offset, increase_only=False)
                    await self._carry_out(self.rebalance.drop(queue, self._clock.steady_ms()))
                elif not self.closed:
                    self._offsets.table.update(queue, offset, increase_only=False)
                    await self._do(Persist(queue))
                    self._offsets.table.forget(queue)

    # ---- locks -----------------------------------------------------------------------------------

    async def relock(self) -> None:
        """Renew the locks of all queues, and keep requesting those that another member holds.

        A broker that restarted has no locks, and may grant ours to a member that connects before
        us. Java's client requests them again after 20 seconds only.
        """
        await self._renew_locks()
        while not self.closed and self.rebalance.lacks_locks:
            await self._clock.sleep(RELOCK_S)
            await self._renew_locks()

    async def _renew_locks(self) -> None:
        for each in self.rebalance.lock_requests():
            held = await self._ask_lock(each.broker_name, each.queues)
            if held is not None:
                self.rebalance.relocked(each.queues, held, self._clock.steady_ms())

    async def lock_one(self, queue: MessageQueue) -> bool:
        """Request the lock of a queue; returns whether it was granted."""
        return queue in await self._lock(queue.broker_name, (queue,))

    async def _lock(
        self, broker_name: str, queues: Collection[MessageQueue]
    ) -> Collection[MessageQueue]:
        held = await self._ask_lock(broker_name, queues)
        if held is None:
            return ()
        self._strays.difference_update(queue for queue in queues if queue not in held)
        return held

    async def _ask_lock(
        self, broker_name: str, queues: Collection[MessageQueue]
    ) -> Collection[MessageQueue] | None:
        """Request locks; returns those that were granted, None if the request failed."""
        link = self._instance.control_link
        try:
            address = await link.lookup.master_of(next(iter(queues)))
            return await link.calls.lock_queues(
                address, self._group, self._instance.client_id, queues
            )
        except SkylarkError as error:
            self._limited_log.failed(
                ("lock", broker_name), error, "cannot get locks from %s now", broker_name
            )
        except Exception:  # such as an error of a hook; other locks are still requested
            logger.exception("cannot get locks from %s", broker_name)
        return None

    async def _free_strays(self, is_stray: Callable[[MessageQueue], bool]) -> None:
        """Unlock queues whose lock may have been granted when a connection was lost.

        Otherwise their owner would have to wait until the lock expires.
        """
        self._strays.difference_update(self.rebalance.table)

        async def free(queues: Collection[MessageQueue]) -> None:
            if await self._unlock(queues, oneway=False):
                self._strays.difference_update(queues)

        asked = locks_by_broker(sorted(filter(is_stray, self._strays)))
        await asyncio.gather(*(free(each.queues) for each in asked))

    async def _unlock(self, queues: Collection[MessageQueue], *, oneway: bool) -> bool:
        """Unlock queues; returns whether the request succeeded."""
        link = self._instance.control_link
        try:
            address = await link.lookup.master_of(next(iter(queues)))
            await link.calls.unlock_queues(
                address, self._group, self._instance.client_id, queues, oneway=oneway
            )
        except SkylarkError as error:
            self._limited_log.failed("unlock", error, "cannot unlock %d queues now", len(queues))
            return False
        return True

    # ---- the end ---------------------------------------------------------------------------------

    def _abandon(self) -> None:
        if not self.closed:
            self.closed = True
            logger.error(
                "the event loop of %s was closed without stop(): it leaves the group", self._group
            )
            self.tasks.spawn(self._on_abandoned(), name="leave")

    def refuse(self) -> None:
        """Take up no more queues."""
        self.closed = True

    async def close(self) -> None:
        """After the handlers have ended: save the offsets, then release the locks.

        In this order, because the next holder of a lock starts at the saved offset. (Java's client
        unlocks first when it stops, so the next owner may read an old offset and deliver messages
        again.)
        """
        self.closed = True
        await self.tasks.cancel_and_wait()
        async with self._one_at_a_time:
            await self._offsets.save(tuple(self.rebalance.table), wait=True)
            held = self.rebalance.lock_requests()
            await asyncio.gather(*(self._unlock(each.queues, oneway=False) for each in held))
            await self._free_strays(lambda _: True)

    def drop_all(self) -> None:
        """Drop all queues."""
        self.rebalance.drop_all()


def describe_conflicts(members: ConsumerConnection, client_id: str, topics: Collection[str]) -> str:
    """How other members subscribe differently; empty if none does.

    Skylark's brokers know the subscriptions of each member, Apache's only the last one of the
    group. Retry topics are left out: clients subscribe to them by themselves, each when it needs
    them. While the mode of a group changes, some members pull the pop retries of a topic and the
    others pop.
    """
    conflicts = [
        each for each in members.subscription_conflicts or () if not is_retry_topic(each.topic)
    ]
    if conflicts:
        return "; ".join(
            f"topic {conflict.topic}: "
            + ", but ".join(_describe_side(side, client_id) for side in conflict.sides)
            for conflict in conflicts[:CONFLICTS_SHOWN_MAX]
        )
    wanted = {topic for topic in topics if not is_retry_topic(topic)}
    lacking = sorted(wanted - members.subscription_table.keys())
    others = sorted({each.client_id for each in members.connection_set} - {client_id})
    if not lacking or not others:
        return ""
    return f"topic {', '.join(lacking)} is not subscribed by one of {', '.join(others)}"


def _describe_side(side: SubscriptionSide, client_id: str) -> str:
    who = ["this consumer" if each == client_id else each for each in side.client_ids]
    if side.client_count > len(who):
        who.append(f"{side.client_count - len(who)} more")
    if side.expression is None:
        return f"{', '.join(who)}: not subscribed"
    return f"{', '.join(who)}: {side.expression_type} {side.expression}"


async def announce(instance: ClientInstance, topic: str | None) -> None:
    """Send a changed subscription to brokers, and rebalance; ``topic`` is one that was added."""
    try:
        if topic is not None:
            await instance.refresh_route(topic)
        await instance.heartbeat_all(whole=True)
    except SkylarkError as error:
        logger.warning(
            "cannot send the changed subscription now, the next heartbeat has it: %s", error
        )
    instance.rebalance_soon()
