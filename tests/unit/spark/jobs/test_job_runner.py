"""The runner of jobs without Spark: progress of a query, stop requests, cluster options."""

from __future__ import annotations

import json
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from skylark.core.errors import (
    ConfigError,
    SkylarkError,
)
from skylark.spark.errors import WorkerStartError
from skylark.spark.jobs.job_runner import (
    JobProgress,
    cluster_options,
    follow_query,
    run_query,
    stream_lag,
)
from skylark.testing.virtual_clock import VirtualClock


def offset(high: int) -> str:
    return json.dumps({"v": 1, "q": {"T": {"broker-a": {"0": high, "1": 5}}}})


def progress(batch: int, rows: int, end: int = 0, latest: int = 0, second: int = 0) -> Any:
    return SimpleNamespace(
        batchId=batch,
        timestamp=f"2026-11-15T12:00:{second or batch:02}.000Z",
        numInputRows=rows,
        processedRowsPerSecond=float(rows),
        sources=[SimpleNamespace(endOffset=offset(end), latestOffset=offset(latest))],
    )


class ScriptedQuery:
    """A query that has made some progress whenever it is waited for."""

    def __init__(self, *steps: list[Any], active: bool = True) -> None:
        self._steps = list(steps)
        self._active = active
        self.recentProgress: list[Any] = []
        self.waits = 0
        self.stopped = False
        self.failure: Exception | None = None

    @property
    def lastProgress(self) -> Any:
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self._active}

    def awaitTermination(self, timeout: int) -> bool:
        self.waits += 1
        if not self._steps:
            if self.failure is not None:
                raise self.failure
            return True
        self.recentProgress += self._steps.pop(0)
        return False

    def stop(self) -> None:
        self.stopped = True


def follow(query: ScriptedQuery, stop: Event | None = None) -> tuple[Any, list[JobProgress]]:
    heard: list[JobProgress] = []
    totals = follow_query(cast("StreamingQuery", query), heard.append, stop, VirtualClock())
    return totals, heard


def test_every_batch_counts_once() -> None:
    query = ScriptedQuery(
        [],
        [progress(0, 10, 10, 60)],
        [],  # the same again
        [progress(1, 20, 30, 60), progress(2, 20, 50, 60)],  # two between two looks
        [progress(3, 0, 50, 60, second=30)],  # idle: the number is used again
        [progress(3, 10, 60, 60, second=40)],
    )
    totals, heard = follow(query)
    assert (totals.rows, totals.batches, totals.lag, totals.stopped) == (60, 4, 0, False)
    assert [each.rows for each in heard] == [0, 10, 10, 50, 50, 60, 60]
    assert [each.lag for each in heard] == [None, 50, 50, 10, 10, 0, 0]
    assert [each.batch for each in heard] == [None, 0, 0, 2, 3, 3, 3]
    assert [each.done for each in heard] == [False] * 6 + [True]


def test_a_query_is_stopped_after_its_batch() -> None:
    stop = Event()
    stop.set()
    query = ScriptedQuery([progress(0, 10)], [], [progress(1, 10)], [progress(2, 10)])
    totals, _ = follow(query, stop)
    assert (query.waits, query.stopped) == (3, True)  # batch 1 was in hand
    assert (totals.rows, totals.stopped) == (20, True)


def test_an_idle_query_is_stopped_at_once() -> None:
    stop = Event()
    stop.set()
    query = ScriptedQuery([progress(0, 10)], [progress(1, 10)], active=False)
    totals, _ = follow(query, stop)
    assert (query.waits, query.stopped, totals.rows) == (1, True, 10)


def test_the_end_may_come_before_the_stop() -> None:
    stop = Event()
    stop.set()
    query = ScriptedQuery([progress(0, 10)])
    totals, _ = follow(query, stop)
    assert (query.stopped, totals.stopped, totals.rows) == (False, False, 10)


def test_a_failed_query_raises_one_error_of_ours() -> None:
    query = ScriptedQuery([])
    query.failure = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted. SQLSTATE: XXKST\n"
        "skylark.spark.errors.DataLossError: 5 messages are gone: raise fileReservedTime\n"
        "\tat org.apache.spark.Whatever(Whatever.scala:1)"
    )
    with pytest.raises(SkylarkError) as caught:
        follow(query)
    assert str(caught.value) == "5 messages are gone: raise fileReservedTime"
    assert type(caught.value).__name__ == "DataLossError"


def test_other_sources_have_no_lag() -> None:
    foreign = progress(0, 1)
    foreign.sources = [SimpleNamespace(endOffset='{"p": 3}', latestOffset=None)]
    assert stream_lag(foreign) is None
    foreign.sources = []
    assert stream_lag(foreign) is None
    assert stream_lag(progress(0, 1, 3, 10)) == 7


def test_the_cluster_comes_from_the_argument_the_environment_or_is_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SKYLARK_NAMESRV", "NAMESRV_ADDR", "ROCKETMQ_NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert cluster_options() == {"nameServer": "127.0.0.1:9876"}
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert cluster_options() == {"nameServer": "a:1;b:2"}
    url = "rocketmq://ak:sk@c:3"
    assert cluster_options(url) == {"nameServer": url}
    with pytest.raises(ConfigError, match="name server from argument"):
        cluster_options("c:port")


def test_a_query_whose_python_worker_is_late_is_started_again() -> None:
    late = PySparkException("Python worker failed to connect back.")
    started: list[int] = []

    class Late:
        lastProgress = None

        def __init__(self, is_late: bool) -> None:
            self._is_late = is_late

        def awaitTermination(self, timeout: float) -> bool:
            if self._is_late:
                raise late
            return True

    def start(late_count: int) -> StreamingQuery:
        started.append(1)
        return cast("StreamingQuery", Late(len(started) <= late_count))

    assert run_query(lambda: start(4), lambda _: None).rows == 0
    assert len(started) == 5
    started.clear()
    with pytest.raises(WorkerStartError, match=r"did not start in time: the machine is busy"):
        run_query(lambda: start(5), lambda _: None)
