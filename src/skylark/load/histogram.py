"""Latencies of any number of messages, in a fixed amount of memory.

Microseconds are counted in buckets whose width grows with the value: 128 of one microsecond, then
64 for every doubling, so that a bucket is never wider than 1/64 of its values::

    value        0 .. 127   128 .. 255   256 .. 511   ...   up to 2^36 us, 19 hours
    width               1            2            4
    first index         0          128          192

Longer ones count as the longest. The largest value is kept as it is.
"""

from __future__ import annotations

from typing import Final

_SUB_BITS: Final = 6
_HALF: Final = 1 << _SUB_BITS  # buckets for every doubling
_VALUE_BITS: Final = 36
VALUE_MAX: Final = (1 << _VALUE_BITS) - 1
BUCKET_COUNT: Final = (_VALUE_BITS - _SUB_BITS + 1) * _HALF


class LatencyHistogram:
    """See the module."""

    __slots__ = ("_buckets", "count", "max_us")

    def __init__(self) -> None:
        self._buckets = [0] * BUCKET_COUNT
        self.count = 0
        self.max_us = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a latency, of ``count`` messages; less than nothing is nothing."""
        value = min(max(0, int(seconds * 1e6)), VALUE_MAX)
        shift = max(0, value.bit_length() - _SUB_BITS - 1)
        self._buckets[(shift << _SUB_BITS) + (value >> shift)] += count
        self.count += count
        self.max_us = max(self.max_us, value)

    def percentile_ms(self, percent: float) -> float | None:
        """What so many percent did not exceed, in milliseconds; None if there is nothing."""
        rank = self.count * percent / 100
        seen = 0
        for index, count in enumerate(self._buckets):
            seen += count
            if count and seen >= rank:
                return min(_upper_end(index), self.max_us) / 1000
        return None

    @property
    def max_ms(self) -> float | None:
        """The longest of all, in milliseconds."""
        return self.max_us / 1000 if self.count else None


def _upper_end(index: int) -> int:
    """The largest value of a bucket."""
    shift = max(0, (index >> _SUB_BITS) - 1)
    return ((index - (shift << _SUB_BITS) + 1) << shift) - 1
