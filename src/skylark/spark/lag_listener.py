"""Listener that exports the lag of streams as gauges, from Spark's progress reports.

::

    spark.streams.addListener(LagListener(registry))

For each query: the number of unread messages of each queue, their minimum, maximum and mean, and
for how many seconds the stream has been behind, which is 0 for a stream that has caught up.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from skylark.core.errors import ConfigError
from skylark.core.metrics import Registry
from skylark.spark.source.stream_offset import StreamOffset, decode_offset
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


def queue_lags(end: StreamOffset, latest: StreamOffset) -> dict[MessageQueue, int]:
    """The number of unread messages of each queue."""
    return {
        queue: max(0, high - end.queues.get(queue, high)) for queue, high in latest.queues.items()
    }


class _Behind:
    """Measures for how long a stream has been short of the end of its queues."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=10_000)

    def seconds(self, now: float, end: StreamOffset, latest: StreamOffset) -> float:
        position = sum(end.queues.values())
        self._ends.append((now, sum(latest.queues.values())))
        while self._ends and self._ends[0][1] <= position:
            self._ends.popleft()
        return now - self._ends[0][0] if self._ends else 0.0


class LagListener(StreamingQueryListener):
    """Exports the lag of all queries of a session that read from RocketMQ."""

    def __init__(self, registry: Registry) -> None:
        self._queues = registry.gauge(
            "skylark_spark_queue_lag",
            "Messages of a queue that a stream has not read yet.",
            ("query", "topic", "broker", "queue"),
        )
        self._summary = registry.gauge(
            "skylark_spark_offsets_behind_latest",
            "Messages not read yet, over the queues of a stream.",
            ("query", "statistic"),
        )
        self._seconds = registry.gauge(
            "skylark_spark_seconds_behind_latest",
            "For how long a stream has been behind.",
            ("query",),
        )
        self._behind: dict[str, _Behind] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """No figures yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query = progress.name or str(progress.id)
        now = datetime.fromisoformat(progress.timestamp).timestamp()
        for end, latest in progress_offsets(progress):
            self._export(query, now, end, latest)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The gauges keep their last values."""

    def _export(self, query: str, now: float, end: StreamOffset, latest: StreamOffset) -> None:
        lags = queue_lags(end, latest)
        for queue, lag in lags.items():
            labels = (query, queue.topic, queue.broker_name, str(queue.queue_id))
            self._queues.labels(*labels).set(lag)
        for name, value in _statistics(lags).items():
            self._summary.labels(query, name).set(value)
        behind = self._behind.setdefault(query, _Behind())
        self._seconds.labels(query).set(behind.seconds(now, end, latest))


def _statistics(lags: Mapping[MessageQueue, int]) -> dict[str, float]:
    values = list(lags.values()) or [0]
    return {"min": min(values), "max": max(values), "avg": sum(values) / len(values)}


def progress_offsets(
    progress: StreamingQueryProgress,
) -> Iterator[tuple[StreamOffset, StreamOffset]]:
    """End and latest offset of each source of ours in a progress report."""
    for source in progress.sources:
        end, latest = progress_offset(source.endOffset), progress_offset(source.latestOffset)
        if end is not None and latest is not None:
            yield end, latest


def progress_offset(text: Any) -> StreamOffset | None:
    """An offset in a progress report of Spark; None if it is not one of this source."""
    try:
        return decode_offset(json.loads(text))
    except (TypeError, ValueError, ConfigError):
        return None
