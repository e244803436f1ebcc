"""Back-off: pauses between attempts, and a time limit for all of them.

:class:`Backoff` computes the pause after the n-th failure in a row: the first pause, times
``factor`` for each further failure, up to a maximum, less a random share (``jitter``) so that
clients which failed together do not retry together. It has no state and reads no clock.

:class:`Outage` adds the time limit: how long an operation is retried without brokers or name
servers before it fails with the last error::

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
    jitter: float = 0.0  #: the largest random share that is subtracted from a pause, 0 to 1

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
    """The pauses of one operation that is retried until its time is over."""

    __slots__ = ("_backoff", "_clock", "_deadline", "_rng", "failures")

    def __init__(
        self,
        backoff: Backoff,
        clock: Clock,
        timeout_s: float,
        rng: random.Random | None = None,
    ) -> None:
        """The time limit starts now."""
        self._backoff = backoff
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s
        self._rng = rng
        self.failures = 0  #: in a row, so far

    def next_pause_s(self) -> float | None:
        """Count a failed attempt; the pause before the next one, or None if the time is over."""
        self.failures += 1
        pause_s = self._backoff.pause_s(self.failures, self._rng)
        return None if self._clock.monotonic() + pause_s > self._deadline else pause_s

    async def pause(self) -> bool:
        """Count a failed attempt and wait for the next one; False at once if the time is over."""
        pause_s = self.next_pause_s()
        if pause_s is None:
            return False
        await self._clock.sleep(pause_s)
        return True
