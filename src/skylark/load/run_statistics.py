"""What a run has done so far: counts, bytes, latencies, errors; and the figures made of them."""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.core.clock import TimeSource
from skylark.load.histogram import LatencyHistogram

MIB: Final = 1024 * 1024
#: A rate of now is one over at least so long; the first one has less to go by.
RATE_INTERVAL_S: Final = 1.0
FIRST_INTERVAL_S: Final = 0.2


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the result; times are of messages that went well."""

    what: str
    messages: int
    errors: int
    seconds: float
    per_second: float
    mib_per_second: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    max_ms: float | None


class Tally:
    """Counts one kind of work; ``begin`` and ``finish`` bound its time."""

    def __init__(self, what: str, clock: TimeSource) -> None:
        self.what = what
        self.messages = 0
        self.bytes = 0
        self.errors = 0
        self.first_error: Exception | None = None
        self.latencies = LatencyHistogram()
        self._clock = clock
        self._began: float | None = None
        self._ended: float | None = None
        self._mark = (0.0, 0)  # when a rate of now was worked out, and at how many messages
        self._rate: float | None = None

    def begin(self) -> None:
        """The time counts from here, unless it does already."""
        if self._began is None:
            self._began = self._clock.monotonic()
            self._mark = (self._began, 0)

    def finish(self) -> None:
        """The time counts until here."""
        self._ended = self._clock.monotonic()

    def done(self, count: int, size: int, latency_s: float) -> None:
        """``count`` messages of ``size`` bytes together went well."""
        self.messages += count
        self.bytes += size
        self.latencies.add(latency_s, count)

    def failed(self, count: int, error: Exception) -> None:
        """``count`` messages did not."""
        self.errors += count
        self.first_error = self.first_error or error

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        if self._began is None:
            return 0.0
        return (self._ended or self._clock.monotonic()) - self._began

    def rate_now(self) -> float | None:
        """Messages a second of late, for whoever watches; None: it is too early to say."""
        at, messages = self._mark
        passed_s = self._clock.monotonic() - at
        enough_s = FIRST_INTERVAL_S if at == self._began else RATE_INTERVAL_S
        if self._began is not None and passed_s >= enough_s:
            self._rate = (self.messages - messages) / passed_s
            if passed_s >= RATE_INTERVAL_S:
                self._mark = (at + passed_s, self.messages)
        return self._rate

    def figures(self) -> Figures:
        """The sum of it."""
        seconds = self.seconds
        per_second = 1 / seconds if seconds else 0.0
        latency = self.latencies.percentile_ms
        return Figures(
            what=self.what,
            messages=self.messages,
            errors=self.errors,
            seconds=round(seconds, 3),
            per_second=round(self.messages * per_second, 1),
            mib_per_second=round(self.bytes * per_second / MIB, 2),
            p50_ms=latency(50),
            p90_ms=latency(90),
            p99_ms=latency(99),
            p999_ms=latency(99.9),
            max_ms=self.latencies.max_ms,
        )
