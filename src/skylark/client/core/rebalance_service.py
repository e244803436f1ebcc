"""Schedule of rebalancing: when the consumers of a client rebalance.

One task per client instance, on the control loop: it waits for the interval or for a wake-up, never
runs twice within a second, and asks each consumer to rebalance. While one of them is not balanced
(its queues are not yet those that it should have) the next round follows after a second, otherwise
after twenty. Wake-ups come from the start of a consumer, from notices that a group has changed
(40), from new connections, and from consumers themselves. Counterpart of Java's
``RebalanceService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from skylark.core.clock import Clock

log = logging.getLogger(__name__)

INTERVAL_S: Final = 20.0
INTERVAL_UNBALANCED_S: Final = 1.0
INTERVAL_MIN_S: Final = 1.0


class RebalanceMember(Protocol):
    """A consumer that shares queues with others."""

    async def rebalance(self) -> bool:
        """Take up and give up queues; whether it has exactly those that it should have."""


class RebalanceLoop:
    """The rounds of one client instance."""

    def __init__(self, members: Callable[[], Iterable[RebalanceMember]], clock: Clock) -> None:
        self._members = members
        self._clock = clock
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Rebalance soon; on the control loop."""
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        interval_s = INTERVAL_S
        last = -INTERVAL_MIN_S + self._clock.monotonic()
        while True:
            await self._wait(interval_s)
            pause_s = last + INTERVAL_MIN_S - self._clock.monotonic()
            if pause_s > 0:
                await self._clock.sleep(pause_s)
            self._woken.clear()
            last = self._clock.monotonic()
            interval_s = INTERVAL_S if await self.round() else INTERVAL_UNBALANCED_S

    async def round(self) -> bool:
        """Every consumer once; whether all of them are balanced."""
        balanced = True
        for member in tuple(self._members()):
            try:
                balanced &= await member.rebalance()
            except Exception:
                log.exception("%r cannot rebalance", member)
                balanced = False
        return balanced

    async def _wait(self, interval_s: float) -> None:
        try:
            await self._clock.wait_for(self._woken.wait(), interval_s)
        except TimeoutError:
            return
