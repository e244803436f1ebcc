"""Rebalance decisions: which queues a consumer gives up and takes up, as instructions.

A :class:`Rebalance` holds the process queues of one consumer. Each round, for each topic::

    share = rebalance.share(topic, queues, members)              # our queues; None: skip
    for each instruction of rebalance.apply(topic, share, now_ms): execute it

    rebalance.settled(topic, queues, share, now_ms)              # what has changed, to announce
    rebalance.is_balanced(topic, share)                          # else the next round follows soon

After executing an instruction the caller reports its result by the method that the instruction
names, and executes the instructions that this returns.

**Giving up.** No more messages of the queue are handed out. The caller waits for handlers that have
some, 500 ms in this round and again in the next ones, at most 3 s (orderly: until 20 s after the
last renewal of the lock, because two consumers must not run at the same time). Then the queue is
*dropped*: nothing of it is committed any more. Its offset is saved for the next owner, and removed
here. A queue that was not pulled for 120 s is given up too, without waiting, and taken up again in
the same round, unless a handler blocks the loop that consumes.

**Taking up.** An orderly queue is locked first; if that fails, the next attempt follows after
500 ms. Of other queues the caller waits, bounded, until the member that had the queue before has
released it; the same strategy with the former members tells which one that is. Then the start
offset is read (:mod:`skylark.client.consumer.start_position`); if that fails, the next round tries
again. Where nobody has confirmed the release, and the group has other members, the first pull waits
for 500 ms, and the offset is read once more. Broadcasting consumers have all queues, and wait for
nothing.

``dropped`` is set here and read by the loop that consumes: this may run in another thread, but only
in one.

Counterpart of Java's ``RebalanceImpl``, ``RebalancePushImpl`` and the classes of pull consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from skylark.client.consumer.allocation import Allocation
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

IDLE_WAIT_MS: Final = 500
FORCED_UNLOCK_MS: Final = 20_000
LOCK_RETRY_MS: Final = 500
#: Before the first pull of a queue that another member may still commit to.
FIRST_PULL_DELAY_MS: Final = 500
#: How long the handlers of a queue that is given up may take to finish.
DRAIN_MS: Final = 3_000
RELOCK_FIRST_MS: Final = 1_000
RELOCK_INTERVAL_MS: Final = 20_000


class Persist(msgspec.Struct, frozen=True):
    """Save the offset of the queue, if memory has one."""

    queue: MessageQueue


class AwaitIdle(msgspec.Struct, frozen=True):
    """Wait until no handler runs on the queue, then :meth:`Rebalance.awaited`."""

    queue: MessageQueue
    process_queue: ProcessQueue
    wait_ms: int = IDLE_WAIT_MS


class Release(msgspec.Struct, frozen=True):
    """Save the offset, forget it, stop the loop of the queue, and unlock it if ``unlock``."""

    queue: MessageQueue
    process_queue: ProcessQueue
    unlock: bool = False


class Lock(msgspec.Struct, frozen=True):
    """Ask the master of the broker for these queues, then :meth:`Rebalance.locked`."""

    broker_name: str
    queues: tuple[MessageQueue, ...]


class AwaitHandover(msgspec.Struct, frozen=True):
    """Wait, bounded, until this member has released these queues of one topic.

    Then :meth:`Rebalance.handed_over`; the round does not wait for it.
    """

    owner: str
    queues: tuple[MessageQueue, ...]


class Open(msgspec.Struct, frozen=True):
    """Remove any offset of the queue, read the start offset, then :meth:`Rebalance.opened`.

    If that fails, report nothing: the next round tries again.
    """

    queue: MessageQueue
    delay_ms: int = FIRST_PULL_DELAY_MS


class StartPull(msgspec.Struct, frozen=True):
    """Start the pull loop of the queue."""

    queue: MessageQueue
    process_queue: ProcessQueue
    offset: int
    delay_ms: int = FIRST_PULL_DELAY_MS


class Freeze(msgspec.Struct, frozen=True):
    """Set the offset of the queue, and ignore updates until it is removed."""

    queue: MessageQueue
    offset: int


class WakeRebalance(msgspec.Struct, frozen=True):
    """Rebalance after this time, before the interval ends."""

    delay_ms: int = 0


Instruction: TypeAlias = (
    Persist | AwaitIdle | Release | Lock | AwaitHandover | Open | StartPull | Freeze | WakeRebalance
)


class Settled(msgspec.Struct, frozen=True):
    """The queues of a topic have changed.

    The caller sets the version of the subscription and the limits of a queue (unless None), sends
    a heartbeat to all brokers, and calls the listener with (topic, all_queues, my_queues).
    """

    topic: str
    sub_version: int
    all_queues: frozenset[MessageQueue]
    my_queues: frozenset[MessageQueue]
    count_max: int | None
    size_max: int | None


class Rebalance:
    """The queues of one consumer. ``table`` is read by others and changed only here."""

    def __init__(
        self,
        group: str,
        client_id: str,
        strategy: Allocation,
        *,
        clustering: bool = True,
        orderly: bool = False,
        push: bool = True,
        topic_count_max: int | None = None,
        topic_size_max: int | None = None,
    ) -> None:
        """``topic_count_max`` and ``topic_size_max`` bound all queues together, evenly."""
        self.table: dict[MessageQueue, ProcessQueue] = {}
        self.group = group
        self._client_id = client_id
        self.strategy = strategy
        self.clustering = clustering
        self._locks = orderly and clustering
        self._drains = push and clustering and not orderly
        self._members: dict[str, frozenset[str]] = {}  # by topic, in its last round
        self._owners: dict[str, Mapping[MessageQueue, str]] = {}  # before these members, by topic
        self._shares: dict[str, frozenset[MessageQueue]] = {}
        self._awaited: set[MessageQueue] = set()  # another member has not released them yet
        self._push = push
        self._topic_count_max = topic_count_max
        self._topic_size_max = topic_size_max
        self._changed: set[str] = set()  # topics with changes that are not announced yet

    # ---- a round ---------------------------------------------------------------------------------

    def share(
        self,
        topic: str,
        queues: Collection[MessageQueue] | None,
        members: Collection[str] | None,
    ) -> frozenset[MessageQueue] | None:
        """The queues that should be ours; None to skip the topic in this round.

        ``queues`` is None without a route, ``members`` None if no broker responded. Raises errors
        of the strategy: then the old assignment stays, and the consumer is not balanced.
        """
        if queues is None:
            return None
        if not self.clustering:
            return frozenset(queues)
        if members is None:
            logger.debug("the members of group %s in topic %s are unknown", self.group, topic)
            return None
        found = self.strategy.allocate(self.group, self._client_id, sorted(queues), sorted(members))
        if self._members.get(topic) != frozenset(members):
            self._owners[topic] = self._former_owners(topic, queues, frozenset(members))
            self._members[topic] = frozenset(members)
        # A configured share has queues of any topic, and a round is about one topic.
        return frozenset(queue for queue in found if queue.topic == topic)

    @property
    def members(self) -> frozenset[str]:
        """The client ids of the group, as of the last round of each topic."""
        return frozenset().union(*self._members.values())

    def _former_owners(
        self, topic: str, queues: Collection[MessageQueue], members: frozenset[str]
    ) -> dict[MessageQueue, str]:
        """The members that had the queues before the group changed, and are still there.

        A consumer that has just joined assumes that it is the only new one.
        """
        before = self._members.get(topic, members - {self._client_id})
        return {
            queue: member
            for member in before & members - {self._client_id}
            for queue in self.strategy.allocate(self.group, member, sorted(queues), sorted(before))
        }

    def apply(
        self,
        topic: str,
        share: Collection[MessageQueue],
        now_ms: int,
        alive_ms: int | None = None,
    ) -> list[Instruction]:
        """Give up what is not in ``share``, and take up what is missing.

        ``alive_ms``: until when the loop that consumes could pull, if it is blocked now.
        """
        instructions: list[Instruction] = []
        until_ms = now_ms if alive_ms is None else alive_ms
        self._shares[topic] = frozenset(share)
        for queue, process_queue in self._of_topic(topic):
            if queue in share and not process_queue.is_closing:
                if not (self._push and process_queue.is_pull_expired(until_ms)):
                    continue
                logger.error("%s was not pulled for two minutes: it is taken up again", queue)
                process_queue.dropped = True
            instructions += self._give_up(queue, process_queue, now_ms)
        missing = sorted(self._shares[topic] - self.table.keys() - self._awaited)
        if self._locks:
            instructions += locks_by_broker(missing)
        else:
            instructions += self._take_up(topic, missing)
        return instructions

    def _take_up(self, topic: str, missing: Iterable[MessageQueue]) -> Iterator[Instruction]:
        owners = self._owners.get(topic, {})
        awaited: dict[str, list[MessageQueue]] = {}
        for queue in missing:
            owner = owners.get(queue)
            if owner is None:
                yield Open(queue, self._first_delay_ms(topic))
            else:
                awaited.setdefault(owner, []).append(queue)
        for owner, queues in awaited.items():
            self._awaited.update(queues)
            yield AwaitHandover(owner, tuple(queues))

    def _first_delay_ms(self, topic: str) -> int:
        is_alone = self._members.get(topic) == frozenset({self._client_id})
        return 0 if is_alone or not self.clustering else FIRST_PULL_DELAY_MS

    def handed_over(
        self, queues: Collection[MessageQueue], *, confirmed: bool
    ) -> list[Instruction]:
        """After :class:`AwaitHandover`; ``confirmed``: the old owner has released them."""
        self._awaited.difference_update(queues)
        delay_ms = 0 if confirmed else FIRST_PULL_DELAY_MS
        return [Open(queue, delay_ms) for queue in queues if self._is_missing(queue)]

    def _is_missing(self, queue: MessageQueue) -> bool:
        return queue in self._shares.get(queue.topic, ()) and queue not in self.table

    def retain_topics(self, topics: Collection[str], now_ms: int) -> list[Instruction]:
        """Give up the queues of all other topics, which are no longer subscribed."""
        for topic in [topic for topic in self._shares if topic not in topics]:
            del self._shares[topic]
        return [
            instruction
            for queue, process_queue in tuple(self.table.items())
            if queue.topic not in topics
            for instruction in self._give_up(queue, process_queue, now_ms)
        ]

    def settled(
        self,
        topic: str,
        queues: Collection[MessageQueue],
        share: Collection[MessageQueue],
        now_ms: int,
    ) -> Settled | None:
        """What to announce after the instructions for a topic, if its queues have changed."""
        if topic not in self._changed:
            return None
        self._changed.discard(topic)
        count = len(self.table)
        return Settled(
            topic=topic,
            sub_version=now_ms,
            all_queues=frozenset(queues),
            my_queues=frozenset(share),
            count_max=_each(self._topic_count_max, count),
            size_max=_each(self._topic_size_max, count),
        )

    def is_balanced(self, topic: str, share: Collection[MessageQueue]) -> bool:
        """Whether exactly the queues of ``share`` are being consumed."""
        return {
            queue for queue, process_queue in self._of_topic(topic) if not process_queue.is_closing
        } == set(share)

    # ---- reports ---------------------------------------------------------------------------------

    def awaited(
        self, queue: MessageQueue, process_queue: ProcessQueue, *, idle: bool
    ) -> list[Instruction]:
        """After :class:`AwaitIdle`; if a handler still runs, the next round waits again."""
        if self.table.get(queue) is not process_queue:
            return []
        if not idle:
            process_queue.try_unlock_times += 1
            return []
        return [self._release(queue, process_queue)]

    def locked(
        self, asked: Collection[MessageQueue], held: Collection[MessageQueue]
    ) -> list[Instruction]:
        """After :class:`Lock`; ``held`` are those that the broker granted."""
        instructions: list[Instruction] = [
            Open(queue, self._first_delay_ms(queue.topic)) for queue in asked if queue in held
        ]
        if len(instructions) < len(asked):
            instructions.append(WakeRebalance(LOCK_RETRY_MS))
        return instructions

    def opened(
        self, queue: MessageQueue, offset: int, now_ms: int, delay_ms: int = FIRST_PULL_DELAY_MS
    ) -> list[Instruction]:
        """After :class:`Open`, with its delay and the first offset."""
        if queue in self.table:
            return []
        is_final = not self._push or (not self._locks and not delay_ms)
        process_queue = ProcessQueue(now_ms, locked=True, offset_checked=is_final)
        self.table[queue] = process_queue
        self._changed.add(queue.topic)
        return [StartPull(queue, process_queue, offset, delay_ms)]

    # ---- giving up -------------------------------------------------------------------------------

    def drop(self, queue: MessageQueue, now_ms: int) -> list[Instruction]:
        """Give up one queue."""
        process_queue = self.table.get(queue)
        if process_queue is None:
            return []
        process_queue.dropped = True
        return [*self._give_up(queue, process_queue, now_ms)]

    def drop_all(self) -> None:
        """Drop all queues at the end of the consumer; offsets were saved before."""
        for process_queue in self.table.values():
            process_queue.dropped = True
        self.table.clear()

    def offset_illegal(
        self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int, now_ms: int
    ) -> list[Instruction]:
        """The broker does not have the offset: continue at ``next_offset``, ignore late results."""
        process_queue.dropped = True
        if self.table.get(queue) is not process_queue:
            return []
        return [
            Freeze(queue, next_offset),
            Persist(queue),
            *self._give_up(queue, process_queue, now_ms),
            WakeRebalance(),
        ]

    def _give_up(
        self, queue: MessageQueue, process_queue: ProcessQueue, now_ms: int
    ) -> Iterator[Instruction]:
        if process_queue.closing_ms is None:
            process_queue.closing_ms = now_ms
        if self._locks:
            wait = now_ms - process_queue.last_lock_ms <= FORCED_UNLOCK_MS
        else:
            may_drain = self._drains and not process_queue.dropped
            wait = may_drain and now_ms - process_queue.closing_ms <= DRAIN_MS
        if wait:
            if self._locks:
                yield Persist(queue)
            yield AwaitIdle(queue, process_queue)
        else:
            yield self._release(queue, process_queue)

    def _release(self, queue: MessageQueue, process_queue: ProcessQueue) -> Release:
        del self.table[queue]
        process_queue.dropped = True
        process_queue.locked = False
        self._changed.add(queue.topic)
        return Release(queue, process_queue, unlock=self._locks)

    # ---- renewing locks --------------------------------------------------------------------------

    def lock_requests(self) -> list[Lock]:
        """Lock requests for all orderly queues; :meth:`relocked` gets the responses."""
        if not self._locks:
            return []
        return locks_by_broker(
            queue for queue, each in tuple(self.table.items()) if not each.is_closing
        )

    @property
    def lacks_locks(self) -> bool:
        """Whether a queue lacks its lock."""
        return self._locks and any(
            not each.locked and not each.is_closing for each in tuple(self.table.values())
        )

    def relocked(
        self, asked: Collection[MessageQueue], held: Collection[MessageQueue], now_ms: int
    ) -> None:
        """Record that the broker has renewed the locks of ``held`` only."""
        for queue in asked:
            process_queue = self.table.get(queue)
            if process_queue is None:
                continue
            if queue in held:
                process_queue.lock(now_ms)
            elif process_queue.locked:
                logger.warning(
                    "the broker no longer grants the lock of %s to group %s", queue, self.group
                )
                process_queue.locked = False

    def _of_topic(self, topic: str) -> list[tuple[MessageQueue, ProcessQueue]]:
        return [item for item in tuple(self.table.items()) if item[0].topic == topic]


def locks_by_broker(queues: Iterable[MessageQueue]) -> list[Lock]:
    """One request for all queues of a broker."""
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return [Lock(broker, tuple(of_broker)) for broker, of_broker in by_broker.items()]


def _each(limit: int | None, count: int) -> int | None:
    """The part of a limit for all queues that each of ``count`` queues gets."""
    return None if limit is None or not count else max(1, limit // count)
