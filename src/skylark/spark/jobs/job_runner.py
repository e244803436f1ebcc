"""What all data jobs share: following a query, telling how it goes, errors as one sentence.

A job is given a :class:`Report` to tell its progress to, and a ``threading.Event`` that asks it to
stop. :func:`drive` follows a streaming query until it ends by itself (``availableNow``) or is asked
to stop. Then the batch in hand is finished first; the checkpoint stays, and the next run goes on
behind it.

What goes wrong inside Spark comes out of it as pages of Java. :func:`explained` makes one of our
own errors of it: the one that was raised in a task or in the planner, by its kind and sentence, or
else the first line of what Spark says.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar
from uuid import uuid4

import msgspec
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from skylark.admin.errors import NoBrokerError, NotFoundError
from skylark.core.clock import SystemClock, TimeSource
from skylark.core.errors import (
    ClientError,
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    NoNameServerError,
    NoRouteError,
    RequestTimeoutError,
    SkylarkError,
    TopicNotExistError,
)
from skylark.core.names import (
    LOCAL_NAMESRV,
    NAMESRV_VARIABLES,
    IllegalNameError,
    resolve_namesrv,
)
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.errors import DataLossError
from skylark.spark.lag_listener import queue_lags
from skylark.spark.session import make_session
from skylark.spark.sink.row_properties import RESERVED_NAMES, RESERVED_PREFIXES
from skylark.spark.sink.sink_options import read_sink_options
from skylark.spark.source.offset_options import Named
from skylark.spark.source.queue_bounds import Surveyor, patiently
from skylark.spark.source.source_options import source_options
from skylark.spark.source.start_offsets import Resolver
from skylark.spark.source.stream_offset import StreamOffset, decode_offset
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.properties import PROPERTY_UNIQ_KEY

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from skylark.wire.bodies.route_body import TopicRouteData

T = TypeVar("T")

POLL_S: Final = 1


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is."""

    rows: int
    rows_per_second: float = 0.0
    lag: int | None = None  #: messages that are still to be read, if that is known
    batch: int | None = None  #: of a stream, the number of the last batch
    done: bool = False


class Report(Protocol):
    """Whoever wants to know how a job goes."""

    def progress(self, progress: JobProgress) -> None:
        """Called about once a second, and once at the end with ``done``."""


class NoReport:
    """For callers that do not want to know."""

    def progress(self, progress: JobProgress) -> None:
        """Nothing."""


class StreamTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What a streaming query has done in this run."""

    rows: int
    batches: int  #: that had rows
    seconds: float
    lag: int | None
    stopped: bool  #: ended because it was asked to


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job that was started from the command line is given."""

    spark: SparkSession
    report: Report
    stop: Event  #: set when the user asks it to end


@contextmanager
def session(
    master: str, *, app_name: str, conf: Mapping[str, str], quiet: bool = True
) -> Iterator[SparkSession]:
    """A session for one job; one that runs already is used and left running.

    With ``quiet``, what fails is told by the error alone, and not in the JVM's log as well.
    """
    if quiet:
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    if SparkSession.getActiveSession() is not None:
        yield make_session(master, conf=conf)
        return
    spark = make_session(master, app_name=app_name, conf=conf, quiet=quiet)
    try:
        yield spark
    finally:
        spark.stop()


def cluster_options(namesrv: str | None = None) -> dict[str, str]:
    """The options of source and sink that say which cluster is meant; raises ConfigError.

    Without an argument the environment is asked, then a name server on this machine is assumed.
    """
    found = resolve_namesrv(namesrv, os.environ, default=LOCAL_NAMESRV)
    sources = {"argument": namesrv, "default": LOCAL_NAMESRV}
    text = sources.get(found.source) or os.environ[found.source]
    assert text, f"one of {NAMESRV_VARIABLES} was blank"
    return {"nameServer": text}


def cores(spark: SparkSession) -> int:
    """How many tasks run at once."""
    if is_remote():
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return spark.sparkContext.defaultParallelism


def user_properties(properties: Column, keep: Collection[str] = ()) -> Column:
    """A map column without the properties that the system writes; ``keep`` are left in.

    The sink leaves them out by itself; jobs that look at them first, or must keep one, do it here.
    """
    reserved = sorted({*RESERVED_NAMES, PROPERTY_UNIQ_KEY} - set(keep))

    def is_users(name: Column, _: Column) -> Column:
        wanted = ~name.isin(reserved)
        for prefix in RESERVED_PREFIXES:
            wanted &= ~name.startswith(prefix)
        return wanted | name.isin(*keep) if keep else wanted

    return F.map_filter(properties, is_users)


# ---- queues --------------------------------------------------------------------------------------


class QueueSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a queue: the first offset, and the one behind the last."""

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    rows: int  #: in it, if no message is missing


def queue_spans(options: Mapping[str, str], start: StreamOffset | None = None) -> list[QueueSpan]:
    """What a read with these options of the source would read now, without Spark.

    ``start`` is where a checkpoint goes on; then it does not matter where the first run began.
    Raises what keeps it from being read: NotFoundError for a topic, NoNameServerError,
    TransportError for a broker.
    """
    given = source_options(options, streaming=False)
    cluster = shared_cluster(given.connection)

    async def look() -> list[QueueSpan]:
        survey = await Surveyor(cluster.session, given).first_survey()
        resolver = Resolver(cluster.session, given, survey)
        if start is None:
            starts = await resolver.start()
        else:  # queues that are new to a stream enter it by the default
            earliest = given.start_default is Named.EARLIEST
            starts = {
                queue: start.queues.get(queue, bounds.low if earliest else bounds.high)
                for queue, bounds in survey.bounds.items()
            }
        ends = await resolver.end(starts)
        return [_span(queue, starts[queue], ends[queue]) for queue in sorted(starts)]

    return cluster.run(patiently(cluster.session, given, look))


def require_topics(options: Mapping[str, str]) -> None:
    """Raise NotFoundError if a topic of these options of the source is not there.

    For streams: one that has a checkpoint can do without some brokers, and without its first start.
    """
    for topic in source_options(options, streaming=True).topics:
        topic_route(options, topic)


def topic_route(options: Mapping[str, str], topic: str) -> TopicRouteData:
    """Where a topic is in the cluster of these options; raises NotFoundError."""
    connection = read_sink_options({"nameServer": options["nameServer"]}).connection
    session = (cluster := shared_cluster(connection)).session
    return cluster.run(session.route(session.wrap(topic)))


def _span(queue: MessageQueue, start: int, end: int) -> QueueSpan:
    return QueueSpan(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        start=start,
        end=end,
        rows=end - start,
    )


# ---- errors --------------------------------------------------------------------------------------

_OURS: Final = re.compile(r"^(?:\w+: )?skylark(?:\.\w+)*\.(\w+Error): (.+)$", re.MULTILINE)
_STREAM: Final = re.compile(r"terminated with exception: (.+)")
_JAVA: Final = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z_0-9.]+)\] ")
_TAIL: Final = re.compile(r"\s*SQLSTATE: \w+.*$")
_KINDS: Final[dict[str, type[SkylarkError]]] = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        ConnectError,
        ConnectionClosedError,
        DataLossError,
        IllegalNameError,
        NoBrokerError,
        NoNameServerError,
        NoRouteError,
        NotFoundError,
        RequestTimeoutError,
        TopicNotExistError,
    )
}


def is_sparks(error: BaseException) -> bool:
    """Whether Spark raises it, or the bridge to the JVM where Spark has no error of its own."""
    return isinstance(error, PySparkException) or type(error).__module__ == "py4j.protocol"


@contextmanager
def explained() -> Iterator[None]:
    """Make errors of Spark errors of ours."""
    try:
        yield
    except Exception as error:
        if is_sparks(error):
            raise our_error(error) from error
        raise


def condition_of(error: BaseException) -> str:
    """Spark's name for what is wrong, empty if it has none."""
    found = error.getCondition() if isinstance(error, PySparkException) else None
    if found is None and (named := _CONDITION.search(str(error))):
        found = named[1]
    return found or ""


def our_error(error: BaseException) -> SkylarkError:
    """The error of ours that is in one of Spark's, or one that says what Spark says."""
    text = str(error)
    if found := _OURS.findall(text):
        kind, sentence = found[-1]
        return _KINDS.get(kind, ClientError)(sentence.strip())
    condition = condition_of(error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), condition)
    for inner in (_STREAM.search(line), _JAVA.search(text)):
        line = inner[1] if inner else line
    line = _TAIL.sub("", line)
    if condition == "PATH_NOT_FOUND":
        return NotFoundError(line.removeprefix(f"[{condition}] ").rstrip("."))
    if condition.startswith("DATA_SOURCE_NOT_FOUND"):
        return ConfigError(
            line.removeprefix(f"[{condition}] ").partition(". ")[0],
            hint="its jars are not part of Spark: name them, --conf spark.jars.packages=...",
        )
    if condition == "PACKAGE_NOT_INSTALLED":  # of Spark Connect
        return ConfigError(
            line.removeprefix(f"[{condition}] ").rstrip("."),
            hint="pip install 'skylark-mq[spark,connect]'",
        )
    if isinstance(error, AnalysisException):  # of what the user has written: columns, expressions
        return ConfigError(line)
    return ClientError(f"Spark failed: {line}", hint="--debug shows where")


# ---- batches -------------------------------------------------------------------------------------

Counted = Literal["inputRecords", "shuffleReadRecords"]


def follow(
    spark: SparkSession,
    work: Callable[[], T],
    report: Report,
    stop: Event | None = None,
    *,
    counted: Counted,
    total: int | None = None,
    before: int = 0,
) -> T:
    """Do ``work``, which is some batch of Spark, and tell how it goes.

    ``counted`` says which rows are its progress: those that it reads, or those that arrive behind
    shuffles, after the first ``before`` of them. When ``stop`` is set it is cancelled, and
    KeyboardInterrupt raised. Raises SkylarkError if it fails.
    """
    with explained():
        if is_remote():  # the figures of tasks are on the other side
            return work()
        context = spark.sparkContext
        watch = _BatchWatch(context, counted, total, before)
        ended = Event()

        def tell() -> None:
            while not ended.wait(POLL_S):
                report.progress(watch.look())
                if stop is not None and stop.is_set():
                    context.cancelJobGroup(watch.group)

        # The work stays in this thread, for Spark knows its session by the thread.
        teller = Thread(target=tell, name="job-progress", daemon=True)
        context.setJobGroup(watch.group, "skylark job", interruptOnCancel=True)
        teller.start()
        try:
            result = work()
        except Exception as error:
            if is_sparks(error) and stop is not None and stop.is_set():
                raise KeyboardInterrupt from None
            raise
        finally:
            ended.set()
            teller.join()
            context._jsc.sc().clearJobGroup()
        report.progress(watch.look(done=True))
        return result


class _BatchWatch:
    """Asks Spark how many rows the tasks of a job group have seen."""

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

    def look(self, *, done: bool = False) -> JobProgress:
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


def drive(
    query: StreamingQuery,
    report: Report,
    stop: Event | None = None,
    clock: TimeSource | None = None,
) -> StreamTotals:
    """Follow a query to its end, or until ``stop`` is set; raises SkylarkError if it fails.

    It is stopped between two batches where there is a pause between them, otherwise at the start of
    the next one, which then runs again as a whole.
    """
    stop = stop or Event()
    watch = _Watch(query, clock or SystemClock())
    batch_in_hand: _Key | None = None
    stopped = False
    with explained():
        while not query.awaitTermination(POLL_S):
            watch.look()
            report.progress(watch.progress())
            if not stop.is_set():
                continue
            batch_in_hand = batch_in_hand or watch.latest
            if watch.latest > batch_in_hand or not query.status["isTriggerActive"]:
                query.stop()
                stopped = True
                break
    watch.look()
    report.progress(watch.progress(done=True))
    return watch.totals(stopped=stopped)


_Key = tuple[int, str]  # batch and start of a trigger: one without rows does not use up its number


class _Watch:
    """Adds up the progress reports of a query, each once."""

    def __init__(self, query: StreamingQuery, clock: TimeSource) -> None:
        self._query = query
        self._clock = clock
        self._start = clock.monotonic()
        self.latest: _Key = (-1, "")
        self._rows = 0
        self._batches = 0
        self._rate = 0.0
        self._lag: int | None = None

    def look(self) -> None:
        """Take in what is new."""
        last = self._query.lastProgress
        if last is None or _key(last) <= self.latest:
            return
        news = [last]
        if last.batchId > self.latest[0] + 1:  # Spark keeps a hundred of them
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
    """How many messages the sources of ours had behind the end of this batch."""
    lags = []
    for source in progress.sources:
        end, latest = _offset(source.endOffset), _offset(source.latestOffset)
        if end is not None and latest is not None:
            lags.append(sum(queue_lags(end, latest).values()))
    return sum(lags) if lags else None


def _offset(text: str | None) -> StreamOffset | None:
    """An offset of ours; other sources have others."""
    try:
        return decode_offset(json.loads(text or "null"))
    except (ValueError, ConfigError):
        return None
