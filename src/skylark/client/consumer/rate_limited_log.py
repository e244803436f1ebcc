"""Rate-limited logging: the same line at most once in ten seconds.

Rounds of rebalancing follow each other every second while something is wrong, for each topic, queue
and broker. What is logged there goes through a :class:`RateLimitedLog`: at once when it is new, and
again every ten seconds while it goes on. "The same" is what callers name as ``what``; the cause of
a failure belongs to it, so that another cause is news.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

from skylark.core.clock import TimeSource

AGAIN_S: Final = 10.0
_KNOWN_COUNT_MAX: Final = 256


class RateLimitedLog:
    """Before a logger; belongs to one loop."""

    __slots__ = ("_clock", "_log", "_said")

    def __init__(self, log: logging.Logger, clock: TimeSource) -> None:
        self._log = log
        self._clock = clock
        self._said: dict[Hashable, float] = {}  # when, by what

    def log(self, level: int, what: Hashable, text: str, *args: object) -> None:
        """Log ``text`` unless the same was said a moment ago."""
        now = self._clock.monotonic()
        said = self._said.get(what)
        if said is not None and now - said < AGAIN_S:
            return
        if len(self._said) >= _KNOWN_COUNT_MAX:
            self._said = {what: at for what, at in self._said.items() if now - at < AGAIN_S}
        if len(self._said) < _KNOWN_COUNT_MAX:
            self._said[what] = now
        self._log.log(level, text, *args)

    def failed(self, what: Hashable, error: Exception, text: str, *args: object) -> None:
        """Warn of an error that may come again; ``text`` goes on with the error."""
        self.log(logging.WARNING, (what, str(error)), f"{text}: %s", *args, error)
