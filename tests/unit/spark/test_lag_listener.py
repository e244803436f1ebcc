"""The lag of streams."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.sql import Row

from skylark.core.metrics import Registry
from skylark.spark.lag_listener import LagListener, progress_offset, queue_lags
from skylark.spark.source.stream_offset import StreamOffset
from skylark.wire.bodies.common_body import MessageQueue


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def test_lag_of_queues() -> None:
    end = StreamOffset({queue(0): 5, queue(1): 9})
    latest = StreamOffset({queue(0): 8, queue(1): 7, queue(2): 3})
    assert queue_lags(end, latest) == {queue(0): 3, queue(1): 0, queue(2): 0}


def test_offsets_of_other_sources_are_passed_over() -> None:
    assert progress_offset('{"v": 1, "q": {"T": {"broker-a": {"0": 5}}}}') == StreamOffset(
        {queue(0): 5}
    )
    for text in ('{"orders": {"0": 5}}', "no JSON", None):
        assert progress_offset(text) is None


def test_the_work_of_a_stream_is_counted() -> None:
    registry = Registry()
    listener = LagListener(registry)
    offset = '{"v": 1, "q": {"T": {"broker-a": {"0": 5}}}}'
    source = SimpleNamespace(endOffset=offset, latestOffset=offset.replace("5", "8"))
    progress = SimpleNamespace(
        name="alerts", id="x", timestamp="2026-11-18T12:00:00.000Z", sources=[source],
        numInputRows=40, batchDuration=250, observedMetrics={"expect": Row(amount=3, uid=None)},
    )  # fmt: skip
    event: Any = SimpleNamespace(progress=progress)
    listener.onQueryProgress(event)
    progress.observedMetrics = {}
    listener.onQueryProgress(event)
    text = registry.render()
    for line in (
        'skylark_spark_rows_total{query="alerts"} 80',
        'skylark_spark_batches_total{query="alerts"} 2',
        'skylark_spark_batch_seconds{query="alerts"} 0.25',
        'skylark_spark_expectation_violations_total{query="alerts",column="amount"} 3',
        'skylark_spark_expectation_violations_total{query="alerts",column="uid"} 0',
    ):
        assert line in str(text)


def test_starts_and_ends_of_a_stream() -> None:
    registry = Registry()
    listener = LagListener(registry)

    def shown(name: str) -> float:
        (line,) = [x for x in registry.render().splitlines() if x.startswith(f"{name}{{")]
        assert 'query="alerts"' in line
        return float(line.rpartition(" ")[2])

    for run, problem in enumerate(("a worker died", None), 1):
        started: Any = SimpleNamespace(id="x", runId=run, name="alerts")
        listener.onQueryStarted(started)
        assert shown("skylark_spark_query_running") == 1
        ended: Any = SimpleNamespace(id="x", runId=run, exception=problem)
        listener.onQueryTerminated(ended)
        assert shown("skylark_spark_query_running") == 0
    assert shown("skylark_spark_query_starts_total") == 2
    assert shown("skylark_spark_query_failures_total") == 1
