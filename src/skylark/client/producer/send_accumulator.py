"""Send accumulator: decides which small messages share a batch, and when batches are sent.

Messages with the same key (topic, queue, mode and everything else that must be equal in a batch)
wait until one of these happens:

* **the turn of the event loop ends.** Sends that start in one turn share a batch without waiting;
* **a response arrives**, if ``in_flight_max`` batches of the key were in flight. Under load
  messages collect instead of queueing elsewhere, so batches grow by themselves (Nagle's idea);
  without load nothing waits. The batch is sent at the end of the turn, so that tasks that the
  response has woken can add messages;
* **the batch is full** (``size_max`` bytes or ``count_max`` messages): it is sent at once, unless
  ``full_in_flight_max`` batches of the key are in flight; then it waits for a response, without
  limit. A broker refuses requests that waited too long, so more of them would only be lost;
* **the batch is old**: ``delay_max_s`` limits the wait for a response. With ``linger_s``, batches
  wait that long for more messages instead of being sent at the end of the turn.

The permits of the producer (:mod:`skylark.client.core.permits`) limit all messages together.
``size`` counts the bytes of a batch until it has its outcome.

Pure: no I/O, no clock. The owner passes the time, calls :meth:`Accumulator.turn_ended` when
:attr:`Accumulator.wants_turn` and :meth:`Accumulator.release_due` at :meth:`Accumulator.next_due`,
sends the batches that they return, and calls :meth:`Accumulator.ended` for each. Counterpart of
Java's ``ProduceAccumulator``, without two of its defects: bytes that are never given back, and a
failed batch of which only one sender gets the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

SIZE_MAX: Final = 32 * 1024  # batchMaxBytes
COUNT_MAX: Final = 1_024
DELAY_MAX_S: Final = 0.010  # batchMaxDelayMs
IN_FLIGHT_MAX: Final = 2
FULL_IN_FLIGHT_MAX: Final = 8


class AccumulatorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that decide when a batch is sent."""

    size_max: int = SIZE_MAX
    count_max: int = COUNT_MAX
    linger_s: float = 0.0
    delay_max_s: float = DELAY_MAX_S
    in_flight_max: int = IN_FLIGHT_MAX
    full_in_flight_max: int = FULL_IN_FLIGHT_MAX


class Batch(Generic[K, T]):
    """Messages of one key."""

    __slots__ = ("entries", "key", "since", "size")

    def __init__(self, key: K, since: float) -> None:
        self.key = key
        self.since = since  #: when its first message came
        self.entries: list[T] = []
        self.size = 0


class Accumulator(Generic[K, T]):
    """Batches that wait, and the number in flight per key.

    ``K`` is the key of a batch, ``T`` a message with the future of its result.
    """

    def __init__(self, limits: AccumulatorLimits | None = None) -> None:
        self._limits = limits = limits or AccumulatorLimits()
        self._size_max = limits.size_max
        self._count_max = limits.count_max
        self._waiting: dict[K, Batch[K, T]] = {}
        self._full: dict[K, deque[Batch[K, T]]] = {}  # they wait for responses; never empty
        self._in_flight: dict[K, int] = {}
        #: Bytes that wait or are in flight.
        self.size = 0
        #: Whether :meth:`turn_ended` may return batches at the end of this turn.
        self.wants_turn = False

    def __len__(self) -> int:
        """Batches that wait."""
        return len(self._waiting) + sum(map(len, self._full.values()))

    def add(self, key: K, entry: T, size: int, now: float) -> Batch[K, T] | None:
        """Add a message to the batch of its key; returns a batch to send at once, if any."""
        full = None
        batch = self._waiting.get(key)
        if batch is not None and batch.size + size > self._size_max:
            full = self._release_full(batch)
            batch = None
        if batch is None:
            batch = self._waiting[key] = Batch(key, now)
            if not self.wants_turn:
                self.wants_turn = not self._limits.linger_s and self._may_go(key)
        batch.entries.append(entry)
        batch.size += size
        self.size += size
        if full is None and len(batch.entries) >= self._count_max:
            return self._release_full(batch)
        return full

    def turn_ended(self) -> list[Batch[K, T]]:
        """The turn of the event loop has ended: the batches to send now."""
        self.wants_turn = False
        going = self._full_ones() if self._full else []
        if self._limits.linger_s:
            return going
        ready = [batch for batch in self._waiting.values() if self._may_go(batch.key)]
        return going + [self._release(batch) for batch in ready]

    def release_due(self, now: float) -> list[Batch[K, T]]:
        """The batches that are old enough to be sent."""
        age_s, full = self._age_max_s, self._full
        waiting = self._waiting.values()
        old = [b for b in waiting if now - b.since >= age_s and b.key not in full]
        return [self._release(batch) for batch in old]

    def next_due(self) -> float | None:
        """When :meth:`release_due` must be called; None if nothing waits."""
        # A dict keeps insertion order, so the first batch is the oldest. Keys with full batches
        # wait for responses.
        for key, batch in self._waiting.items():
            if key not in self._full:
                return batch.since + self._age_max_s
        return None

    def ended(self, batch: Batch[K, T]) -> None:
        """A batch has its outcome: free its bytes, and let the next of its key be sent."""
        self.size -= batch.size
        count = self._in_flight[batch.key] - 1
        if count:
            self._in_flight[batch.key] = count
        else:
            del self._in_flight[batch.key]
        if batch.key in self._full or (batch.key in self._waiting and not self._limits.linger_s):
            self.wants_turn = True

    def drain(self) -> list[Batch[K, T]]:
        """All batches that wait, to be sent now."""
        self.wants_turn = False
        full = [batch for batches in self._full.values() for batch in batches]
        self._full.clear()
        for batch in full:
            self._count_in(batch.key)
        return full + [self._release(batch) for batch in tuple(self._waiting.values())]

    @property
    def _age_max_s(self) -> float:
        return self._limits.linger_s or self._limits.delay_max_s

    def _may_go(self, key: K) -> bool:
        """Whether a batch that is not full may be sent without waiting for a response."""
        return key not in self._full and self._in_flight.get(key, 0) < self._limits.in_flight_max

    def _release(self, batch: Batch[K, T]) -> Batch[K, T]:
        del self._waiting[batch.key]
        self._count_in(batch.key)
        return batch

    def _release_full(self, batch: Batch[K, T]) -> Batch[K, T] | None:
        """The full batch if it may be sent now; otherwise it waits for a response."""
        key = batch.key
        if key not in self._full and self._in_flight.get(key, 0) < self._limits.full_in_flight_max:
            return self._release(batch)
        del self._waiting[key]
        self._full.setdefault(key, deque()).append(batch)
        return None

    def _full_ones(self) -> list[Batch[K, T]]:
        """Full batches that may be sent now."""
        going: list[Batch[K, T]] = []
        for key, batches in tuple(self._full.items()):
            while batches and self._in_flight.get(key, 0) < self._limits.full_in_flight_max:
                self._count_in(key)
                going.append(batches.popleft())
            if not batches:
                del self._full[key]
        return going

    def _count_in(self, key: K) -> None:
        self._in_flight[key] = self._in_flight.get(key, 0) + 1
