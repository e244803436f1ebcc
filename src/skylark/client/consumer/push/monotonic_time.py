"""Time for everything that measures intervals: milliseconds that never jump.

It starts as the time of day and runs with the monotonic clock from then on, so that stamps look
like times to people, and a correction of the machine's clock neither expires locks, pulls and
handlers nor keeps them alive for ever.
"""

from __future__ import annotations

from skylark.core.clock import TimeSource


class SteadyTime:
    """Milliseconds since 1970, as they were counted when this began."""

    __slots__ = ("_monotonic", "_offset_ms")

    def __init__(self, clock: TimeSource) -> None:
        self._monotonic = clock.monotonic
        self._offset_ms = clock.now_ms() - clock.monotonic() * 1000

    def now_ms(self) -> int:
        return int(self._offset_ms + self._monotonic() * 1000)
