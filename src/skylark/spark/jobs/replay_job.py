"""Replay job: sends the messages of a lake to topics again, each queue in its old order.

One task sends the messages of one old queue, by offset, to one queue: to the queue of the same name
if the topic has all of them; otherwise the old queues are distributed over the new ones. Reserved
properties are dropped, and ``REPLAY_OF`` has the id of the original message. Delivery is at least
once: a task that Spark repeats sends again.

**Pace.** By default it sends as fast as brokers accept. ``rate`` is messages per second in total; a
task gets a share in proportion to its rows, so that all tasks end together. ``time_scale`` keeps
the distances of the store times: 1 as they were, 2 twice as fast. Both need all tasks to run at
once, so there are never more tasks than Spark has cores.

The tasks send by themselves and do not use Spark's sink: between two steps Spark collects thousands
of rows before it passes them on, and no pace could be kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.clock import SystemClock, TimeSource
from skylark.core.errors import ConfigError
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.archive_job import DAY, read_lake
from skylark.spark.jobs.job_runner import (
    Report,
    cluster_options,
    cores,
    follow_batch,
    user_properties,
)
from skylark.spark.lake.lake_table import LakeFormat, require_format
from skylark.spark.sink.row_encoder import plan_rows
from skylark.spark.sink.sink_client import sink_client
from skylark.spark.sink.sink_options import SinkOptions, read_sink_options
from skylark.spark.sink.task_writer import TaskId, write_at_least_once
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_OF: Final = "REPLAY_OF"
#: Interval of the sends of a task with a pace.
SLICE_S: Final = 0.05
_QUEUE: Final = ("topic", "brokerName", "queueId")
_RESULT: Final = "count bigint, size bigint, retries bigint"


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a replay job."""

    lake: str
    to_topic: str | None = None  #: None: every message to its original topic
    namesrv: str | None = None
    format: LakeFormat = "parquet"
    topics: tuple[str, ...] = ()  #: topics in the lake; empty: all
    since: datetime | None = None  #: by store time
    until: datetime | None = None
    rate: float | None = None  #: messages per second
    time_scale: float | None = None
    keep_ids: bool = False  #: messages keep their unique ids

    def __post_init__(self) -> None:
        require_format(self.format)
        if self.rate is not None and self.time_scale is not None:
            raise ConfigError("a rate and a time scale exclude each other", hint="give one")
        for name, value in (("rate", self.rate), ("time scale", self.time_scale)):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"the {name} must be more than 0, and is {value}")

    @property
    def sink(self) -> SinkOptions:
        """The options of the sink."""
        given = {
            **cluster_options(self.namesrv),
            "explicitQueue": "true",
            "preserveMsgId": str(self.keep_ids).lower(),
            "allowSameTopic": "true",
        }
        return read_sink_options(given | ({"topic": self.to_topic} if self.to_topic else {}))


class QueueReplay(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of the lake, and its target queue."""

    topic: str
    broker_name: str
    queue_id: int
    rows: int
    first_offset: int
    last_offset: int
    first_stored: datetime | None
    body_size: int
    to_topic: str
    to_broker: str
    to_queue: int


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run."""

    lake: str
    to: list[str]
    queues: int
    rows: int
    body_size: int
    retries: int
    seconds: float
    rows_per_second: int


def plan(spark: SparkSession, options: ReplayOptions) -> list[QueueReplay]:
    """The queues that a run would send; raises SkylarkError."""
    with translate_errors():
        return _plan(_chosen(spark, options), options)


def run(
    spark: SparkSession, options: ReplayOptions, report: Report, stop: Event | None = None
) -> ReplaySummary:
    """Send all rows; raises SkylarkError, and KeyboardInterrupt if ``stop`` is set."""
    clock = SystemClock()
    start = clock.monotonic()
    with translate_errors():
        frame = _chosen(spark, options)
        queues = _plan(frame, options)
        total = sum(queue.rows for queue in queues)
        sent = (0, 0, 0)
        if queues:
            tasks = assign_tasks([queue.rows for queue in queues], cores(spark))
            ready = _ordered(frame, options, queues, tasks)
            rows = ready.mapInArrow(_sender(options, ready, queues, tasks), _RESULT)
            sums = rows.agg(*(F.sum(name).alias(name) for name in ("count", "size", "retries")))
            row = follow_batch(
                spark,
                sums.first,
                report,
                stop,
                counted="shuffleReadRecords",
                total=total,
                before=total if options.time_scale is not None else 0,
            )
            assert row is not None, "sums are one row"
            sent = row["count"], row["size"], row["retries"]
    seconds = clock.monotonic() - start
    return ReplaySummary(
        lake=options.lake,
        to=sorted({queue.to_topic for queue in queues}),
        queues=len(queues),
        rows=sent[0],
        body_size=sum(queue.body_size for queue in queues),
        retries=sent[2],
        seconds=round(seconds, 3),
        rows_per_second=round(sent[0] / max(seconds, 0.001)),
    )


def check_target(options: ReplayOptions) -> None:
    """Check without Spark that the topic exists; raises NotFoundError, NoNameServerError."""
    client = sink_client(options.sink)
    if options.to_topic is not None:
        shared_portal().call(client.queues(options.to_topic))


# ---- the plan ------------------------------------------------------------------------------------


def _chosen(spark: SparkSession, options: ReplayOptions) -> DataFrame:
    """The rows of the lake that the options select."""
    frame = read_lake(spark, options.lake, options.format)
    if options.topics:
        frame = frame.where(F.col("topic").isin(*options.topics))
    stored, day = F.col("storeTimestamp"), F.col(DAY)
    has_days = DAY in frame.columns  # then Spark skips the folders of other days
    if options.since is not None:
        frame = frame.where(stored >= F.lit(options.since))
        if has_days:
            frame = frame.where(day >= F.lit(options.since.astimezone(UTC).date()))
    if options.until is not None:
        frame = frame.where(stored < F.lit(options.until))
        if has_days:
            frame = frame.where(day <= F.lit(options.until.astimezone(UTC).date()))
    return frame


def _plan(frame: DataFrame, options: ReplayOptions) -> list[QueueReplay]:
    sink = options.sink
    found = (
        frame.groupBy(*_QUEUE)
        .agg(
            F.count("*").alias("rows"),
            F.min("queueOffset").alias("first_offset"),
            F.max("queueOffset").alias("last_offset"),
            F.min(F.unix_micros("storeTimestamp")).alias("first_stored"),
            F.coalesce(F.sum(F.octet_length("body")), F.lit(0)).alias("body_size"),
        )
        .sort(*_QUEUE)
        .withColumnsRenamed({"brokerName": "broker_name", "queueId": "queue_id"})
        .toLocalIterator()
    )
    old = [(MessageQueue(topic=row[0], broker_name=row[1], queue_id=row[2]), row) for row in found]
    targets = {queue.topic: options.to_topic or queue.topic for queue, _ in old}
    client = sink_client(sink)
    portal = shared_portal()
    new = {topic: portal.call(client.queues(topic)) for topic in sorted(set(targets.values()))}
    plans = []
    for topic, target in targets.items():
        mine = [(queue, row) for queue, row in old if queue.topic == topic]
        where = match_queues([queue for queue, _ in mine], new[target])
        plans += [
            QueueReplay(
                **row.asDict() | {"first_stored": _moment(row.first_stored)},
                to_topic=target,
                to_broker=where[queue].broker_name,
                to_queue=where[queue].queue_id,
            )
            for queue, row in mine
        ]
    return plans


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, tz=UTC)


def match_queues(
    old: Sequence[MessageQueue], new: Sequence[MessageQueue]
) -> dict[MessageQueue, MessageQueue]:
    """The new queue for each old one: that of the same name if all exist, else round-robin.

    Queues keep their names on the same brokers; elsewhere the numbers of old queues per new queue
    differ by one at most.
    """
    by_name = {(queue.broker_name, queue.queue_id): queue for queue in new}
    if all((queue.broker_name, queue.queue_id) in by_name for queue in old):
        return {queue: by_name[queue.broker_name, queue.queue_id] for queue in old}
    targets = sorted(new)
    return {queue: targets[at % len(targets)] for at, queue in enumerate(sorted(old))}


def assign_tasks(sizes: Sequence[int], count_max: int) -> list[int]:
    """The task of each queue: the largest queues first, each to the task with the fewest rows."""
    count = max(1, min(count_max, len(sizes)))
    loads = [0] * count
    tasks = [0] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        tasks[at] = loads.index(min(loads))
        loads[tasks[at]] += sizes[at]
    return tasks


def _ordered(
    frame: DataFrame, options: ReplayOptions, queues: Sequence[QueueReplay], tasks: Sequence[int]
) -> DataFrame:
    """The rows as messages, each old queue in one partition and in its order."""
    by_queue = F.create_map(
        *(
            part
            for queue, task in zip(queues, tasks, strict=True)
            for part in (
                F.lit(_name(queue.topic, queue.broker_name, queue.queue_id)),
                F.struct(
                    F.lit(task).alias("task"),
                    F.lit(queue.to_broker).alias("broker"),
                    F.lit(queue.to_queue).alias("queue"),
                ),
            )
        )
    )
    has = set(frame.columns)
    frame = frame.withColumn("_to", by_queue[F.concat_ws("/", *_QUEUE)])
    order = [F.col("_to.task"), *map(F.col, _QUEUE), F.col("queueOffset")]
    if options.time_scale is not None:
        # The order of offsets holds even where a clock was set back.
        before = Window.partitionBy(*_QUEUE).orderBy("queueOffset")
        frame = frame.withColumn("_at", F.max("storeTimestamp").over(before))
        order.insert(1, F.col("_at"))
    frame = frame.repartitionById(max(tasks) + 1, F.col("_to.task").cast("int"))
    frame = frame.sortWithinPartitions(*order)
    columns: dict[str, Column] = {
        "topic": F.lit(options.to_topic) if options.to_topic else F.col("topic"),
        "brokerName": F.col("_to.broker"),
        "queueId": F.col("_to.queue"),
        "body": F.col("body"),
        "properties": _properties(has),
    }
    columns |= {
        name: F.col(name) for name in ("tags", "keys", "shardingKey", "flag") if name in has
    }
    if options.keep_ids and "msgId" in has:
        columns["msgId"] = F.col("msgId")
    if options.time_scale is not None:
        columns["_at"] = F.unix_micros("_at")
    return frame.select(*(column.alias(name) for name, column in columns.items()))


def _name(topic: str, broker: str, queue_id: int) -> str:
    return f"{topic}/{broker}/{queue_id}"


def _properties(has: set[str]) -> Column:
    ids = [F.col(name) for name in ("offsetMsgId", "msgId") if name in has]
    original = F.coalesce(*ids, F.concat_ws("/", *_QUEUE, "queueOffset"))
    mark = F.create_map(F.lit(REPLAY_OF), original)
    if "properties" not in has:
        return mark
    known = F.coalesce(F.col("properties"), F.create_map().cast("map<string,string>"))
    theirs = F.map_filter(user_properties(known), lambda name, _: name != REPLAY_OF)
    return F.map_concat(theirs, mark)


# ---- the tasks -----------------------------------------------------------------------------------


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Send rates of tasks; pickled to them."""

    rates: Mapping[int, float] = {}  #: by task, messages per second
    time_scale: float | None = None
    first_micros: int = 0  #: the first store time of all rows

    def slices(
        self, batches: Iterator[pa.RecordBatch], task: int, clock: TimeSource, wait: Event
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a task, each not before its due time."""
        if task not in self.rates and self.time_scale is None:
            yield from batches
            return
        start: float | None = None
        count = 0
        for batch in batches:
            start = clock.monotonic() if start is None else start
            due = self._due(batch, count, task)
            first = 0
            while first < len(due):
                now_s = clock.monotonic() - start
                if due[first] > now_s:
                    wait.wait(due[first] - now_s)
                    now_s = due[first]
                last = max(first + 1, bisect_right(due, now_s + SLICE_S))
                yield batch.slice(first, last - first)
                first = last
            count += batch.num_rows

    def _due(self, batch: pa.RecordBatch, count: int, task: int) -> list[float]:
        """The due time of each row in seconds since the start; never decreasing."""
        if self.time_scale is None:
            rate = self.rates[task]
            return [(count + number) / rate for number in range(batch.num_rows)]
        times: list[int] = batch.column("_at").to_pylist()
        return [(at - self.first_micros) / 1e6 / self.time_scale for at in times]


def _sender(
    options: ReplayOptions, ready: DataFrame, queues: Sequence[QueueReplay], tasks: Sequence[int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that tasks run; raises ConfigError."""
    sink = options.sink
    types = {field.name: field.dataType.simpleString() for field in ready.schema}
    types.pop("_at", None)
    row_plan = plan_rows(types, sink)
    total = sum(queue.rows for queue in queues)
    rates: dict[int, float] = {}
    if options.rate is not None:
        for queue, task in zip(queues, tasks, strict=True):
            rates[task] = rates.get(task, 0) + options.rate * queue.rows / total
    stored = [queue.first_stored for queue in queues if queue.first_stored is not None]
    pace = Pace(
        rates=rates,
        time_scale=options.time_scale,
        first_micros=round(min(stored).timestamp() * 1e6) if stored else 0,
    )

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        task = TaskId(sink="replay", batch=0, partition=partition)
        paced = pace.slices(batches, partition, SystemClock(), Event())
        written = write_at_least_once(paced, sink, row_plan, task)
        figures = {"count": written.count, "size": written.size, "retries": written.retries}
        yield pa.RecordBatch.from_pylist([figures])

    return send
