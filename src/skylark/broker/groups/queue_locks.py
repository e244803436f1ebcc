"""Queue locks: in a group that consumes in order, each queue belongs to one client at a time.

A client locks the queues that rebalance assigned to it (41), renews the locks every 20 s, and
releases them when it stops or loses the queues (42). The broker grants a lock if the queue is free,
if the client holds it already, or if its holder has not renewed it for more than 60 s; granting
renews it. The answer lists the requested queues that the client holds. Only the holder can release
a lock. A closed connection does not release it: a client that reconnects continues, and after a
crash the broker waits for 60 s, because the last messages may still be processed.

``lockInStrictMode`` (locks by majority of the replicas) is not implemented; a configuration that
switches it on has to be refused. So ``onlyThisBroker`` of a request makes no difference.

Expired locks have no effect and are removed now and then. The number of locks is limited; beyond
the limit the broker grants none. Counterpart of Java's ``RebalanceLockManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from skylark.broker.api import Peer
from skylark.core.clock import Clock
from skylark.wire.bodies.admin_body import QueueLock
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

LOCK_EXPIRED_MS: Final = 60_000
LOCK_COUNT_MAX: Final = 100_000


class _Lock(msgspec.Struct):
    client_id: str
    last_update_ms: int

    def is_live(self, now_ms: int) -> bool:
        return now_ms - self.last_update_ms <= LOCK_EXPIRED_MS


class QueueLocks:
    """The locks of all groups on the queues of this broker."""

    def __init__(self, *, count_max: int = LOCK_COUNT_MAX) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self._count_max = count_max

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Lock or renew; the queues of the request that the client holds now."""
        wanted = list(dict.fromkeys(queues))
        if self._count + len(wanted) > self._count_max:
            self.sweep(now_ms)
        locks = self._groups.setdefault(group, {})
        held = []
        refused_count = 0
        for queue in wanted:
            lock = locks.get(queue)
            if lock is None:
                if self._count >= self._count_max:
                    refused_count += 1
                    continue
                locks[queue] = _Lock(client_id, now_ms)
                self._count += 1
                logger.info("group %s: %s locked %s", group, client_id, queue)
            elif lock.client_id == client_id or not lock.is_live(now_ms):
                if lock.client_id != client_id:
                    logger.warning(
                        "group %s: %s locked %s, which %s had not renewed",
                        group,
                        client_id,
                        queue,
                        lock.client_id,
                    )
                lock.client_id = client_id
                lock.last_update_ms = now_ms
            else:
                continue
            held.append(queue)
        if refused_count:
            logger.warning(
                "group %s: refused %d locks of %s, the table is full",
                group,
                refused_count,
                client_id,
            )
        self._drop_if_empty(group)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the client's own locks among ``queues``."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
                logger.info("group %s: %s unlocked %s", group, client_id, queue)
        self._drop_if_empty(group)

    def sweep(self, now_ms: int) -> None:
        """Remove expired locks, to free memory."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if not lock.is_live(now_ms)]:
                del locks[queue]
                self._count -= 1
            self._drop_if_empty(group)

    def refresh(self, from_ms: int, now_ms: int, is_online: Callable[[str, str], bool]) -> None:
        """Renew the locks of online clients: a test that moves virtual time must not expire them.

        Only locks that were live at ``from_ms``. ``is_online(group, client_id)`` says whether the
        client has an open connection.
        """
        for group, locks in self._groups.items():
            for lock in locks.values():
                if lock.is_live(from_ms) and is_online(group, lock.client_id):
                    lock.last_update_ms = now_ms

    def __len__(self) -> int:
        """Locks in the table, including expired ones that are not removed yet."""
        return self._count

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client that holds a queue; None if it is free."""
        lock = self._groups.get(group, {}).get(queue)
        return lock.client_id if lock is not None and lock.is_live(now_ms) else None

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether the group consumes in order at present (broker 3.3)."""
        return any(lock.is_live(now_ms) for lock in self._groups.get(group, {}).values())

    def held(self, group: str, now_ms: int) -> list[QueueLock]:
        """All live locks of a group, with holder and expiry (extra field of 203)."""
        return [
            QueueLock(
                message_queue=queue,
                client_id=lock.client_id,
                expires_ms=lock.last_update_ms + LOCK_EXPIRED_MS,
            )
            for queue, lock in self._groups.get(group, {}).items()
            if lock.is_live(now_ms)
        ]

    def _drop_if_empty(self, group: str) -> None:
        if not self._groups[group]:
            del self._groups[group]


class LockService:
    """Locks queues for endpoints; a :class:`~skylark.broker.api.LockService`."""

    def __init__(self, locks: QueueLocks, clock: Clock) -> None:
        self._locks = locks
        self._clock = clock

    def lock(
        self, _peer: Peer, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock or renew; the queues of the request that the client holds now."""
        return self._locks.lock(group, client_id, queues, self._clock.steady_ms())

    def unlock(
        self, _peer: Peer, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> None:
        """Release the client's own locks among ``queues``."""
        self._locks.unlock(group, client_id, queues)
