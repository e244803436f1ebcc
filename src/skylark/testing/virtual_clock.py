"""The virtual clock: time that only a test moves.

::

    clock = VirtualClock()
    server = NameServer(config, clock=clock)
    await clock.advance(minutes=2)      # every timer of these two minutes has run, in order
    assert clock.now_ms() == START_MS + 120_000

:meth:`VirtualClock.advance` runs the due timers one by one, ordered by time and, at equal times,
by registration. While a timer runs, the clock shows its time; after each timer the loop is
*drained*, so that the tasks which it woke run to their next wait. Timers that they set within the
same advance run, too.

**Drained** means: for some turns in a row no callback was ready and no socket had an event. So data
between two sockets of this process, on loopback or on the memory network, is consumed before time
moves on. Work outside the loops is not seen, such as a thread that syncs a file or resolves a name:
register a predicate with :meth:`VirtualClock.hold_while`, and time stands still while it is true,
or await the result before advancing. Threads may use ``call_soon_threadsafe`` at any time. uvloop
does not show its queue of ready callbacks; there a fixed number of turns is run instead, enough for
exchanges of a few steps.

Draining is bounded: a task that never waits causes :class:`NotDrainedError` instead of a hang.

**Several loops.** A client runs its heartbeats on a separate loop thread. A timer fires on the loop
that set it, and draining covers every loop that has set a timer on this clock.

**Live clients.** Two hours of virtual time pass in a moment, in which no heartbeat over a real
socket from another process can arrive. So advancing does not expire connections that are alive: a
component that stamps liveness registers with :meth:`VirtualClock.on_advance` and, while
``clients_alive`` is true, renews the stamps of its open connections and their locks. It is called
after each move of the clock and before the timers at the new time. ``advance(...,
clients_alive=False)`` is how a test lets them die.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar, TypeVarTuple, cast

from skylark.core.clock import BaseClock, LoopClock, yield_once
from skylark.core.errors import SkylarkError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

AdvanceHook = Callable[[int, int, bool], None]  # from_ms, to_ms, clients_alive

FINISH_WITHIN_S: Final = 73 * 3_600.0  # an hour more than the longest delay of a message
START_MS: Final = 1_700_000_000_000  # 2023-11-14T22:13:20Z
# Not zero, so that code which takes the time 0 for "never" shows itself.
_START_NS: Final = 10_000 * 1_000_000_000

_IDLE_TURNS: Final = 3  # loopback delivers within the sender's call; the rest is margin
_BLIND_TURNS: Final = 32  # for loops that do not show their ready queue
_TURNS_MAX: Final = 100_000
_ROUNDS_MAX: Final = 10_000
_TIMERS_MAX: Final = 1_000_000
_TIMERS_PER_S_MAX: Final = 40  # of virtual time: a broker and some clients set 5 to 20
_WAIT_REAL_SECONDS_MAX: Final = 10.0
_CANCELLED_COUNT_MIN: Final = 1_000  # below this, sweeping cancelled timers is not worth it


class NotDrainedError(SkylarkError):
    """Virtual time cannot move on: something never comes to rest."""


class VirtualTimer:
    """One pending callback; the handle that ``call_at`` returns."""

    __slots__ = ("_args", "_callback", "_cancelled", "_clock", "context", "loop", "queued")

    def __init__(
        self,
        clock: VirtualClock,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[..., object],
        args: tuple[Any, ...],
    ) -> None:
        self._clock = clock
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._cancelled = False
        self.loop = loop
        self.context: Context = copy_context()
        self.queued = False  # in the clock's heap

    def cancel(self) -> None:
        with self._clock._lock:
            if self._callback is not None:
                self._cancelled = True
                self._callback, self._args = None, ()
                self._clock._forget(self)

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        callback, args = self._callback, self._args
        self._callback, self._args = None, ()
        if callback is not None:
            callback(*args)


class VirtualClock(BaseClock):
    """A :class:`~skylark.core.clock.Clock` under the test's control."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._start_ms = self._steady_start_ms = start_ms
        self._now_ns = _START_NS  # whole nanoseconds: sums of float steps would drift
        self._timers: list[tuple[int, int, VirtualTimer]] = []  # heap of (when_ns, order, timer)
        self._order = itertools.count()
        self._cancelled_count = 0
        self._advancing = False
        self._loops: set[asyncio.AbstractEventLoop] = set()
        self._hooks: list[AdvanceHook] = []
        self._holds: list[Callable[[], bool]] = []
        # Guards the heap: loops of several threads set timers. Re-entrant, because the garbage
        # collector may close a sleeping coroutine, and so cancel its timer, at any allocation.
        self._lock = threading.RLock()
        self._real = LoopClock()

    def now_ms(self) -> int:
        return self._start_ms + (self._now_ns - _START_NS) // 1_000_000

    def monotonic(self) -> float:
        return self._now_ns / 1e9

    def steady_ms(self) -> int:
        return self._steady_start_ms + (self._now_ns - _START_NS) // 1_000_000

    @property
    def timer_count(self) -> int:
        """Timers that are set and not cancelled."""
        with self._lock:
            return len(self._timers) - self._cancelled_count

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> VirtualTimer:
        loop = asyncio.get_running_loop()
        timer = VirtualTimer(self, loop, callback, args)
        when_ns = round(when * 1e9)
        with self._lock:
            self._loops.add(loop)
            # While advancing, a timer due at once still queues behind others of the same time.
            waits = self._advancing or when_ns > self._now_ns
            if waits:
                timer.queued = True
                heapq.heappush(self._timers, (when_ns, next(self._order), timer))
        if not waits:
            _post(timer)
        return timer

    def on_advance(self, callback: AdvanceHook) -> Callable[[], None]:
        """Call ``callback(from_ms, to_ms, clients_alive)`` after each move, before the timers.

        It runs on the loop that advances. Returns a function that removes it.
        """
        self._hooks.append(callback)
        return lambda: self._hooks.remove(callback)

    def hold_while(self, busy: Callable[[], bool]) -> Callable[[], None]:
        """Let time stand still (in real time, bounded) while ``busy()`` is true.

        For work in threads that the loops cannot see. Returns a function that removes it.
        """
        self._holds.append(busy)
        return lambda: self._holds.remove(busy)

    async def advance(
        self,
        seconds: float = 0.0,
        *,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
        ms: float = 0.0,
        clients_alive: bool = True,
    ) -> None:
        """Move time on by the sum of the arguments, running everything that falls due."""
        span_ns = round(seconds * 1e9) + round(minutes * 60e9) + round(hours * 3600e9)
        span_ns += round(days * 86_400e9) + round(ms * 1e6)
        if span_ns < 0:
            raise ValueError(f"time cannot go back by {-span_ns} ns")
        with self._lock:
            if self._advancing:
                raise NotDrainedError(
                    "this clock is already advancing",
                    hint="only one task may advance it, and none that a timer woke",
                )
            self._advancing = True
        try:
            await self._run_until(self._now_ns + span_ns, clients_alive)
        finally:
            self._stop_advancing()

    async def finish(self, work: Awaitable[T], *, within: float = FINISH_WITHIN_S) -> T:
        """Await something that needs time to pass, moving on from timer to timer until it is done.

        ``within`` is a limit in seconds of virtual time: work that waits for longer is cancelled.
        The default, 73 hours, is more than the longest delay of a message, and passes in less than
        a minute. Raises NotDrainedError then, and if no timer is left.
        """
        task = asyncio.ensure_future(work)
        limit_ns = self._now_ns + round(within * 1e9)
        try:
            for _ in range(_TIMERS_MAX):
                await self.drain()
                if task.done():
                    return task.result()
                next_ns = self._next_ns()
                if next_ns is None:
                    raise NotDrainedError("the work waits, and no timer is left that could end it")
                if next_ns > limit_ns:
                    raise NotDrainedError(
                        f"the work still waits after {within:g} s of virtual time",
                        hint="what it waits for may never come; finish(work, within=...) gives it"
                        " more time, in seconds",
                    )
                await self.advance(ms=max(0, next_ns - self._now_ns) / 1e6)
            raise NotDrainedError(f"the work still waits after {_TIMERS_MAX} timers")
        finally:
            task.cancel()

    async def drain(self) -> None:
        """Let everything that is ready run until all loops wait, without moving time."""
        here = asyncio.get_running_loop()
        for round_index in range(_ROUNDS_MAX):
            busy = await _turn_until_idle(here)
            others = self._other_loops(here)
            for loop in others:
                busy |= await self._turn_other(loop)
            held = any(hold() for hold in self._holds)
            if held:
                await self._wait_for_holds()
            # Other loops may have woken this one; not all of them can tell that they were busy.
            elif not others or (not busy and round_index > 0):
                return
        raise NotDrainedError("the loops keep waking each other")

    async def _run_until(self, target_ns: int, clients_alive: bool) -> None:
        await self.drain()  # tasks that were just created set their first timers
        span_s = (target_ns - self._now_ns) // 1_000_000_000
        timers_max = max(_TIMERS_MAX, _TIMERS_PER_S_MAX * span_s)
        for _ in range(timers_max):
            when_ns, timer = self._take(target_ns)
            self._move(when_ns, clients_alive)
            if timer is None:
                await self.drain()  # for what the hooks of the last move set off
                return
            _post(timer)
            await self.drain()
        raise NotDrainedError(
            f"more than {timers_max} timers within one advance",
            hint="a timer that re-arms itself with no delay never lets time move on",
        )

    def _next_ns(self) -> int | None:
        """When the next timer is due."""
        with self._lock:
            while self._timers and self._timers[0][2].cancelled():
                heapq.heappop(self._timers)[2].queued = False
                self._cancelled_count -= 1
            return self._timers[0][0] if self._timers else None

    def _take(self, target_ns: int) -> tuple[int, VirtualTimer | None]:
        """The next timer due by the target with its time, or the target and no timer."""
        with self._lock:
            when_ns, timer = self._pop(target_ns)
        return max(when_ns, self._now_ns), timer

    def _pop(self, target_ns: int) -> tuple[int, VirtualTimer | None]:
        while self._timers and self._timers[0][0] <= target_ns:
            when_ns, _, timer = heapq.heappop(self._timers)
            timer.queued = False
            if not timer.cancelled():
                return when_ns, timer
            self._cancelled_count -= 1
        return target_ns, None

    def _move(self, to_ns: int, clients_alive: bool) -> None:
        if to_ns == self._now_ns:
            return
        from_ms = self.now_ms()
        self._now_ns = to_ns
        for hook in tuple(self._hooks):
            hook(from_ms, self.now_ms(), clients_alive)

    def _stop_advancing(self) -> None:
        """Hand timers that became due meanwhile (set by other threads) to their loops."""
        with self._lock:
            self._advancing = False
            due: list[VirtualTimer] = []
            while (timer := self._pop(self._now_ns)[1]) is not None:
                due.append(timer)
        for timer in due:
            _post(timer)

    def _forget(self, timer: VirtualTimer) -> None:
        """Count a cancelled timer and sweep the heap when most of it is dead; lock held."""
        if not timer.queued:
            return
        self._cancelled_count += 1
        if self._cancelled_count >= max(_CANCELLED_COUNT_MIN, len(self._timers) // 2):
            self._timers[:] = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def _other_loops(
        self, here: asyncio.AbstractEventLoop
    ) -> Collection[asyncio.AbstractEventLoop]:
        with self._lock:
            self._loops = {loop for loop in self._loops if not loop.is_closed()}
            return [loop for loop in self._loops if loop is not here and loop.is_running()]

    async def _turn_other(self, loop: asyncio.AbstractEventLoop) -> bool:
        turned = asyncio.run_coroutine_threadsafe(_turn_until_idle(loop), loop)
        return await self._real_limit(asyncio.wrap_future(turned), f"{loop!r}")

    async def _wait_for_holds(self) -> None:
        async def released() -> None:
            while any(hold() for hold in self._holds):
                await self._real.sleep(0.001)

        await self._real_limit(released(), "the work named by hold_while")

    async def _real_limit(self, awaitable: Awaitable[T], what: str) -> T:
        try:
            return await self._real.wait_for(awaitable, _WAIT_REAL_SECONDS_MAX)
        except TimeoutError as error:
            raise NotDrainedError(
                f"{what} did not come to rest within {_WAIT_REAL_SECONDS_MAX} real seconds"
            ) from error


def _post(timer: VirtualTimer) -> None:
    """Run the timer as a callback of its own loop, as a real timer would."""
    loop = timer.loop
    if loop.is_closed():
        return
    if loop is asyncio.get_running_loop():
        loop.call_soon(timer.run, context=timer.context)
    else:
        loop.call_soon_threadsafe(timer.run, context=timer.context)


async def _turn_until_idle(loop: asyncio.AbstractEventLoop) -> bool:
    """Turn the running loop until nothing is ready; whether anything was.

    asyncio keeps what is ready in ``_ready``. The calling task is resumed before the callbacks of
    sockets that were polled in the same turn, so an empty queue at this point means that neither
    a callback nor a socket had anything to do.
    """
    ready = cast("Collection[object] | None", getattr(loop, "_ready", None))
    if ready is None:
        for _ in range(_BLIND_TURNS):
            await yield_once()
        return False
    busy = False
    idle_turns = 0
    for _ in range(_TURNS_MAX):
        await yield_once()
        if ready:
            busy = True
            idle_turns = 0
        else:
            idle_turns += 1
            if idle_turns == _IDLE_TURNS:
                return busy
    raise NotDrainedError(
        f"the loop was still busy after {_TURNS_MAX} turns",
        hint="a task that gives way without waiting (sleep(0) in a loop) never lets time move on",
    )
