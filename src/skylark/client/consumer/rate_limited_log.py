"""Rate-limited logging: the same line at most once in ten seconds.

While something is wrong, rebalance rounds follow each other every second, for each topic, queue and
broker. A :class:`RateLimitedLog` logs a line at once when it is new, and every ten seconds while it
repeats. Callers identify a line by ``what``; the cause of a failure is part of it, so another cause
is logged at once.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

from skylark.core.clock import TimeSource

AGAIN_S: Final = 10.0
_KNOWN_COUNT_MAX: Final = 256


class RateLimitedLog:
    """Wraps a logger; belongs to one loop."""

    __slots__ = ("_clock", "_log", "_logged")

    def __init__(self, log: logging.Logger, clock: TimeSource) -> None:
        self._log = log
        self._clock = clock
        self._logged: dict[Hashable, float] = {}  # time of the last line, by what

    def log(self, level: int, what: Hashable, text: str, *args: object) -> None:
        """Log ``text`` unless the same line was logged recently."""
        now = self._clock.monotonic()
        logged_at = self._logged.get(what)
        if logged_at is not None and now - logged_at < AGAIN_S:
            return
        if len(self._logged) >= _KNOWN_COUNT_MAX:
            self._logged = {what: at for what, at in self._logged.items() if now - at < AGAIN_S}
        if len(self._logged) < _KNOWN_COUNT_MAX:
            self._logged[what] = now
        self._log.log(level, text, *args)

    def failed(self, what: Hashable, error: Exception, text: str, *args: object) -> None:
        """Log a warning about an error that may repeat; the error is added to ``text``."""
        self.log(logging.WARNING, (what, str(error)), f"{text}: %s", *args, error)
