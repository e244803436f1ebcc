"""Long polling: pulls that found no message are held until one arrives or their deadline.

A pull at the end of its queue that may wait (sysFlag 2) is held here. It wakes

* at once, when a message arrives after its offset and passes its filter;
* at its next *check*, when only messages arrived that do not pass. Checks come every 5 s after the
  start of the hold. They ignore filters, so that the client learns the new offset;
* at its deadline in any case.

The caller then runs the whole request again, this time with a response in any case: 0, 20 with a
new offset, or 19.

Java's ``PullRequestHoldService`` visits all held pulls every 5 s. Here each pull has an entry in a
heap of due times: the deadline, moved forward to the next check by the first message that does not
pass. An arriving message costs time for the pulls that it passes, which an index finds
(:mod:`skylark.broker.pull.waiter_index`), and once for each pull that it is the first message for.
Java notices a deadline up to 5 s late; here it is exact.

Limits: pulls per queue, per peer, and in all. :meth:`HeldPulls.park` refuses pulls beyond them; the
right response is then 2 (SYSTEM_BUSY), after which Java's clients wait 3 s, whereas after a 19 they
would pull again at once.

Pure: times are milliseconds of any one clock.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import Final, Generic, TypeAlias, TypeVar

from skylark.broker.api import Peer
from skylark.broker.pull.due_times import NEVER, DueTimes
from skylark.broker.pull.waiter_index import Waiter, WaiterIndex
from skylark.filter.sql_eval import SqlFilter
from skylark.filter.tag import TagFilter

CHECK_INTERVAL_MS: Final = 5_000
HELD_COUNT_MAX: Final = 100_000
HELD_PER_QUEUE_MAX: Final = 10_000
HELD_PER_PEER_MAX: Final = 10_000

Token = TypeVar("Token")
QueueKey: TypeAlias = tuple[str, int]  # topic, queue id


class Held(Waiter, Generic[Token], eq=False, kw_only=True):
    """One held pull; ``due_ms`` is NEVER after it was removed."""

    key: QueueKey
    token: Token
    peer: Peer
    offset: int
    parked_ms: int
    due_ms: int


class HeldPulls(Generic[Token]):
    """All held pulls of a broker. ``Token`` is the caller's data to run a request again."""

    def __init__(
        self,
        *,
        check_interval_ms: int = CHECK_INTERVAL_MS,
        count_max: int = HELD_COUNT_MAX,
        per_queue_max: int = HELD_PER_QUEUE_MAX,
        per_peer_max: int = HELD_PER_PEER_MAX,
    ) -> None:
        self._check_interval_ms = check_interval_ms
        self.count_max = count_max
        self._per_queue_max = per_queue_max
        self._per_peer_max = per_peer_max
        self._count = 0
        self._index: WaiterIndex[Held[Token]] = WaiterIndex()
        # Ordered sets: the pulls of a queue that no message has arrived for, and those of a peer.
        self._fresh: dict[QueueKey, dict[Held[Token], None]] = {}
        self._peers: dict[Peer, dict[Held[Token], None]] = {}
        self._due: DueTimes[Held[Token]] = DueTimes(self.__len__)

    def __len__(self) -> int:
        return self._count

    def park(
        self,
        topic: str,
        queue_id: int,
        token: Token,
        *,
        peer: Peer,
        offset: int,
        max_offset: int,
        now_ms: int,
        deadline_ms: int,
        tags: TagFilter | None = None,
        sql: SqlFilter | None = None,
    ) -> Held[Token] | None:
        """Hold a pull from ``offset`` on; None if a limit is reached.

        ``max_offset`` is the end of the queue that the pull has seen: if it is beyond ``offset`` (a
        part of the queue is missing), the pull wakes at the next check. Without a filter every
        message passes.
        """
        key = (topic, queue_id)
        pulls = self._peers.get(peer, {})
        if (
            self._count >= self.count_max
            or self._index.count(key) >= self._per_queue_max
            or len(pulls) >= self._per_peer_max
        ):
            return None
        pull = Held(
            key=key,
            tags=tags,
            sql=sql,
            token=token,
            peer=peer,
            offset=offset,
            parked_ms=now_ms,
            due_ms=deadline_ms,
        )
        self._index.add(pull)
        self._fresh.setdefault(key, {})[pull] = None
        self._peers.setdefault(peer, pulls)[pull] = None
        self._count += 1
        self._due.push(pull)
        if max_offset > offset:
            self._wake_at_check(pull, now_ms)
        return pull

    def cancel(self, pull: Held[Token]) -> bool:
        """Remove a pull; False if it has woken or was removed before."""
        is_held = pull.due_ms != NEVER
        if is_held:
            self._take([pull])
        return is_held

    @property
    def queues(self) -> Container[Hashable]:
        """The queues of all held pulls, always up to date; others need no :meth:`arrived`."""
        return self._index.keys

    def arrived(
        self,
        topic: str,
        queue_id: int,
        max_offset: int,
        now_ms: int,
        tags_code: int | None = None,
        properties: bytes | None = None,
    ) -> list[Token]:
        """Remove and return the pulls that a new message wakes.

        ``max_offset`` is the new end of its queue, ``properties`` those of the record. Unknown data
        of the message (None) passes every filter.
        """
        key = (topic, queue_id)
        passing = self._index.passing(key, tags_code, properties)
        woken = self._take([pull for pull in passing if pull.offset < max_offset])
        for pull in list(self._fresh.get(key, ())):
            if pull.offset < max_offset:
                self._wake_at_check(pull, now_ms)
        return woken

    def next_due(self) -> int | None:
        """The first due time of all pulls; None if there are none."""
        return self._due.first()

    def take_due(self, now_ms: int) -> list[Token]:
        """Remove and return the pulls whose check or deadline has come."""
        return self._take(self._due.take(now_ms))

    def drop(self, peer: Peer) -> list[Token]:
        """Remove and return the pulls of a peer that has disconnected."""
        return self._take(list(self._peers.get(peer, ())))

    def wake_all(self) -> list[Token]:
        """Remove and return all pulls: the broker stops, or a slave has found its master again."""
        return self._take(list(self._index))

    # --- internals ------------------------------------------------------------------------------

    def _wake_at_check(self, pull: Held[Token], now_ms: int) -> None:
        """Wake the pull at its next check: the client has to learn a new offset."""
        _discard(self._fresh, pull.key, pull)
        checks = max(0, now_ms - pull.parked_ms) // self._check_interval_ms
        check_ms = pull.parked_ms + (checks + 1) * self._check_interval_ms
        if check_ms < pull.due_ms:
            pull.due_ms = check_ms
            self._due.push(pull)

    def _take(self, pulls: list[Held[Token]]) -> list[Token]:
        for pull in pulls:
            pull.due_ms = NEVER
            self._index.remove(pull)
            _discard(self._fresh, pull.key, pull)
            _discard(self._peers, pull.peer, pull)
        self._count -= len(pulls)
        return [pull.token for pull in pulls]


K = TypeVar("K")
V = TypeVar("V")


def _discard(table: dict[K, dict[V, None]], key: K, value: V) -> None:
    """Remove a value from the ordered set of ``key``, and the set too if it is empty then."""
    values = table.get(key)
    if values is not None:
        values.pop(value, None)
        if not values:
            del table[key]
