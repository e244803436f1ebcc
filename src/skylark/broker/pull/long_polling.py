"""Pulls that found nothing and wait: parked until a message for them comes, or their time is up.

A pull that asks for the end of its queue is not answered but held here (sysFlag 2). It wakes

* at once, when a message arrives behind the offset that it wants and passes its filter;
* at its next *check*, when only messages arrived that do not pass. A check comes every 5 s after
  parking, knows nothing of tags and lets the pull go, so that the client learns the new offset;
* at its deadline in any case.

Waking means that the caller runs the whole request again, this time with an answer whatever
comes: 0, or 20 with an advanced offset, or 19.

Java's ``PullRequestHoldService`` has one loop that visits all held pulls every 5 s. Here each pull
has its own place in a heap of due times, and nothing visits the others: the deadline, moved
forward to the next check by the first message that does not pass. An arriving message costs time
for the pulls of its own queue only. Java sees a deadline up to 5 s late; here it is kept.

Limits: pulls per queue, per peer, and in all. :meth:`HeldPulls.park` refuses what is beyond
them; the right answer is then 2 (SYSTEM_BUSY), which keeps Java's clients away for 3 s, whereas
after a 19 they would ask again at once.

Pure: times are milliseconds of any clock, as long as it is always the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from itertools import count
from typing import Final, Generic, TypeAlias, TypeVar

from skylark.broker.api import Peer
from skylark.filter.sql_eval import SqlFilter
from skylark.filter.tag import TagFilter

CHECK_INTERVAL_MS: Final = 5_000
HELD_COUNT_MAX: Final = 100_000
HELD_PER_QUEUE_MAX: Final = 10_000
HELD_PER_PEER_MAX: Final = 10_000
_VOID_COUNT_MIN: Final = 1_000  # below this, sweeping void heap entries is not worth it
_NEVER: Final = -1

Token = TypeVar("Token")
QueueKey: TypeAlias = tuple[str, int]  # topic, queue id


class _Held(Generic[Token]):
    """One held pull. ``due_ms`` is the only heap entry of it that counts; -1 once it is gone."""

    __slots__ = (
        "due_ms",
        "key",
        "next_check_waits",
        "offset",
        "parked_ms",
        "peer",
        "sql",
        "tags",
        "token",
    )

    def __init__(
        self,
        key: QueueKey,
        token: Token,
        peer: Peer,
        offset: int,
        parked_ms: int,
        due_ms: int,
        tags: TagFilter | None,
        sql: SqlFilter | None,
    ) -> None:
        self.key = key
        self.token = token
        self.peer = peer
        self.offset = offset
        self.parked_ms = parked_ms
        self.due_ms = due_ms
        self.tags = tags
        self.sql = sql
        self.next_check_waits = False  # whether due_ms is a check rather than the deadline


class HeldPulls(Generic[Token]):
    """All held pulls of a broker. ``Token`` is what the caller needs to run a request again."""

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
        # Ordered sets: who came first wakes first.
        self._queues: dict[QueueKey, dict[_Held[Token], None]] = {}
        self._peers: dict[Peer, dict[_Held[Token], None]] = {}
        self._heap: list[tuple[int, int, _Held[Token]]] = []
        self._heap_order = count()

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
    ) -> bool:
        """Hold a pull that wants ``offset``; False if there is no room.

        ``max_offset`` is the end of the queue as the pull has seen it: where that lies beyond
        ``offset`` (a piece of the queue is missing), the next check lets it go. No filter lets
        every message pass.
        """
        key = (topic, queue_id)
        waiters = self._queues.get(key, {})
        pulls = self._peers.get(peer, {})
        if (
            self._count >= self.count_max
            or len(waiters) >= self._per_queue_max
            or len(pulls) >= self._per_peer_max
        ):
            return False
        pull = _Held(key, token, peer, offset, now_ms, deadline_ms, tags, sql)
        waiters[pull] = pulls[pull] = None
        self._queues[key] = waiters
        self._peers[peer] = pulls
        self._count += 1
        self._push(pull)
        if max_offset > offset:
            self._wait_for_check(pull, now_ms)
        return True

    @property
    def queues(self) -> Container[QueueKey]:
        """The queues that anyone waits for; always the same object, which is kept up to date.

        Spares the caller of :meth:`arrived` its work.
        """
        return self._queues

    def arrived(
        self,
        topic: str,
        queue_id: int,
        max_offset: int,
        now_ms: int,
        tags_code: int | None = None,
        properties: bytes | None = None,
    ) -> list[Token]:
        """A message arrived, ``max_offset`` is the end of its queue now; who is to run again.

        ``properties`` are those of the record, as stored. What is not known of the message (None)
        passes every filter.
        """
        waiters = self._queues.get((topic, queue_id))
        if waiters is None:
            return []
        woken = []
        for pull in waiters:
            if max_offset <= pull.offset:
                continue
            passes = tags_code is None or pull.tags is None or pull.tags.matches(tags_code)
            if passes and pull.sql is not None and properties is not None:
                passes = pull.sql.matches_raw(properties)
            if passes:
                woken.append(pull)
            elif not pull.next_check_waits:
                self._wait_for_check(pull, now_ms)
        return self._take(woken)

    def next_due(self) -> int | None:
        """When :meth:`take_due` will next have something; None while nobody waits."""
        self._drop_void()
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> list[Token]:
        """Pulls whose check or deadline has come; they are to run again."""
        due = []
        self._drop_void()
        while self._heap and self._heap[0][0] <= now_ms:
            pull = heapq.heappop(self._heap)[2]
            pull.due_ms = _NEVER
            due.append(pull)
            self._drop_void()
        return self._take(due)

    def drop(self, peer: Peer) -> list[Token]:
        """Forget the pulls of a peer that is gone, and return them."""
        return self._take(list(self._peers.get(peer, ())))

    def wake_all(self) -> list[Token]:
        """All pulls, to run again: the broker stops, or the master of a slave came back."""
        return self._take([pull for waiters in self._queues.values() for pull in waiters])

    # --- inside ---------------------------------------------------------------------------------

    def _wait_for_check(self, pull: _Held[Token], now_ms: int) -> None:
        """There is something to tell at the pull's next check."""
        pull.next_check_waits = True
        checks = max(0, now_ms - pull.parked_ms) // self._check_interval_ms
        check_ms = pull.parked_ms + (checks + 1) * self._check_interval_ms
        if check_ms < pull.due_ms:
            pull.due_ms = check_ms
            self._push(pull)

    def _push(self, pull: _Held[Token]) -> None:
        # Each pull has at most two entries, of which one counts: void ones are swept out as soon
        # as they are the larger part.
        if len(self._heap) > max(_VOID_COUNT_MIN, 2 * self._count):
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].due_ms]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (pull.due_ms, next(self._heap_order), pull))

    def _drop_void(self) -> None:
        while self._heap and self._heap[0][0] != self._heap[0][2].due_ms:
            heapq.heappop(self._heap)

    def _take(self, pulls: list[_Held[Token]]) -> list[Token]:
        for pull in pulls:
            pull.due_ms = _NEVER
            _discard(self._queues, pull.key, pull)
            _discard(self._peers, pull.peer, pull)
        self._count -= len(pulls)
        return [pull.token for pull in pulls]


K = TypeVar("K")
V = TypeVar("V")


def _discard(table: dict[K, dict[V, None]], key: K, value: V) -> None:
    """Take a value out of the ordered set under ``key``, and the set too if it is empty then."""
    values = table[key]
    del values[value]
    if not values:
        del table[key]
