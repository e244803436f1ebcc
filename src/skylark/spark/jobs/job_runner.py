"""Runner of Spark work for data jobs: follows a query or a batch, reports progress, stops it.

A job gets a :data:`Report` that it calls with its progress, and a ``threading.Event`` that asks it
to stop. :func:`follow_query` follows a streaming query until it ends by itself (``availableNow``)
or is asked to stop: then the current batch is finished first, and the next run continues from the
checkpoint. :func:`follow_batch` does the same for a batch, which it cancels when asked to stop.

:func:`checkpoint_state` reads the progress of a streaming job from its checkpoint, on any file
system that Spark knows. Spark keeps a file per batch in ``offsets`` (written before the batch) and
one in ``commits`` (written when it is done). The next batch starts at the end of the last batch
that is done.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from uuid import uuid4

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from skylark.core.clock import SystemClock, TimeSource
from skylark.core.names import LOCAL_NAMESRV, NAMESRV_VARIABLES, resolve_namesrv
from skylark.spark.error_translation import is_spark_error, translate_errors
from skylark.spark.errors import WorkerStartError
from skylark.spark.lag_listener import progress_offsets, queue_lags
from skylark.spark.sink.row_properties import RESERVED_NAMES, RESERVED_PREFIXES
from skylark.spark.source.stream_offset import StreamOffset, decode_offset
from skylark.wire.properties import PROPERTY_UNIQ_KEY

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

T = TypeVar("T")

POLL_S: Final = 1
#: How often a query is started whose Python worker does not start in time.
WORKER_STARTS: Final = 5

logger = logging.getLogger(__name__)


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a job."""

    rows: int
    rows_per_second: float = 0.0
    lag: int | None = None  #: messages that are not read yet, if known
    batch: int | None = None  #: of a stream, the number of the last batch
    done: bool = False


#: Receiver of progress: called about once a second, and once at the end with ``done``.
Report: TypeAlias = Callable[[JobProgress], object]


class StreamTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a streaming query did: rows, batches, seconds, last lag, how it ended."""

    rows: int
    batches: int  #: that had rows
    seconds: float
    lag: int | None
    stopped: bool  #: ended because ``stop`` was set

    @property
    def figures(self) -> dict[str, Any]:
        """The fields that the summaries of all streaming jobs have, and the mean rate."""
        figures = msgspec.structs.asdict(self)
        rows = figures.pop("rows")
        return {**figures, "rows_per_second": round(rows / max(self.seconds, 0.001))}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the command line passes to a job."""

    spark: SparkSession
    report: Report
    stop: Event  #: set when the user asks the job to stop


def cluster_options(namesrv: str | None = None) -> dict[str, str]:
    """The options of source and sink for a cluster; raises ConfigError.

    Without an argument it is the name server in the environment, or else one on this machine.
    """
    found = resolve_namesrv(namesrv, os.environ, default=LOCAL_NAMESRV)
    sources = {"argument": namesrv, "default": LOCAL_NAMESRV}
    text = sources.get(found.source) or os.environ[found.source]
    assert text, f"one of {NAMESRV_VARIABLES} was blank"
    return {"nameServer": text}


class StreamJobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that all streaming jobs have."""

    namesrv: str | None = None
    interval_ms: int | None = None  #: run on, with a batch this often; None: end when all is read
    start: str = "earliest"  #: ``startingOffsets`` of the first run
    tags: str | None = None
    group: str | None = None  #: the consumer group that gets the progress

    def stream_source(self, rows_per_batch: int, **given: str) -> dict[str, str]:
        """The options of the source: these, and the ``given`` ones."""
        optional = {"tags": self.tags, "group": self.group}
        return {
            **cluster_options(self.namesrv),
            "startingOffsets": self.start,
            "maxOffsetsPerTrigger": str(rows_per_batch),
            **given,
            **{name: value for name, value in optional.items() if value is not None},
        }


def cores(spark: SparkSession) -> int:
    """The number of tasks that run at once."""
    if is_remote():
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return spark.sparkContext.defaultParallelism


def user_properties(properties: Column, keep: Collection[str] = ()) -> Column:
    """A map column without the properties that clients and brokers write; ``keep`` are kept.

    The sink drops them by itself; this is for jobs that read them first, or must keep one.
    """
    reserved = sorted({*RESERVED_NAMES, PROPERTY_UNIQ_KEY} - set(keep))

    def is_users(name: Column, _: Column) -> Column:
        wanted = ~name.isin(reserved)
        for prefix in RESERVED_PREFIXES:
            wanted &= ~name.startswith(prefix)
        return wanted | name.isin(*keep) if keep else wanted

    return F.map_filter(properties, is_users)


# ---- batches -------------------------------------------------------------------------------------

Counted = Literal["inputRecords", "shuffleReadRecords"]


def follow_batch(
    spark: SparkSession,
    work: Callable[[], T],
    report: Report,
    stop: Event | None = None,
    *,
    counted: Counted,
    total: int | None = None,
    before: int = 0,
) -> T:
    """Run ``work``, a batch of Spark, and report its progress.

    ``counted`` selects the rows that are counted: those that it reads, or those that arrive after
    shuffles, without the first ``before`` ones. When ``stop`` is set, the batch is cancelled and
    KeyboardInterrupt raised. Raises SkylarkError if it fails.
    """
    with translate_errors():
        if is_remote():  # the figures of tasks are in the server
            return work()
        context = spark.sparkContext
        counter = _BatchProgress(context, counted, total, before)
        ended = Event()

        def report_progress() -> None:
            while not ended.wait(POLL_S):
                report(counter.update())
                if stop is not None and stop.is_set():
                    context.cancelJobGroup(counter.group)

        # The work stays in this thread: Spark finds its session by the thread.
        reporter = Thread(target=report_progress, name="job-progress", daemon=True)
        context.setJobGroup(counter.group, "skylark job", interruptOnCancel=True)
        reporter.start()
        try:
            result = work()
        except Exception as error:
            if is_spark_error(error) and stop is not None and stop.is_set():
                raise KeyboardInterrupt from None
            raise
        finally:
            ended.set()
            reporter.join()
            context._jsc.sc().clearJobGroup()
        report(counter.update(done=True))
        return result


class _BatchProgress:
    """Counts the rows that the tasks of a Spark job group have processed."""

    def __init__(
        self, context: SparkContext, counted: Counted, total: int | None, before: int
    ) -> None:
        self.group = f"skylark-{uuid4()}"
        self._context = context
        self._counted = counted
        self._total = total
        self._before = before
        self._clock = SystemClock()
        self._start = self._clock.monotonic()

    def update(self, *, done: bool = False) -> JobProgress:
        rows = max(0, self._rows() - self._before)
        if self._total is not None:
            rows = min(rows, self._total)
        seconds = self._clock.monotonic() - self._start
        lag = None if self._total is None else self._total - rows
        return JobProgress(rows=rows, rows_per_second=rows / seconds, lag=lag, done=done)

    def _rows(self) -> int:
        tracker = self._context.statusTracker()
        store = self._context._jsc.sc().statusStore()
        rows = 0
        for job_id in tracker.getJobIdsForGroup(self.group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                if tracker.getStageInfo(stage_id) is not None:
                    rows += getattr(store.lastStageAttempt(stage_id), self._counted)()
        return rows


# ---- streams -------------------------------------------------------------------------------------


def with_trigger(writer: DataStreamWriter, interval_ms: int | None) -> DataStreamWriter:
    """Have a query run a batch this often; None: end when all that is stored now is read."""
    if interval_ms is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{interval_ms} milliseconds")


def run_query(
    start: Callable[[], StreamingQuery], report: Report, stop: Event | None = None
) -> StreamTotals:
    """Start a query and follow it to its end; see :func:`follow_query`.

    A query whose Python worker has not started in time is started again: it has done nothing yet.
    """
    for _ in range(WORKER_STARTS - 1):
        try:
            return follow_query(start(), report, stop)
        except WorkerStartError as error:
            logger.warning("starting the query again: %s", error)
    return follow_query(start(), report, stop)


def follow_query(
    query: StreamingQuery,
    report: Report,
    stop: Event | None = None,
    clock: TimeSource | None = None,
) -> StreamTotals:
    """Follow a query to its end, or until ``stop`` is set; raises SkylarkError if it fails.

    It is stopped in the pause between two batches, or without a pause at the start of the next
    batch, which then runs again as a whole.
    """
    stop = stop or Event()
    counter = _QueryProgress(query, clock or SystemClock())
    current_batch: _Key | None = None
    stopped = False
    with translate_errors():
        while not query.awaitTermination(POLL_S):
            counter.update()
            report(counter.progress())
            if not stop.is_set():
                continue
            current_batch = current_batch or counter.latest
            if counter.latest > current_batch or not query.status["isTriggerActive"]:
                query.stop()
                stopped = True
                break
    counter.update()
    report(counter.progress(done=True))
    return counter.totals(stopped=stopped)


_Key = tuple[int, str]  # batch and start of a trigger: a batch without rows does not use its number


class _QueryProgress:
    """Sums up the progress reports of a query, each once."""

    def __init__(self, query: StreamingQuery, clock: TimeSource) -> None:
        self._query = query
        self._clock = clock
        self._start = clock.monotonic()
        self.latest: _Key = (-1, "")
        self._rows = 0
        self._batches = 0
        self._rate = 0.0
        self._lag: int | None = None

    def update(self) -> None:
        """Add the reports since the last call."""
        last = self._query.lastProgress
        if last is None or _key(last) <= self.latest:
            return
        news = [last]
        if last.batchId > self.latest[0] + 1:  # Spark keeps the last hundred
            news = [each for each in self._query.recentProgress if _key(each) > self.latest]
        for progress in news:
            self.latest = _key(progress)
            self._rows += progress.numInputRows
            self._batches += progress.numInputRows > 0
            self._rate = progress.processedRowsPerSecond
            self._lag = stream_lag(progress)

    def progress(self, *, done: bool = False) -> JobProgress:
        batch = self.latest[0] if self.latest[0] >= 0 else None
        return JobProgress(
            rows=self._rows, rows_per_second=self._rate, lag=self._lag, batch=batch, done=done
        )

    def totals(self, *, stopped: bool) -> StreamTotals:
        return StreamTotals(
            rows=self._rows,
            batches=self._batches,
            seconds=round(self._clock.monotonic() - self._start, 3),
            lag=self._lag,
            stopped=stopped,
        )


def _key(progress: StreamingQueryProgress) -> _Key:
    return progress.batchId, progress.timestamp


def stream_lag(progress: StreamingQueryProgress) -> int | None:
    """The number of messages after the end of this batch, over all sources of ours."""
    lags = [queue_lags(end, latest) for end, latest in progress_offsets(progress)]
    return sum(sum(lag.values()) for lag in lags) if lags else None


# ---- checkpoints --------------------------------------------------------------------------------


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the query of a checkpoint."""

    planned: int | None = None  #: the last batch that was planned
    done: int | None = None  #: the last batch that is done
    planned_offset: StreamOffset | None = None  #: the end of the last planned batch
    offset: StreamOffset | None = None  #: the end of the last done batch, where the next one starts


def checkpoint_state(spark: SparkSession, checkpoint: str) -> CheckpointState:
    """Read a checkpoint; raises ConfigError if it is one of another source."""
    done = _files(spark, f"{checkpoint.rstrip('/')}/commits")
    planned = _files(spark, f"{checkpoint.rstrip('/')}/offsets")
    last_planned = max(planned, default=None)
    last_done = max(done.keys() & planned.keys(), default=None)
    return CheckpointState(
        planned=last_planned,
        done=max(done, default=None),
        planned_offset=None if last_planned is None else _source_offset(planned[last_planned]),
        offset=None if last_done is None else _source_offset(planned[last_done]),
    )


def checkpoint_offset(spark: SparkSession, checkpoint: str) -> StreamOffset | None:
    """The end of the last batch that is done; None if there is none.

    Raises ConfigError if the checkpoint is one of another source.
    """
    return checkpoint_state(spark, checkpoint).offset


def query_of(spark: SparkSession, checkpoint: str) -> str | None:
    """The id of the query of a checkpoint, which all its runs have; None if there is none yet."""
    file = f"{checkpoint.rstrip('/')}/metadata"
    try:
        row = spark.read.text(file, wholetext=True).first()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return None if row is None else str(msgspec.json.decode(row.value)["id"])


def running_query(batch: DataFrame) -> str:
    """The id of the query that a micro-batch is of."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query is not None, "Spark sets it for every batch"
    return query


def _source_offset(file: str) -> StreamOffset:
    """The offset in a checkpoint file, whose lines are: version, settings, one per source."""
    line = file.splitlines()[-1]
    try:
        return decode_offset(msgspec.json.decode(line))
    except msgspec.DecodeError:
        return decode_offset(line)  # raises the error for an offset of another source


def _files(spark: SparkSession, folder: str) -> dict[int, str]:
    """The files of a folder whose names are numbers; Spark keeps the last hundred."""
    try:
        files = spark.read.text(folder, wholetext=True).select("_metadata.file_name", "value")
        return {int(row[0]): row[1] for row in files.collect() if row[0].isdecimal()}
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
