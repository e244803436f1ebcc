"""Transform job: reads a topic, runs SQL on it, and writes the result to another topic.

The messages are the view ``input``, with the columns of the source; the statement selects the
columns of the sink, of which ``body`` is required::

    SELECT to_json(struct(o.id, o.total)) AS body, o.id AS keys, 'PAID' AS tags
    FROM (SELECT from_json(cast(body AS string), 'id STRING, total DOUBLE') AS o FROM input)
    WHERE o.total > 100

The checkpoint has the progress of the job, so it is required. A crash between sending a batch and
committing its progress repeats the rows of that batch, unless ``delivery`` is ``exactly-once``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from skylark.admin.admin_session import masters_of
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.errors import ConfigError
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.job_runner import (
    Report,
    StreamJobOptions,
    checkpoint_offset,
    cluster_options,
    run_query,
    with_trigger,
)
from skylark.spark.jobs.queue_spans import QueueSpan, queue_spans, topic_route
from skylark.spark.session import ERROR_LOGGERS
from skylark.spark.sink.row_encoder import SINK_TYPES, plan_rows
from skylark.spark.sink.sink_client import sink_client
from skylark.spark.sink.sink_options import read_sink_options
from skylark.spark.source.source_options import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

VIEW: Final = "input"
Delivery = Literal["at-least-once", "exactly-once"]
#: Rows of an exactly-once batch: half messages should not wait long for their decision.
_ROWS_PER_BATCH: Final[dict[Delivery, int]] = {"at-least-once": 200_000, "exactly-once": 20_000}


class TransformOptions(StreamJobOptions, frozen=True, kw_only=True):
    """Options of a transform job; raises ConfigError."""

    topic: str
    to_topic: str
    sql: str
    checkpoint: str
    to_namesrv: str | None = None  #: default: the cluster of the source
    delivery: Delivery = "at-least-once"
    rows_per_batch: int | None = None

    def __post_init__(self) -> None:
        if not self.sql.strip():
            raise ConfigError("no SQL is given", hint="for example SELECT body FROM input")
        if not self.checkpoint:
            raise ConfigError("a transformation needs a checkpoint")
        if self.topic == self.to_topic and self.to_namesrv in (None, self.namesrv):
            raise _feeds_itself(self.topic)
        source_options(self.source, streaming=True)
        read_sink_options(self.sink)

    @property
    def source(self) -> dict[str, str]:
        """The options of the source."""
        rows_per_batch = self.rows_per_batch or _ROWS_PER_BATCH[self.delivery]
        return self.stream_source(rows_per_batch, topic=self.topic)

    @property
    def sink(self) -> dict[str, str]:
        """The options of the sink."""
        return {
            **cluster_options(self.to_namesrv or self.namesrv),
            "topic": self.to_topic,
            "delivery": self.delivery,
        }


def _feeds_itself(topic: str) -> ConfigError:
    return ConfigError(
        f"the job would read its own output: {topic} is source and target",
        hint="send to another topic",
    )


class TransformSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run."""

    topic: str
    to_topic: str
    delivery: Delivery
    checkpoint: str
    rows_read: int
    batches: int
    seconds: float
    rows_per_second: int
    lag: int | None
    stopped: bool


class OutputColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column that the SQL selects."""

    column: str
    type: str
    used: bool  #: whether the sink uses it


class TransformPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a run."""

    columns: tuple[OutputColumn, ...]
    queues: tuple[QueueSpan, ...]


def run(
    spark: SparkSession, options: TransformOptions, report: Report, stop: Event | None = None
) -> TransformSummary:
    """Transform all messages, or run on until ``stop`` is set; raises SkylarkError."""
    with translate_errors(), _transformed(spark, options) as frame:
        _check(frame, options)
        writer = (
            frame.writeStream.format("rocketmq")
            .options(**options.sink)
            .option("checkpointLocation", options.checkpoint)
            .queryName(f"transform {options.topic} to {options.to_topic}")
        )
        writer = with_trigger(writer, options.interval_ms)

        def start() -> StreamingQuery:
            with _sql_errors():
                return writer.start()

        totals = run_query(start, report, stop)
    return TransformSummary(
        topic=options.topic,
        to_topic=options.to_topic,
        delivery=options.delivery,
        checkpoint=options.checkpoint,
        rows_read=totals.rows,
        **totals.figures,
    )


def plan(spark: SparkSession, options: TransformOptions) -> TransformPlan:
    """What a run would do now; raises SkylarkError."""
    with translate_errors(), _transformed(spark, options) as frame:
        _check(frame, options)
        spans = queue_spans(options.source, checkpoint_offset(spark, options.checkpoint))
        columns = tuple(
            OutputColumn(
                column=field.name,
                type=field.dataType.simpleString(),
                used=field.name in SINK_TYPES and field.name not in _UNUSED,
            )
            for field in frame.schema
        )
        return TransformPlan(columns=columns, queues=tuple(spans))


def check_topics(options: TransformOptions) -> None:
    """Raise NotFoundError if the topic is missing, ConfigError if the job would read its output.

    Two clusters are the same if they share a master, even if their name servers differ.
    """
    source = topic_route(options.source, options.topic)
    if options.topic != options.to_topic:
        return
    target = topic_route(options.sink, options.to_topic)
    if {*masters_of(source).values()} & {*masters_of(target).values()}:
        raise _feeds_itself(options.topic)


#: Columns of the sink that need options which this job does not set.
_UNUSED: Final = frozenset({"topic", "brokerName", "queueId", "msgId"})


@contextmanager
def _transformed(spark: SparkSession, options: TransformOptions) -> Iterator[DataFrame]:
    """The result of the SQL as a streaming frame; raises ConfigError."""
    source = spark.readStream.format("rocketmq").options(**options.source).load()
    source.createOrReplaceTempView(VIEW)
    try:
        with _sql_errors():
            frame = spark.sql(options.sql)
        if not frame.isStreaming:
            raise ConfigError(
                f"the SQL does not read the messages, which are the view {VIEW}",
                hint="SELECT ... FROM input",
            )
        yield frame
    finally:
        spark.catalog.dropTempView(VIEW)


@contextmanager
def _sql_errors() -> Iterator[None]:
    """Translate Spark's errors about a statement into one sentence, without its log output."""
    loggers = [PySparkLogger.getLogger(name) for name in ERROR_LOGGERS]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except AnalysisException as error:
        raise ConfigError(f"the SQL is not valid: {sql_problem(str(error))}") from error
    finally:
        for logger in loggers:
            logger.disabled = False


def sql_problem(text: str) -> str:
    """The relevant line of Spark's error about a statement, with its position."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = line.strip().rstrip(";")
    head, state, place = line.partition("SQLSTATE: ")
    if line.startswith("["):
        head = head.partition("] ")[2]
    place = place[5:].strip(" ;()").replace(", ", " ") if state else ""
    return f"{head.strip().rstrip('.')}{f' ({place})' if place else ''}"


def _check(frame: DataFrame, options: TransformOptions) -> None:
    """Raise the errors of the sink before anything runs."""
    check_topics(options)
    sink = read_sink_options(options.sink)
    plan_rows({field.name: field.dataType.simpleString() for field in frame.schema}, sink)
    client = sink_client(sink)

    async def check() -> None:
        brokers = {queue.broker_name for queue in await client.queues(options.to_topic)}
        if sink.exactly_once:
            await client.require_idempotent(sorted(brokers))

    shared_portal().call(check())
