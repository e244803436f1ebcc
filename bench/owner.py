"""A thread that owns a store without an event loop: timers and posts, turned by hand."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import select
from collections.abc import Callable
from typing import TypeVarTuple

from skylark.core.clock import SystemClock

Ts = TypeVarTuple("Ts")


class _Timer:
    __slots__ = ("_cancelled", "run")

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Owner(SystemClock):
    """Scheduler and ``post`` of a store; :meth:`turn` does what an event loop would do."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self._watched: dict[int, Callable[[], None]] = {}
        self._poll = select.poll()

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> _Timer:
        timer = _Timer(lambda: callback(*args))
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def watch(self, fd: int, callback: Callable[[], None]) -> Callable[[], object]:
        self._watched[fd] = callback
        self._poll.register(fd, select.POLLIN)

        def unwatch() -> None:
            del self._watched[fd]
            self._poll.unregister(fd)

        return unwatch

    def turn(self) -> None:
        """Run what was posted, and the timers that are due."""
        for _ in range(self._posted.qsize()):
            self._posted.get()()
        now = self.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                timer.run()

    def turn_until(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Turn until a condition holds; waits for posts in between."""
        deadline = self.monotonic() + timeout_s
        while not done():
            if self.monotonic() > deadline:
                raise TimeoutError("the store did not get there in time")
            if self._watched:
                for fd, _ in self._poll.poll(1 if self._posted.empty() else 0):
                    self._watched[fd]()
            else:
                with contextlib.suppress(queue.Empty):
                    self._posted.get(timeout=0.001)()
            self.turn()
