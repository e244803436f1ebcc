"""Clocks: the only source of time; every component gets a clock as an argument.

Two protocols. :class:`TimeSource` is enough for code without an event loop (store, command line);
:class:`Clock` adds timers and belongs to a running loop::

    now_ms()              wall time, milliseconds since 1970: for records and frames
    monotonic()           seconds that never step back: every interval and every deadline
    steady_ms()           monotonic() as milliseconds since 1970, for ages and expiries that are
                          also shown to people: the wall time at start, and no step since
    call_at / call_later  a plain callback at a monotonic time
    sleep, timeout, wait_for

Implementations: :class:`SystemClock` (no loop), :class:`LoopClock` (production) and
``skylark.testing.virtual_clock.VirtualClock`` (tests). ``sleep``, ``timeout`` and ``wait_for`` are
written once, in :class:`BaseClock`, over ``monotonic`` and ``call_at``, so that a test on virtual
time runs the code that production runs.

Rules for callers:

- Deadlines are monotonic times. Wall time is for what other machines or files see.
- A timer may fire a fraction of a millisecond early (uvloop counts in whole milliseconds): a
  callback acts on being called and does not compare ``monotonic()`` with its own deadline again.
- A timer that is already due runs at the next turn of the loop, never inside ``call_at``.

No other module under ``src/`` may use ``time``, ``datetime.now``, ``asyncio.sleep``, ``timeout``,
``wait_for`` or the loop's ``call_later`` and ``call_at``; a test enforces it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar, TypeVarTuple, final

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TimerHandle(Protocol):
    """What ``call_at`` returns. ``asyncio.TimerHandle`` is one."""

    def cancel(self) -> None:
        """Keep the callback from running; harmless after it ran, and when repeated."""

    def cancelled(self) -> bool:
        """Whether ``cancel`` was called."""


class TimeSource(Protocol):
    """A clock to read, for code that has no event loop."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970; may step when the machine's clock is set."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never step back."""


class Clock(TimeSource, Protocol):
    """A clock to read and to wait on; timers need a running loop in the calling thread."""

    def steady_ms(self) -> int:
        """Milliseconds since 1970 that never step: the wall time when the process started, and
        from then on the monotonic clock. All clocks of a process agree."""

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> TimerHandle:
        """Call ``callback(*args)`` once ``monotonic()`` has reached ``when``."""

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts
    ) -> TimerHandle:
        """Call ``callback(*args)`` after ``delay`` seconds."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task; zero or less gives way for one turn of the loop."""

    def timeout(self, seconds: float | None) -> Timeout:
        """``async with`` block that is cancelled, and raises TimeoutError, after ``seconds``."""

    async def wait_for(self, awaitable: Awaitable[T], seconds: float | None) -> T:
        """Await with a limit; a task or future that is awaited is cancelled when time is up."""


@final
class Timeout:
    """Bounds the body of an ``async with``; made by :meth:`Clock.timeout`.

    At the limit the task is cancelled, and that cancellation leaves the block as TimeoutError.
    A cancellation from elsewhere passes through unchanged, also when both arrive together: the
    task's count of cancel requests (``Task.cancelling``) tells the two apart.
    """

    __slots__ = ("_cancelling", "_clock", "_handle", "_seconds", "_task", "expired")

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._handle: TimerHandle | None = None
        self._cancelling = 0
        self.expired = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout can only be used inside a task")
        if self._task is not None:
            raise RuntimeError("a timeout can only be entered once")
        self._task = task
        self._cancelling = task.cancelling()
        if self._seconds is not None:
            self._handle = self._clock.call_later(self._seconds, self._expire, task)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if not self.expired or self._task is None:
            return
        ours_alone = self._task.uncancel() <= self._cancelling
        if ours_alone and exc_type is not None and issubclass(exc_type, asyncio.CancelledError):
            raise TimeoutError(f"no result within {self._seconds} s") from exc

    def _expire(self, task: asyncio.Task[object]) -> None:
        self.expired = True
        task.cancel()


class BaseClock(ABC):
    """Everything about waiting that follows from ``monotonic`` and ``call_at``."""

    @abstractmethod
    def now_ms(self) -> int:
        """See :meth:`TimeSource.now_ms`."""

    @abstractmethod
    def monotonic(self) -> float:
        """See :meth:`TimeSource.monotonic`."""

    @abstractmethod
    def steady_ms(self) -> int:
        """See :meth:`Clock.steady_ms`."""

    @abstractmethod
    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> TimerHandle:
        """See :meth:`Clock.call_at`."""

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts
    ) -> TimerHandle:
        return self.call_at(self.monotonic() + delay, callback, *args)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await yield_once()
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handle = self.call_later(seconds, _wake, woken)
        try:
            await woken
        finally:
            handle.cancel()

    def timeout(self, seconds: float | None) -> Timeout:
        return Timeout(self, seconds)

    async def wait_for(self, awaitable: Awaitable[T], seconds: float | None) -> T:
        async with self.timeout(seconds):
            return await awaitable


#: Wall time minus monotonic time, in milliseconds, at the start of the process.
_STEADY_START_MS: Final = time.time_ns() // 1_000_000 - int(time.monotonic() * 1000)


class SystemClock:
    """The machine's clocks, for code that has no event loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    #: Called several times for each message, so without a wrapper.
    monotonic = staticmethod(time.monotonic)
    #: Seconds of processor time that the calling thread has used.
    thread_time = staticmethod(time.thread_time)

    def steady_ms(self) -> int:
        return _STEADY_START_MS + int(time.monotonic() * 1000)


class LoopClock(SystemClock, BaseClock):
    """The machine's clocks and the timers of the loop that runs in the calling thread.

    ``monotonic`` is read from the machine, not from ``loop.time()``: uvloop returns the time at
    which its current turn began, in whole milliseconds, which would hide a stall within the turn.
    """

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> TimerHandle:
        return self.call_later(when - time.monotonic(), callback, *args)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts
    ) -> TimerHandle:
        return asyncio.get_running_loop().call_later(max(0.0, delay), callback, *args)


async def yield_once() -> None:
    """Let every callback that is ready now run before the calling task goes on."""
    await asyncio.sleep(0)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
