"""Due times of waiting requests: a heap that finds those whose time has come.

A request has one valid entry, that of its current ``due_ms``. An entry becomes void when the due
time is changed or the request is removed (:data:`NEVER`); void entries are dropped when they come
to the front, and all at once when they are the larger part. Thousands of requests may be due at
once: at most :data:`TAKEN_MAX` are taken in one turn of the loop. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

#: The due time of a request that does not wait.
NEVER: Final = -1
#: Requests that :meth:`DueTimes.take` returns.
TAKEN_MAX: Final = 1_024
_VOID_COUNT_MIN: Final = 1_000  # below this, sweeping void entries is not worth it


class Due(Protocol):
    """A request that waits."""

    due_ms: int


DueT = TypeVar("DueT", bound=Due)


class DueTimes(Generic[DueT]):
    """The due times of all requests of one kind."""

    def __init__(self, waiting_count: Callable[[], int]) -> None:
        """``waiting_count`` returns how many requests wait."""
        self._waiting_count = waiting_count
        self._heap: list[tuple[int, int, DueT]] = []
        self._orders = count()

    def push(self, waiting: DueT) -> None:
        """Add a request, or note its new due time."""
        if len(self._heap) > max(_VOID_COUNT_MIN, 2 * self._waiting_count()):
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].due_ms]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (waiting.due_ms, next(self._orders), waiting))

    def first(self) -> int | None:
        """The first due time of all; None if no request waits."""
        self._drop_void()
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> list[DueT]:
        """The first requests whose time has come, in its order; they do not wait any more.

        Further ones are left: :meth:`first` returns their time, which has passed.
        """
        due: list[DueT] = []
        self._drop_void()
        while self._heap and self._heap[0][0] <= now_ms and len(due) < TAKEN_MAX:
            waiting = heapq.heappop(self._heap)[2]
            waiting.due_ms = NEVER
            due.append(waiting)
            self._drop_void()
        return due

    def _drop_void(self) -> None:
        while self._heap and self._heap[0][0] != self._heap[0][2].due_ms:
            heapq.heappop(self._heap)
