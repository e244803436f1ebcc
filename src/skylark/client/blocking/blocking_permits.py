"""How many messages threads may have under way: by number and by bytes.

The twin of :class:`skylark.client.core.permits.Permits` for threads: whoever finds no room waits,
within its time, until others have got their outcome. A message that is larger than all room is let
in when it is alone.
"""

from __future__ import annotations

import threading

from skylark.core.clock import SystemClock
from skylark.core.errors import TooManyRequestsError


class Gate:
    """Room for a number of messages and a number of bytes."""

    def __init__(self, *, count_max: int, size_max: int) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._clock = SystemClock()
        self._changed = threading.Condition()
        self.count = 0  #: messages under way
        self.size = 0  #: their bytes

    def take(self, size: int, timeout_s: float) -> None:
        """Take room for a message; raises TooManyRequestsError if there is none in time."""
        with self._changed:
            if not self._fits(size):
                self._wait(size, timeout_s)
            self.count += 1
            self.size += size

    def _wait(self, size: int, timeout_s: float) -> None:
        deadline = self._clock.monotonic() + timeout_s
        while not self._fits(size):
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise TooManyRequestsError(
                    f"{self.count} messages of {self.size} bytes are under way, and none ended"
                    f" within {timeout_s:g} s",
                    hint="send more slowly, or raise pending_max and pending_bytes_max",
                )
            self._changed.wait(left_s)

    def give(self, size: int) -> None:
        """Give room back."""
        with self._changed:
            self.count -= 1
            self.size -= size
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        if self.count >= self._count_max:
            return False
        return not self.count or self.size + size <= self._size_max
