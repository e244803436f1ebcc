"""Turns of the loop: a watch that counts them, a clock of work, and what a number does in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skylark.testing.virtual_clock import VirtualClock


class CountingWatch:
    """A watch of connections (:class:`skylark.net.inbound.Watch`): bytes of turn n arrive at n."""

    def __init__(self) -> None:
        self.turns = 0
        self.going_on: list[bool] = []  #: of each turn that has ended

    def read(self, _now: float) -> float:
        self.turns += 1
        return float(self.turns)

    def served(self, *, goes_on: bool) -> None:
        self.going_on.append(goes_on)


class WorkingClock(VirtualClock):
    """Time also passes while code works."""

    worked_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.worked_s


async def turn_growth(read: Callable[[], int]) -> list[int]:
    """By how much a number grows in each turn of the loop, until it stays as it is."""
    growth: list[int] = []
    while True:
        before = read()
        await asyncio.sleep(0)  # one turn
        if read() == before:
            return growth
        growth.append(read() - before)
