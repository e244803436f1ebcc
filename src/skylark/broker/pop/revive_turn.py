"""What one turn of the loop may do of a long piece of work.

A turn ends after so many messages, so many bytes, or so much time, whichever comes first. The
numbers bound the work where messages are small or large, the time where the machine is slow. What
is left over is done in later turns.
"""

from __future__ import annotations

from skylark.core.clock import TimeSource


class Turn:
    """Counts down what is left of one turn."""

    __slots__ = ("_bytes_left", "_clock", "_count_left", "_ends_at")

    def __init__(self, clock: TimeSource, *, count: int, bytes_max: int, seconds: float) -> None:
        self._clock = clock
        self._count_left = count
        self._bytes_left = bytes_max
        self._ends_at = clock.monotonic() + seconds

    def take(self, size: int = 0) -> None:
        """Count one message of so many bytes."""
        self._count_left -= 1
        self._bytes_left -= size

    @property
    def is_over(self) -> bool:
        """Whether no further message should be begun."""
        return (
            self._count_left <= 0
            or self._bytes_left <= 0
            or self._clock.monotonic() >= self._ends_at
        )
