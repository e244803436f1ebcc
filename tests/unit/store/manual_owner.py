"""An owner thread under manual control: time, worker and posted callbacks run when a test says."""

from __future__ import annotations

import heapq
import itertools
import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_MS = 1_700_000_000_000


class Timer:
    """A pending callback."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class ManualOwner(Executor):
    """A scheduler, a worker and a ``post`` in one, all controlled by the test."""

    def __init__(self) -> None:
        self.now = 100.0  # monotonic seconds
        self.jobs: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    # the scheduler

    def now_ms(self) -> int:
        return START_MS + round((self.now - 100.0) * 1000)

    def monotonic(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Timer:
        timer = Timer(callback, args)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    @property
    def timer_count(self) -> int:
        return sum(not timer.cancelled() for _, _, timer in self._timers)

    # the owner's queue

    def post(self, callback: Callable[[], None]) -> None:
        self.posted.put(callback)

    def turn(self) -> None:
        """Run what was posted, and what that posts."""
        while not self.posted.empty():
            self.posted.get()()

    def turn_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Run what real threads post until ``condition()``."""
        while not condition():
            self.posted.get(timeout=timeout_s)()

    # the worker

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self) -> None:
        """Do the next job, without telling the owner yet."""
        future, job = self.jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except Exception as error:  # noqa: BLE001 - the future reports it
            future.set_exception(error)

    # all together

    def settle(self) -> None:
        """Let owner and worker go on until both have nothing to do."""
        self.turn()
        while self.jobs:
            self.work()
            self.turn()

    def advance(self, ms: float, *, worker: bool = True) -> None:
        """Move time on, running due timers in order, each with all that follows from it.

        Without ``worker`` the worker hangs: what it is asked to do stays in ``jobs``.
        """
        follow = self.settle if worker else self.turn
        target = self.now + ms / 1000
        follow()
        while self._timers and self._timers[0][0] <= target + 1e-9:
            when, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if not timer.cancelled():
                timer.callback(*timer.args)
                follow()
        self.now = target
