"""Pops and notifications that found nothing and wait for messages, by topic, group and queue.

Members of a group share its messages, so a message wakes *one* waiting request of each group, not
all: of those for any queue (-1) and of those for its own queue the one that came first and whose
filter it passes (:mod:`skylark.broker.pull.waiter_index`). The cost of an arriving message does not
depend on how many requests of a group wait.

A message in the POP retry topic of a group wakes requests of that group for the original topic,
whatever their filter and queue: every pop looks into both.

Limits, as in Java: :attr:`WaitingPops.count_max` requests in all, one more than
:attr:`WaitingPops.per_key_max` for a topic, group and queue. And, as filters may be large, their
size in all: :attr:`WaitingPops.size_max`.

Pure: times are milliseconds of any one clock. Counterpart of Java's ``PopLongPollingService``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from skylark.broker.api import Peer
from skylark.broker.pull.due_times import NEVER, DueTimes
from skylark.broker.pull.held_request_runner import HeldRequest
from skylark.broker.pull.waiter_index import Waiter, WaiterIndex
from skylark.core.names import pop_retry_topic
from skylark.filter.sql_eval import SqlFilter
from skylark.filter.tag import TagFilter

#: Bytes of all filters of requests that wait.
SIZE_MAX: Final = 128 << 20
_TAG_SIZE: Final = 128  # bytes of one tag in a filter, about

#: Topic, group, queue.
WaitKey: TypeAlias = tuple[str, str, int]
#: Topic and group.
Consumers: TypeAlias = tuple[str, str]


class WaitingPop(Waiter, eq=False, kw_only=True):
    """A waiting request; ``due_ms`` is NEVER after it was removed."""

    key: WaitKey
    held: HeldRequest
    due_ms: int

    @property
    def size(self) -> int:
        """The bytes of its filter, about."""
        tags, sql = self.tags, self.sql
        size = 0 if tags is None or tags.codes is None else _TAG_SIZE * len(tags.tags)
        return size if sql is None else size + len(sql.text)


class WaitingPops:
    """All waiting requests of one kind."""

    def __init__(self, awaited: dict[str, int]) -> None:
        """``awaited`` counts, by topic, the requests that wait for its messages; instances may
        share it."""
        self.awaited = awaited
        self.count_max = 0
        self.per_key_max = 0
        self.size_max = SIZE_MAX
        #: Bytes of all filters.
        self.size = 0
        self._count = 0
        self._index: WaiterIndex[WaitingPop] = WaiterIndex()
        self._due: DueTimes[WaitingPop] = DueTimes(self.__len__)
        self._peers: dict[Peer, dict[WaitingPop, None]] = {}
        #: Topic, also a retry topic -> who waits for its messages -> queues that they wait for.
        self._consumers: dict[str, dict[Consumers, dict[int, int]]] = {}

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """How many requests wait for a queue, or for any queue (-1)."""
        return self._index.count((topic, group, queue_id))

    def add(
        self,
        topic: str,
        group: str,
        queue_id: int,
        held: HeldRequest,
        *,
        due_ms: int,
        tags: TagFilter | None = None,
        sql: SqlFilter | None = None,
    ) -> WaitingPop | None:
        """Let a request wait; None if a limit is reached."""
        key = (topic, group, queue_id)
        if self._count >= self.count_max or self._index.count(key) > self.per_key_max:
            return None
        waiting = WaitingPop(key=key, tags=tags, sql=sql, held=held, due_ms=due_ms)
        if self.size + waiting.size > self.size_max:
            return None
        self.size += waiting.size
        self._index.add(waiting)
        self._peers.setdefault(held.peer, {})[waiting] = None
        for each in _topics(topic, group):
            queues = self._consumers.setdefault(each, {}).setdefault((topic, group), {})
            queues[queue_id] = queues.get(queue_id, 0) + 1
            self.awaited[each] = self.awaited.get(each, 0) + 1
        self._count += 1
        self._due.push(waiting)
        return waiting

    def remove(self, waiting: WaitingPop) -> bool:
        """Remove a request; False if it has woken or was removed before."""
        if waiting.due_ms == NEVER:
            return False
        self._take([waiting])
        return True

    def has_consumers(self, topic: str) -> bool:
        """Whether a message of ``topic`` may wake a request."""
        return topic in self._consumers

    def consumers(self, topic: str) -> list[Consumers]:
        """Topic and group of the requests that a message of ``topic`` may wake."""
        return list(self._consumers.get(topic, ()))

    def queues(self, topic: str, group: str) -> Iterable[int]:
        """The queues that requests of a group wait for; -1 for any."""
        return list(self._consumers.get(topic, {}).get((topic, group), ()))

    def wake_one(
        self,
        topic: str,
        group: str,
        queue_id: int,
        tags_code: int | None = None,
        properties: bytes | None = None,
    ) -> HeldRequest | None:
        """Remove and return the first request that a message passes; unknown data (None) passes."""
        waiting = self._index.first_passing((topic, group, queue_id), tags_code, properties)
        return None if waiting is None else self._take([waiting])[0]

    def next_due(self) -> int | None:
        """The first due time of all requests; None if there are none."""
        return self._due.first()

    def take_due(self, now_ms: int) -> list[HeldRequest]:
        """Remove and return the requests whose time is over."""
        return self._take(self._due.take(now_ms))

    def drop(self, peer: Peer) -> list[HeldRequest]:
        """Remove and return the requests of a peer that has disconnected."""
        return self._take(list(self._peers.get(peer, ())))

    def wake_all(self) -> list[HeldRequest]:
        """Remove and return all requests."""
        return self._take(list(self._index))

    def _take(self, waiting: list[WaitingPop]) -> list[HeldRequest]:
        for each in waiting:
            each.due_ms = NEVER
            self.size -= each.size
            self._index.remove(each)
            of_peer = self._peers[each.held.peer]
            del of_peer[each]
            if not of_peer:
                del self._peers[each.held.peer]
            self._no_longer_awaited(*each.key)
        self._count -= len(waiting)
        return [each.held for each in waiting]

    def _no_longer_awaited(self, topic: str, group: str, queue_id: int) -> None:
        for each in _topics(topic, group):
            self.awaited[each] -= 1
            if not self.awaited[each]:
                del self.awaited[each]
            consumers = self._consumers[each]
            queues = consumers[topic, group]
            queues[queue_id] -= 1
            if not queues[queue_id]:
                del queues[queue_id]
                if not queues:
                    del consumers[topic, group]
                    if not consumers:
                        del self._consumers[each]


def _topics(topic: str, group: str) -> tuple[str, str, str]:
    """The topics that a pop looks into."""
    return topic, pop_retry_topic(topic, group), pop_retry_topic(topic, group, v2=True)
