"""The opaque counter and the table of calls that wait for a response.

Sans-IO: deadlines are numbers, and the table never waits. The connection registers a call, passes
each arriving response to :meth:`PendingCalls.take`, and calls :meth:`PendingCalls.expire` at the
time of :meth:`PendingCalls.next_deadline`. One timer serves a whole connection: deadlines are kept
in a heap, and the entry of an answered call is removed when it comes to the top. Counterpart of
``responseTable`` in Java's ``NettyRemotingAbstract``.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from skylark.wire.fields import INT32_MAX

CallT = TypeVar("CallT")


class OpaqueCounter:
    """Correlation ids from 0, wrapping to negative numbers like Java's ``AtomicInteger``."""

    __slots__ = ("_next",)

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def take(self) -> int:
        opaque = self._next
        self._next = opaque + 1 if opaque < INT32_MAX else -INT32_MAX - 1
        return opaque


class PendingCalls(Generic[CallT]):
    """Calls waiting for a response, by opaque, each with a deadline."""

    __slots__ = ("_calls", "_deadlines")

    def __init__(self) -> None:
        self._calls: dict[int, tuple[float, CallT]] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, opaque: int) -> bool:
        return opaque in self._calls

    def add(self, opaque: int, deadline: float, call: CallT) -> None:
        """Register a call. An opaque in use is a bug of the caller (2^32 calls outstanding)."""
        assert opaque not in self._calls, f"opaque {opaque} is already waiting"
        self._calls[opaque] = (deadline, call)
        heapq.heappush(self._deadlines, (deadline, opaque))
        if len(self._deadlines) > 2 * len(self._calls) + 256:
            self._compact()

    def take(self, opaque: int) -> CallT | None:
        """Remove and return the call that this response answers; None for a late or foreign one."""
        entry = self._calls.pop(opaque, None)
        return None if entry is None else entry[1]

    def next_deadline(self) -> float | None:
        """When :meth:`expire` next has something to do, or None when nothing waits."""
        deadlines, calls = self._deadlines, self._calls
        while deadlines:
            deadline, opaque = deadlines[0]
            entry = calls.get(opaque)
            if entry is not None and entry[0] == deadline:
                return deadline
            heapq.heappop(deadlines)
        return None

    def expire(self, now: float) -> list[CallT]:
        """Remove and return the calls whose deadline has passed, earliest first."""
        expired = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, opaque = heapq.heappop(self._deadlines)
            expired.append(self._calls.pop(opaque)[1])
        return expired

    def drain(self) -> list[CallT]:
        """Remove and return all calls, in order of registration (the connection is gone)."""
        calls = [call for _, call in self._calls.values()]
        self._calls.clear()
        self._deadlines.clear()
        return calls

    def _compact(self) -> None:
        self._deadlines = [(entry[0], opaque) for opaque, entry in self._calls.items()]
        heapq.heapify(self._deadlines)
