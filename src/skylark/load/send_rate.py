"""The send schedule that all senders share, and the end of a run.

With a rate, message number k is scheduled ``k / rate`` seconds after the first. A late sender sends
at once, and the schedule does not shift, except that it never lags more than :data:`CATCH_UP_S`, so
that a long pause is not followed by a burst. Latency is measured from the scheduled time: the delay
of messages that could not be sent because the broker stalled counts too.
"""

from __future__ import annotations

import asyncio
from typing import Final

from skylark.core.clock import Clock

CATCH_UP_S: Final = 0.1


class Ending:
    """The end of a run, set once: by the count, the duration, or a signal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def within(self, seconds: float | None) -> bool:
        """Wait for the end, with a timeout or without; returns whether it has come."""
        try:
            await self._clock.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return False
        return True


class Pacer:
    """Schedules the senders; without a rate, they never wait."""

    def __init__(self, clock: Clock, rate: float | None, ending: Ending) -> None:
        self._clock = clock
        self._rate = rate
        self._ending = ending
        self._next: float | None = None

    async def turn(self, count: int = 1) -> float | None:
        """Wait until the next ``count`` messages are due.

        Returns the time at which they were due, None if the run has ended.
        """
        now = self._clock.monotonic()
        if self._rate is None:
            return None if self._ending.is_set else now
        due = now if self._next is None else max(self._next, now - CATCH_UP_S)
        self._next = due + count / self._rate
        if due > now and await self._ending.within(due - now):
            return None
        return None if self._ending.is_set else due
