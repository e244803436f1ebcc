"""Listener that exports the lag and the work of streams, from Spark's progress reports.

::

    spark.streams.addListener(LagListener(registry))

For each query: whether it runs, how often it was started, and how often it failed; the number of
unread messages of each queue, their minimum, maximum and mean, and for how many seconds the stream
has been behind, which is 0 for a stream that has caught up; the rows, batches and the duration of
the last batch; and of pipelines the rows that violate ``expect``. Spark's own page cannot show
them: a Python source has no metrics there.

``skylark pipeline run --metrics-port`` serves them (:func:`process_listener`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from skylark.client.metrics import default_registry
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


#: The name of the metric with the violations of expectations.
EXPECT_METRIC: Final = "expect"


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
        self._running = registry.gauge(
            "skylark_spark_query_running", "1 while a stream runs, 0 after its end.", ("query",)
        )
        self._starts = registry.counter(
            "skylark_spark_query_starts_total",
            "Starts of a stream; each after the first is a restart.",
            ("query",),
        )
        self._failures = registry.counter(
            "skylark_spark_query_failures_total", "Ends of a stream by an error.", ("query",)
        )
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
        self._rows = registry.counter(
            "skylark_spark_rows_total", "Rows that a stream has read.", ("query",)
        )
        self._batches = registry.counter(
            "skylark_spark_batches_total", "Batches that a stream has completed.", ("query",)
        )
        self._duration = registry.gauge(
            "skylark_spark_batch_seconds", "How long the last batch of a stream took.", ("query",)
        )
        self._violations = registry.counter(
            "skylark_spark_expectation_violations_total",
            "Rows of a pipeline that violate an expectation.",
            ("query", "column"),
        )
        self._behind: dict[str, _Behind] = {}
        self._names: dict[str, str] = {}  # of running queries, by the id of the run

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        query = self._names[str(event.runId)] = event.name or str(event.id)
        self._running.labels(query).set(1)
        self._starts.labels(query).value += 1
        self._failures.labels(query)  # shown as 0

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query = progress.name or str(progress.id)
        now = datetime.fromisoformat(progress.timestamp).timestamp()
        for end, latest in progress_offsets(progress):
            self._export(query, now, end, latest)
        self._rows.labels(query).value += progress.numInputRows
        self._batches.labels(query).value += 1
        self._duration.labels(query).set(progress.batchDuration / 1000)
        for column, count in violations(progress).items():
            self._violations.labels(query, column).value += count

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The other gauges keep their last values."""
        query = self._names.pop(str(event.runId), str(event.id))
        self._running.labels(query).set(0)
        if event.exception is not None:
            self._failures.labels(query).value += 1

    def _export(self, query: str, now: float, end: StreamOffset, latest: StreamOffset) -> None:
        lags = queue_lags(end, latest)
        for queue, lag in lags.items():
            labels = (query, queue.topic, queue.broker_name, str(queue.queue_id))
            self._queues.labels(*labels).set(lag)
        for name, value in _statistics(lags).items():
            self._summary.labels(query, name).set(value)
        behind = self._behind.setdefault(query, _Behind())
        self._seconds.labels(query).set(behind.seconds(now, end, latest))


@cache
def process_listener() -> LagListener:
    """The listener that exports to the registry of this process."""
    return LagListener(default_registry())


def violations(progress: StreamingQueryProgress) -> dict[str, int]:
    """The rows of a batch that violate each expectation of its pipeline."""
    found = (progress.observedMetrics or {}).get(EXPECT_METRIC)
    return {} if found is None else {name: count or 0 for name, count in found.asDict().items()}


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
