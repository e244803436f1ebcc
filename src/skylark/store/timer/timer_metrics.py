"""How many timed messages of each topic wait: ``config/timermetrics``.

A message counts from when it is placed until it is delivered or recalled. The file is written with
each checkpoint, just before it, so that after a crash the counts belong to what is placed again.

Answers to Java's ``TimerMetrics``.
"""

from __future__ import annotations

from skylark.store.config_tables import TimerMetricsTable
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerMetric


class TimerCounts:
    """Counts of one broker; as many as it has topics with timed messages."""

    def __init__(self) -> None:
        self._counts: dict[str, TimerMetric] = {}
        self.version = DataVersion()

    def load(self, table: TimerMetricsTable) -> None:
        """Go on from what a file says."""
        self._counts = {
            topic: TimerMetric(count=metric.count, time_stamp=metric.time_stamp)
            for topic, metric in table.timing_count.items()
        }
        self.version = table.data_version

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Note that so many messages of a topic were placed, or (less than 0) left."""
        metric = self._counts.get(topic)
        if metric is None:
            metric = self._counts[topic] = TimerMetric()
        metric.count += change
        metric.time_stamp = now_ms
        self.version = self.version.next(now_ms)

    def count(self, topic: str) -> int:
        """Messages of a topic that wait."""
        metric = self._counts.get(topic)
        return 0 if metric is None else metric.count

    def by_topic(self) -> dict[str, int]:
        """Messages that wait, by topic."""
        return {topic: metric.count for topic, metric in self._counts.items()}

    def remove(self, topic: str, now_ms: int) -> None:
        """Forget a topic that was deleted."""
        if self._counts.pop(topic, None) is not None:
            self.version = self.version.next(now_ms)

    def table(self) -> TimerMetricsTable:
        """The content of the file; later changes do not touch it."""
        return TimerMetricsTable(
            timing_count={
                topic: TimerMetric(count=metric.count, time_stamp=metric.time_stamp)
                for topic, metric in self._counts.items()
            },
            data_version=self.version,
        )
