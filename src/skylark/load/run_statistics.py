"""Statistics of a benchmark run: counts, bytes, latencies, errors, and the resulting figures."""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.core.clock import TimeSource

MIB: Final = 1024 * 1024
#: The current rate is measured over at least this time.
RATE_INTERVAL_S: Final = 1.0
FIRST_INTERVAL_S: Final = 0.2

_SUB_BITS: Final = 6
_HALF: Final = 1 << _SUB_BITS  # buckets per doubling
_VALUE_BITS: Final = 36
VALUE_MAX: Final = (1 << _VALUE_BITS) - 1
BUCKET_COUNT: Final = (_VALUE_BITS - _SUB_BITS + 1) * _HALF


class LatencyHistogram:
    """Latencies of any number of messages, in a fixed amount of memory.

    It counts microseconds in buckets whose width grows with the value: 128 of one microsecond, then
    64 for every doubling, so that a bucket is never wider than 1/64 of its values::

        value        0 .. 127   128 .. 255   256 .. 511   ...   up to 2^36 us, 19 hours
        width               1            2            4
        first index         0          128          192

    Longer latencies count as the longest. The maximum is exact.
    """

    __slots__ = ("_buckets", "count", "max_us")

    def __init__(self) -> None:
        self._buckets = [0] * BUCKET_COUNT
        self.count = 0
        self.max_us = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count the latency of ``count`` messages; negative values count as 0."""
        value = min(max(0, int(seconds * 1e6)), VALUE_MAX)
        shift = max(0, value.bit_length() - _SUB_BITS - 1)
        self._buckets[(shift << _SUB_BITS) + (value >> shift)] += count
        self.count += count
        self.max_us = max(self.max_us, value)

    def percentile_ms(self, percent: float) -> float | None:
        """The latency that ``percent`` of the messages did not exceed; None without messages."""
        rank = self.count * percent / 100
        seen = 0
        for index, count in enumerate(self._buckets):
            seen += count
            if count and seen >= rank:
                return min(_upper_end(index), self.max_us) / 1000
        return None

    @property
    def max_ms(self) -> float | None:
        """The longest latency in milliseconds."""
        return self.max_us / 1000 if self.count else None


def _upper_end(index: int) -> int:
    """The largest value of a bucket."""
    shift = max(0, (index >> _SUB_BITS) - 1)
    return ((index - (shift << _SUB_BITS) + 1) << shift) - 1


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the result; latencies are of successful messages."""

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
    """Counts one kind of work between ``begin`` and ``finish``."""

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
        self._mark = (0.0, 0)  # time and message count of the last current rate
        self._rate: float | None = None

    def begin(self) -> None:
        """Start the time, unless it is already running."""
        if self._began is None:
            self._began = self._clock.monotonic()
            self._mark = (self._began, 0)

    def finish(self) -> None:
        """Stop the time."""
        self._ended = self._clock.monotonic()

    def done(self, count: int, size: int, latency_s: float) -> None:
        """Count ``count`` successful messages of ``size`` bytes in total."""
        self.messages += count
        self.bytes += size
        self.latencies.add(latency_s, count)

    def failed(self, count: int, error: Exception) -> None:
        """Count ``count`` failed messages."""
        self.errors += count
        self.first_error = self.first_error or error

    @property
    def seconds(self) -> float:
        """Elapsed time."""
        if self._began is None:
            return 0.0
        return (self._ended or self._clock.monotonic()) - self._began

    def rate_now(self) -> float | None:
        """The current messages per second, for the live table; None if it is too early."""
        at, messages = self._mark
        passed_s = self._clock.monotonic() - at
        enough_s = FIRST_INTERVAL_S if at == self._began else RATE_INTERVAL_S
        if self._began is not None and passed_s >= enough_s:
            self._rate = (self.messages - messages) / passed_s
            if passed_s >= RATE_INTERVAL_S:
                self._mark = (at + passed_s, self.messages)
        return self._rate

    def figures(self) -> Figures:
        """The figures of the whole run."""
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
