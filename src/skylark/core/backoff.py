"""Pauses between attempts: a policy, and a deadline over it.

:class:`Backoff` says how long to wait after the n-th failure in a row: the first pause times
``factor`` for each further one, up to a maximum, less a random share of it (``jitter``) that keeps
clients which failed together from coming back together. It holds no state and reads no clock.

:class:`Outage` adds an end: how long an operation rides out missing brokers and name servers before
it gives up with the last error::

    outage = Outage(Backoff(first_s=0.1, most_s=2.0), clock, timeout_s)
    while True:
        try:
            return await attempt()
        except TransportError:
            if not await outage.pause():
                raise
"""

from __future__ import annotations

import random
from typing import Final

import msgspec

from skylark.core.clock import Clock

#: Exponents above this change nothing but the risk of an overflow.
_EXPONENT_MAX: Final = 64


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait after each of several failures in a row."""

    first_s: float
    most_s: float
    factor: float = 2.0
    jitter: float = 0.0  #: the largest share of a pause that chance takes off, 0 to 1

    def pause_s(self, failures: int, rng: random.Random | None = None) -> float:
        """The pause after so many failures; 0 after none. ``rng`` is for ``jitter`` only."""
        if failures <= 0:
            return 0.0
        growth = self.factor ** min(failures - 1, _EXPONENT_MAX)
        pause_s = min(self.most_s, self.first_s * growth)
        if self.jitter and rng is not None:
            pause_s *= rng.uniform(1.0 - self.jitter, 1.0)
        return pause_s


class Outage:
    """The pauses of one operation that is repeated until its time is over."""

    __slots__ = ("_backoff", "_clock", "_deadline", "_rng", "failures")

    def __init__(
        self,
        backoff: Backoff,
        clock: Clock,
        timeout_s: float,
        rng: random.Random | None = None,
    ) -> None:
        """The time runs from now on."""
        self._backoff = backoff
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s
        self._rng = rng
        self.failures = 0  #: in a row, so far

    def next_pause_s(self) -> float | None:
        """One more attempt has failed: the pause before the next, None if the time is over."""
        self.failures += 1
        pause_s = self._backoff.pause_s(self.failures, self._rng)
        return None if self._clock.monotonic() + pause_s > self._deadline else pause_s

    async def pause(self) -> bool:
        """One more attempt has failed: wait before the next; False, at once, if time is over."""
        pause_s = self.next_pause_s()
        if pause_s is None:
            return False
        await self._clock.sleep(pause_s)
        return True
