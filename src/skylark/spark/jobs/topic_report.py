"""Figures of a topic report: plain data, without Spark.

A report job computes them (:mod:`skylark.spark.jobs.report_job`); a terminal, a page and a picture
show them. Their size does not depend on that of the topic: at most :data:`BUCKETS_MAX` time spans,
one entry per queue, one per power of two of the sizes, and the hottest keys.

*Latency* is the time from birth (clock of the producer) to storing (clock of the broker); if the
clocks differ it may be negative. *Size* is that of the record in the commit log: body as stored,
properties, and about 100 bytes of fields. The numbers of keys are approximate.

*Unread* are the messages that a group has not consumed when the report is made, by their store
time: brokers do not know the lag of the past.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

#: Maximum number of time spans.
BUCKETS_MAX: Final = 180
_MINUTE_S: Final = 60
_WIDTHS_S: Final = (
    *(1, 5, 15, _MINUTE_S, 5 * _MINUTE_S, 15 * _MINUTE_S),
    *(3_600, 3 * 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400),
)
PERCENTS: Final = (50, 90, 95, 99)
SERIES_PERCENTS: Final = (50, 95, 99)


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of a figure."""

    least: int
    p50: int
    p90: int
    p95: int
    p99: int
    most: int


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Messages stored in one time span; all spans of a report have the same length."""

    start_ms: int
    rows: int = 0
    size: int = 0
    latency_p50_ms: int | None = None
    latency_p95_ms: int | None = None
    latency_p99_ms: int | None = None
    unread: int = 0


class SizeClass(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of sizes from ``least`` to below ``2 * least``."""

    least: int
    rows: int


class QueueShare(msgspec.Struct, frozen=True, kw_only=True):
    """One queue."""

    broker: str
    queue_id: int
    rows: int
    size: int
    first_offset: int
    last_offset: int
    lag: int | None = None  #: of the group, if one was named


class HotKey(msgspec.Struct, frozen=True, kw_only=True):
    """A frequent key."""

    key: str
    rows: int


class KeyShare(msgspec.Struct, frozen=True, kw_only=True):
    """Approximate distribution of keys over messages."""

    distinct: int = 0
    hottest: tuple[HotKey, ...] = ()


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """Lag of a consumer group."""

    group: str
    lag: int
    oldest_ms: int | None = None  #: store time of the oldest unread message


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a report."""

    topic: str
    made_ms: int
    rows: int = 0
    size: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    width_s: int = _MINUTE_S  #: length of one time span
    spans: tuple[Span, ...] = ()
    sizes: Percentiles | None = None
    latencies_ms: Percentiles | None = None
    size_classes: tuple[SizeClass, ...] = ()
    queues: tuple[QueueShare, ...] = ()
    keys: KeyShare = KeyShare()
    sharding_keys: KeyShare = KeyShare()
    group: GroupLag | None = None

    @property
    def rows_per_minute(self) -> float:
        """The mean rate over the whole time, which counts as a minute at least."""
        if self.first_ms is None or self.last_ms is None:
            return 0.0
        return self.rows * 60_000 / max(60_000, self.last_ms - self.first_ms)

    @property
    def peak_per_minute(self) -> float:
        """The messages of the busiest minute; of spans longer than that the highest mean rate."""
        rows = [span.rows for span in self.spans]
        count = max(1, _MINUTE_S // self.width_s)
        sums = (sum(rows[first : first + count]) for first in range(len(rows)))
        return max(sums, default=0) * min(1.0, _MINUTE_S / self.width_s)

    @property
    def queue_skew(self) -> float:
        """Messages of the fullest queue divided by the mean: 1 is even."""
        if not self.rows or not self.queues:
            return 1.0
        return max(queue.rows for queue in self.queues) * len(self.queues) / self.rows

    def per_minute(self, amount: float) -> float:
        """Convert an amount per span to one per minute."""
        return amount * _MINUTE_S / self.width_s


def span_width_s(first_ms: int, last_ms: int) -> int:
    """The shortest length with which there are at most BUCKETS_MAX spans."""
    for width_s in _WIDTHS_S:
        if last_ms // (width_s * 1_000) - first_ms // (width_s * 1_000) < BUCKETS_MAX:
            return width_s
    return -(-(last_ms - first_ms) // ((BUCKETS_MAX - 1) * 1_000))


def filled(spans: Sequence[Span], width_s: int) -> tuple[Span, ...]:
    """Sort the spans and insert empty ones where nothing was stored."""
    by_start = {span.start_ms: span for span in spans}
    if not by_start:
        return ()
    starts = range(min(by_start), max(by_start) + 1, width_s * 1_000)
    return tuple(by_start.get(start, Span(start_ms=start)) for start in starts)


def amount(size: float) -> str:
    """A number of bytes with its unit, such as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1_024:
            return (
                f"{size:.0f} {unit}" if unit == "B" or size == int(size) else f"{size:.1f} {unit}"
            )
        size /= 1_024
    return f"{size:.1f} TiB"


def duration(milliseconds: float) -> str:
    """A duration as text."""
    size = abs(milliseconds)
    if size < 1_000:
        return f"{milliseconds:.0f} ms"
    for unit, length_ms, end_ms in (("s", 1_000, 120_000), ("min", 60_000, 7_200_000)):
        if size < end_ms:
            return f"{milliseconds / length_ms:.1f} {unit}"
    if size < 172_800_000:
        return f"{milliseconds / 3_600_000:.1f} h"
    return f"{milliseconds / 86_400_000:.1f} d"
