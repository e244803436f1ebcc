"""Mirror job: copies a topic to another cluster, message by message, in order.

**Kept.** Body, tag, keys, flag, user properties, and the message id: a copy has the same unique id,
so consumers that detect duplicates by it detect them here too. Reserved properties are not copied
(:data:`~skylark.spark.sink.row_properties.RESERVED_NAMES`).

**Order.** Queue *i* goes to queue *i* mod *n* of the target's *n* queues, where queues are sorted
by number and then by broker (:func:`queue_map`). One task reads a queue from end to end and sends
one request at a time to its target, so the messages of a source queue keep their order. After a
change of queues or brokers existing queues may get other targets; order holds again from then on.

**No loops.** A copy has the property ``MIRROR_FROM``: the clusters that it was mirrored from, the
latest one last, separated by commas. Rows that have the name of the target's cluster come from
there and are skipped. So clusters that mirror each other need different names.

**Offsets.** A table of offset pairs records where messages went, for moving consumer groups::

    <pairs>/query=<id>/batch=<n>/*.parquet
    sourceTopic, sourceBroker, sourceQueueId, sourceOffset,
    targetTopic, targetBroker, targetQueueId, targetOffset, count

Each row is a run: message ``sourceOffset + k`` is at ``targetOffset + k``, for ``k < count``. To
translate the offset of a group, find the row with ``sourceOffset <= offset < sourceOffset +
count``. Target offsets come from the brokers' replies. A batch that is repeated after a crash is
sent again (at least once), and replaces its rows in the table. A Delta or Iceberg table
(:mod:`skylark.spark.lake`) holds these columns only; a batch that it has is not sent again.

**Outages.** Source, sink and the look-up of queues before each batch wait up to ``outageTimeout``
for servers that do not answer, also in a run that continues a checkpoint.

**Tasks.** :func:`send_rows` sends rows with the sender of the sink
(:mod:`skylark.spark.sink.sink_sender`); :class:`Placed` records the offset of each. An Arrow batch
is sent and acknowledged as a whole before its offset pairs are returned, so a task has only one
batch in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from pyspark.sql import functions as F
from pyspark.sql.observation import Observation
from pyspark.sql.types import StructType

from skylark.admin.admin_session import masters_of
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.client_message import SendResult
from skylark.client.core.route_cache import make_route
from skylark.core.errors import ConfigError
from skylark.spark.arrow_batches import cut_batch
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.job_runner import (
    Report,
    StreamJobOptions,
    checkpoint_offset,
    cluster_options,
    run_query,
    running_query,
    user_properties,
    with_trigger,
)
from skylark.spark.jobs.queue_spans import QueueSpan, queue_spans, topic_route
from skylark.spark.lake.lake_table import (
    LakeFormat,
    LakeTable,
    append_batch,
    arrow_schema,
    open_table,
    require_format,
)
from skylark.spark.outages import ride_out
from skylark.spark.sink.row_batcher import RowBatcher, RowRequest
from skylark.spark.sink.row_encoder import SINK_TYPES, BadRowError, RowPlan, RowReader
from skylark.spark.sink.sink_client import sink_client
from skylark.spark.sink.sink_options import SinkOptions, read_sink_options
from skylark.spark.sink.sink_sender import SinkSender, Written
from skylark.spark.sink.task_writer import open_sender
from skylark.spark.source.source_options import source_options
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from skylark.wire.bodies.route_body import TopicRouteData

MIRROR_FROM: Final = "MIRROR_FROM"
ROWS_PER_BATCH: Final = 200_000
_SEPARATOR: Final = ","
_COLUMNS: Final = (
    *("brokerName", "queueId", "queueOffset", "msgId"),
    *("tags", "keys", "body", "flag", "properties"),
)
_WHOLE_QUEUES: Final = str(1 << 62)
PAIR_SCHEMA: Final = (
    "sourceTopic string, sourceBroker string, sourceQueueId int, sourceOffset bigint,"
    " targetTopic string, targetBroker string, targetQueueId int, targetOffset bigint,"
    " count bigint"
)


class MirrorOptions(StreamJobOptions, frozen=True, kw_only=True):
    """Options of a mirror job; raises ConfigError."""

    topic: str
    to_namesrv: str
    checkpoint: str
    to_topic: str | None = None  #: default: the same name
    pairs: str | None = None  #: folder or table of the pairs; default: beside the checkpoint
    pairs_format: LakeFormat = "parquet"
    name: str | None = None  #: name of the source cluster in MIRROR_FROM; default: its own
    to_name: str | None = None
    rows_per_batch: int = ROWS_PER_BATCH

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ConfigError("a mirror needs a checkpoint")
        for name in (self.name, self.to_name):
            if name is not None and (not name or _SEPARATOR in name):
                raise ConfigError(f"{name!r} cannot be the name of a cluster here")
        require_format(self.pairs_format)
        if self.pairs_format == "iceberg" and self.pairs is None:
            raise ConfigError("a table in Iceberg needs a name", hint="give --pairs")
        source_options(self.source, streaming=True)
        read_sink_options(self.sink)

    @property
    def target(self) -> str:
        """The topic that is written to."""
        return self.to_topic or self.topic

    @property
    def pairs_folder(self) -> str:
        return (self.pairs or f"{self.checkpoint.rstrip('/')}.pairs").rstrip("/")

    @property
    def source(self) -> dict[str, str]:
        """The options of the source."""
        return self.stream_source(
            self.rows_per_batch,
            topic=self.topic,
            columns=",".join(_COLUMNS),
            maxRecordsPerPartition=_WHOLE_QUEUES,
        )

    @property
    def sink(self) -> dict[str, str]:
        """The options of the sink."""
        return {
            **cluster_options(self.to_namesrv),
            "topic": self.target,
            "explicitQueue": "true",
            "preserveMsgId": "true",
        }


class MirrorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run."""

    topic: str
    from_cluster: str
    to_topic: str
    to_cluster: str
    pairs: str
    rows_read: int
    rows_sent: int
    rows_skipped: int  #: they came from the target cluster
    batches: int
    seconds: float
    rows_per_second: int
    lag: int | None
    stopped: bool


class MirroredQueue(QueueSpan, frozen=True, kw_only=True):
    """The range of a queue that a run would copy, and its target queue."""

    to_broker_name: str
    to_queue_id: int


class _Clusters(msgspec.Struct, frozen=True, kw_only=True):
    """Routes and names of both clusters."""

    from_cluster: str
    to_cluster: str
    routed: dict[MessageQueue, MessageQueue]  #: readable queues of the source -> their targets
    target: tuple[MessageQueue, ...]


def run(
    spark: SparkSession, options: MirrorOptions, report: Report, stop: Event | None = None
) -> MirrorSummary:
    """Copy all messages, or run on until ``stop`` is set; raises SkylarkError."""
    with translate_errors():
        ran_before = checkpoint_offset(spark, options.checkpoint) is not None
    clusters = check_clusters(options, existed=ran_before)
    sent = _Sent()
    with translate_errors():
        table = _pairs_table(options)
        if table is not None:
            columns = cast("StructType", StructType.fromDDL(PAIR_SCHEMA))
            table.create(arrow_schema(columns), ())
        frame = spark.readStream.format("rocketmq").options(**options.source).load()
        writer = (
            frame.writeStream.foreachBatch(partial(_copy, options, sent, table))
            .option("checkpointLocation", options.checkpoint)
            .queryName(f"mirror {options.topic} to {clusters.to_cluster}")
        )
        writer = with_trigger(writer, options.interval_ms)
        totals = run_query(writer.start, report, stop)
    return MirrorSummary(
        topic=options.topic,
        from_cluster=clusters.from_cluster,
        to_topic=options.target,
        to_cluster=clusters.to_cluster,
        pairs=options.pairs_folder,
        rows_read=totals.rows,
        rows_sent=sent.rows,
        rows_skipped=max(0, totals.rows - sent.rows),
        **totals.figures,
    )


def plan(spark: SparkSession, options: MirrorOptions) -> list[MirroredQueue]:
    """What a run would copy now; raises SkylarkError."""
    routed = check_clusters(options).routed
    with translate_errors():
        spans = queue_spans(options.source, checkpoint_offset(spark, options.checkpoint))
    return [_mirrored(span, routed[span.queue]) for span in spans]


# ---- one batch -----------------------------------------------------------------------------------


class _Sent(msgspec.Struct):
    """Number of rows that this run has sent; batches add to it one after the other."""

    rows: int = 0


def _copy(
    options: MirrorOptions, sent: _Sent, table: LakeTable | None, frame: DataFrame, batch: int
) -> None:
    """Send one micro-batch and write its offset pairs; runs in the driver."""
    clusters = check_clusters(options, existed=True)
    query = running_query(frame)
    observation = Observation()
    send: Callable[..., Iterator[object]] = partial(
        send_rows, source_topic=options.topic, options=read_sink_options(options.sink)
    )
    pairs = (
        mirrored_rows(
            frame, clusters.routed, clusters.target, clusters.from_cluster, clusters.to_cluster
        )
        .mapInArrow(send, PAIR_SCHEMA)
        .observe(observation, F.sum("count").alias("rows"))
    )
    if table is None:
        pairs.write.mode("overwrite").parquet(f"{options.pairs_folder}/query={query}/batch={batch}")
    elif not append_batch(table, pairs, query, batch):
        return  # nothing was sent
    sent.rows += observation.get["rows"] or 0


def _pairs_table(options: MirrorOptions) -> LakeTable | None:
    if options.pairs_format == "parquet":
        return None
    return open_table(options.pairs_format, options.pairs_folder)


def mirrored_rows(
    frame: DataFrame,
    routed: Mapping[MessageQueue, MessageQueue],
    targets: Sequence[MessageQueue],
    from_cluster: str,
    to_cluster: str,
) -> DataFrame:
    """The rows to copy, with their target queues, in the columns of the sink."""
    before = F.element_at("properties", MIRROR_FROM)
    passed = F.array_contains(F.split(F.coalesce(before, F.lit("")), _SEPARATOR), to_cluster)
    mark = F.concat_ws(_SEPARATOR, before, F.lit(from_cluster))
    others = F.map_filter("properties", lambda name, _: name != MIRROR_FROM)
    properties = F.map_concat(
        user_properties(F.coalesce(others, F.create_map())), F.create_map(F.lit(MIRROR_FROM), mark)
    )
    target = _target_column(routed, targets)
    return frame.where(~passed).select(
        F.col("brokerName").alias("sourceBroker"),
        F.col("queueId").alias("sourceQueueId"),
        F.col("queueOffset").alias("sourceOffset"),
        *("msgId", "tags", "keys", "body", "flag"),
        properties.alias("properties"),
        target["broker"].alias("brokerName"),
        target["queue"].alias("queueId"),
    )


def _target_column(
    routed: Mapping[MessageQueue, MessageQueue], targets: Sequence[MessageQueue]
) -> Column:
    """The target queue of a row; by its number if the source queue is in no route any more."""

    def place(queue: MessageQueue) -> Column:
        broker, number = F.lit(queue.broker_name), F.lit(queue.queue_id)
        return F.struct(broker.alias("broker"), number.alias("queue"))

    entries = [
        part
        for queue, target in routed.items()
        for part in (F.lit(f"{queue.broker_name}\x01{queue.queue_id}"), place(target))
    ]
    known = F.try_element_at(F.create_map(*entries), F.concat_ws("\x01", "brokerName", "queueId"))
    any_of = F.array(*map(place, sorted(targets, key=_rank)))
    return F.coalesce(known, F.element_at(any_of, F.col("queueId") % len(targets) + 1))


# ---- the clusters --------------------------------------------------------------------------------


def queue_map(
    source: Sequence[MessageQueue], target: Sequence[MessageQueue]
) -> dict[MessageQueue, MessageQueue]:
    """The target of each queue; both sides sorted by number, then by broker."""
    places = sorted(target, key=_rank)
    return {
        queue: places[index % len(places)] for index, queue in enumerate(sorted(source, key=_rank))
    }


def _rank(queue: MessageQueue) -> tuple[int, str]:
    return queue.queue_id, queue.broker_name


def check_clusters(options: MirrorOptions, *, existed: bool = False) -> _Clusters:
    """Find both topics; raises NotFoundError if one is missing, ConfigError for a loop.

    If they ``existed`` before, they are waited for; raises OutageError then.
    """
    source = topic_route(options.source, options.topic, existed=existed)
    target = topic_route(options.sink, options.target, existed=existed)
    readable = make_route(options.topic, source).subscribe
    writable = make_route(options.target, target).publish
    if not writable:
        raise ConfigError(f"topic {options.target} of the target is not writable")
    same = {*masters_of(source).values()} & {*masters_of(target).values()}
    if same and options.topic == options.target:
        raise ConfigError(
            f"both clusters are the same one: topic {options.topic} would be copied to itself",
            hint="check -n and --to-namesrv, or give --to-topic",
        )
    return _Clusters(
        from_cluster=options.name or _cluster_name(source, options.topic, "--cluster-name"),
        to_cluster=options.to_name or _cluster_name(target, options.target, "--to-cluster-name"),
        routed=queue_map(readable, writable),
        target=tuple(writable),
    )


def _cluster_name(route: TopicRouteData, topic: str, option: str) -> str:
    names = sorted({data.cluster for data in route.broker_datas})
    if len(names) != 1:
        raise ConfigError(
            f"topic {topic} is in several clusters: {', '.join(names)}", hint=f"give {option}"
        )
    return names[0]


def _mirrored(span: QueueSpan, target: MessageQueue) -> MirroredQueue:
    return MirroredQueue(
        **msgspec.structs.asdict(span),
        to_broker_name=target.broker_name,
        to_queue_id=target.queue_id,
    )


# ---- tasks ---------------------------------------------------------------------------------------


class Placed(Written):
    """Records the offsets at which the rows of the current batch are stored."""

    offsets: Any = None  #: offset of each row, by its index in the batch

    def stored(self, request: RowRequest, result: SendResult) -> None:
        import numpy as np

        Written.stored(self, request, result)
        positions = request.rows.positions[np.asarray(request.numbers)]
        self.offsets[positions] = result.queue_offset + np.arange(request.count)


def send_rows(
    batches: Iterator[pa.RecordBatch], *, source_topic: str, options: SinkOptions
) -> Iterator[pa.RecordBatch]:
    """Send the rows of :func:`skylark.spark.jobs.mirror_job.mirrored_rows`; yields offset runs."""
    import numpy as np

    portal, client = shared_portal(), sink_client(options)
    topic = options.topic
    assert topic is not None
    batcher = RowBatcher(options)

    def refused(request: RowRequest, number: int, reason: str) -> None:
        raise _bad_row(int(request.rows.positions[number]), reason)

    def make() -> SinkSender:
        return SinkSender(client, options, batcher, refused)

    with open_sender(portal, make) as sender:
        placed = sender.written = Placed(queues={})
        for batch in chain.from_iterable(map(cut_batch, batches)):
            if not batch.num_rows:
                continue
            plan = RowPlan(columns=tuple(name for name in batch.schema.names if name in SINK_TYPES))
            reader = RowReader(plan, options, client.sender.common or {}, client.sender.next_id)
            rows = reader.read(batch)
            for position, reason in rows.bad.items():
                raise _bad_row(position, reason)
            placed.offsets = np.full(batch.num_rows, -1)
            find = partial(
                client.queues_of_rows, (topic,), batcher.named_brokers(rows), lambda _: True
            )
            queues = portal.call(ride_out(client.clock, options.outage_timeout_s, find))
            for request in batcher.requests_of(rows, queues):
                portal.call(sender.put(request))
            portal.call(sender.finish())
            yield offset_runs(batch, placed.offsets, source_topic, topic)


def _bad_row(position: int, reason: str) -> BadRowError:
    return BadRowError(f"row {position} of a batch cannot be mirrored: {reason}")


def offset_runs(
    batch: pa.RecordBatch, offsets: np.ndarray[Any, Any], source_topic: str, target_topic: str
) -> pa.RecordBatch:
    """Group the rows of a batch into runs in which source and target offsets are consecutive."""
    import numpy as np
    import pyarrow as pa

    sources = batch.column("sourceOffset").to_numpy()
    breaks = (np.diff(sources) != 1) | (np.diff(offsets) != 1)
    for name in ("sourceBroker", "sourceQueueId", "brokerName", "queueId"):
        codes = batch.column(name).dictionary_encode().indices.to_numpy()
        breaks |= np.diff(codes) != 0
    firsts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    counts = np.diff(np.concatenate((firsts, [batch.num_rows])))
    taken = batch.take(pa.array(firsts))
    count = len(firsts)
    return pa.RecordBatch.from_pydict(
        {
            "sourceTopic": pa.array([source_topic] * count, pa.string()),
            "sourceBroker": taken.column("sourceBroker"),
            "sourceQueueId": taken.column("sourceQueueId"),
            "sourceOffset": taken.column("sourceOffset"),
            "targetTopic": pa.array([target_topic] * count, pa.string()),
            "targetBroker": taken.column("brokerName"),
            "targetQueueId": taken.column("queueId"),
            "targetOffset": pa.array(offsets[firsts], pa.int64()),
            "count": pa.array(counts, pa.int64()),
        }
    )
