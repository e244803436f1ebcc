"""Looking out for the next request for a moment, before the process goes to sleep.

A client that sends one message after the other has its next request ready a tenth of a millisecond
after each answer. A process that sleeps meanwhile needs about as long to wake up, longer on virtual
machines, and then works with cold caches at a third of its speed. So after each request the loop
looks into its sockets again and again for a while, as long as that is worth while::

    request .. answer, look look look request .. answer, look look look look ... sleep
                       |<- found: +1 ->|                 |<- window: in vain, -2 ->|

Each look in vain uses up credit, each that found something earns some. Without credit only every
64th request is followed by a look, to see whether times have changed. So a broker that has nothing
to do sleeps, and so does one whose requests come at larger distances; one that serves a client at
full speed keeps a core busy that would have been idle for half of the time.

A look is a turn of the event loop with something to call: then both asyncio and uvloop ask the
system for bytes without waiting for any. The clock is the machine's, also in tests with another
one: where time stands still, looking would have no end.

Only requests of those kinds that come in runs count, which are sends of one message: who waits for
their answer has nothing else to do, while a consumer needs the processor for what it has pulled.
And requests that come together use up all credit: they are of many threads, which need the
processors more than a broker that waits for them.

Java brokers do nothing of the kind; their threads stay awake because there are many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from skylark.core.clock import SystemClock

CREDIT_MAX: Final = 16
FOUND_GAIN: Final = 1
VAIN_LOSS: Final = 2  # so it pays where two of three looks find something
SAMPLE: Final = 64  # without credit, requests from one look to the next


class Lookout:
    """Keeps the running loop awake while requests follow each other closely."""

    __slots__ = ("_call_soon", "_credit", "_looking", "_monotonic", "_skipped", "_until", "_window")

    def __init__(
        self,
        window_s: float,
        *,
        monotonic: Callable[[], float] = SystemClock.monotonic,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``window_s``: how long to look for the next request."""
        self._window = window_s
        self._monotonic = monotonic
        self._call_soon = call_soon or _call_soon
        self._credit = CREDIT_MAX
        self._skipped = 0
        self._until = 0.0
        self._looking = False

    def handled(self, count: int) -> None:
        """So many requests that came together were handled: look out for the next."""
        if count > 1:
            self._credit = 0
            self._until = 0.0
            return
        if self._looking:
            self._credit = min(CREDIT_MAX, self._credit + FOUND_GAIN)
            self._until = self._monotonic() + self._window
            return
        if not self._credit:
            self._skipped += 1
            if self._skipped < SAMPLE:
                return
        self._skipped = 0
        self._looking = True
        self._until = self._monotonic() + self._window
        self._call_soon(self._look)

    def _look(self) -> None:
        if self._monotonic() < self._until:
            self._call_soon(self._look)
            return
        self._looking = False
        self._credit = max(0, self._credit - VAIN_LOSS)


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
