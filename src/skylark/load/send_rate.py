"""When to send: a schedule that many senders share, and the end of a run.

With a rate, message number k is planned ``k / rate`` seconds after the first. A sender that comes
late goes at once, and the schedule waits for nobody, except that it never owes more than
:data:`CATCH_UP_S`: after a long pause there is no flood. Latency is then measured from the planned
time: a broker that stalls is charged for the messages that should have been sent meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

from skylark.core.clock import Clock

CATCH_UP_S: Final = 0.1


class Ending:
    """Set once, by whoever ends the run: the count, the time, a person."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def within(self, seconds: float | None) -> bool:
        """Wait so long, or without limit; whether the end came."""
        try:
            await self._clock.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return False
        return True


class Pacer:
    """Gives turns to senders; without a rate, always at once."""

    def __init__(self, clock: Clock, rate: float | None, ending: Ending) -> None:
        self._clock = clock
        self._rate = rate
        self._ending = ending
        self._next: float | None = None

    async def turn(self, count: int = 1) -> float | None:
        """Wait for the turn of the next ``count`` messages.

        Returns the time since when they are due, None if the run has ended.
        """
        now = self._clock.monotonic()
        if self._rate is None:
            return None if self._ending.is_set else now
        due = now if self._next is None else max(self._next, now - CATCH_UP_S)
        self._next = due + count / self._rate
        if due > now and await self._ending.within(due - now):
            return None
        return None if self._ending.is_set else due
