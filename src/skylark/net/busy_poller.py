"""Busy-polls the sockets for a short time after a request, instead of sleeping.

A client that sends one message after the other has its next request ready 0.1 ms after each
response. A process that sleeps meanwhile takes about as long to wake up, longer on virtual
machines, and continues with cold caches. So the loop polls for a while after each request, as long
as that pays off::

    request .. response, poll poll poll request .. response, poll poll poll ... sleep
                         |<-- found: +1 -->|                 |<- window over: -2 ->|

The poller has credit: a window in which a request arrives earns some, a window without one costs
more. Without credit it polls only after every 64th request, to find out whether the load has
changed. So an idle broker sleeps, and so does one whose requests are further apart than the window;
a broker that serves one client at full speed keeps a core busy that would be idle half of the time.

To poll is to schedule a callback for the next turn of the event loop: asyncio and uvloop then ask
the system for bytes without waiting. The clock is the machine's, also in tests with a virtual
clock, on which a window would never end.

Only codes with a run handler count, which are sends of one message: their client has nothing else
to do, while a consumer needs the processor for the messages that it has pulled. A run of several
requests sets the credit to zero: it comes from many threads, which need the processors more than
this process does.

Java has no counterpart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from skylark.core.clock import SystemClock

CREDIT_MAX: Final = 16
HIT_GAIN: Final = 1
MISS_COST: Final = 2  # so polling pays off if two of three windows end with a request
SAMPLE: Final = 64  # without credit, requests from one poll to the next


class BusyPoller:
    """Keeps the running loop awake while requests follow each other closely."""

    __slots__ = ("_call_soon", "_credit", "_monotonic", "_polling", "_skipped", "_until", "_window")

    def __init__(
        self,
        window_s: float,
        *,
        monotonic: Callable[[], float] = SystemClock.monotonic,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``window_s``: how long to poll for the next request.

        Without ``call_soon`` it keeps the running loop awake.
        """
        self._window = window_s
        self._monotonic = monotonic
        self._call_soon = call_soon or asyncio.get_running_loop().call_soon
        self._credit = CREDIT_MAX
        self._skipped = 0
        self._until = 0.0
        self._polling = False

    def handled(self, count: int) -> None:
        """Start or extend polling after ``count`` requests that were handled together."""
        if count > 1:
            self._credit = 0
            self._until = 0.0
            return
        if self._polling:
            self._credit = min(CREDIT_MAX, self._credit + HIT_GAIN)
            self._until = self._monotonic() + self._window
            return
        if not self._credit:
            self._skipped += 1
            if self._skipped < SAMPLE:
                return
        self._skipped = 0
        self._polling = True
        self._until = self._monotonic() + self._window
        self._call_soon(self._poll)

    def _poll(self) -> None:
        if self._monotonic() < self._until:
            self._call_soon(self._poll)
            return
        self._polling = False
        self._credit = max(0, self._credit - MISS_COST)
