"""Report job: measures a topic: rate, sizes, latency, keys, queues, and the lag of a group.

Spark does all the work; only figures reach the driver. The topic is read twice between the same
offsets, because the length of the time spans depends on when its messages were stored:

1. sums, percentiles and the hottest keys of all messages;
2. the same figures by time span, by queue and by size.

Nothing is cached in between, so memory and disk use do not depend on the size of the topic. Bodies
are not read.

:func:`save` appends the figures to Parquet tables, one folder each, so that reports of many days
can be compared: ``spans``, ``queues``, ``size_classes``, ``keys`` and ``sharding_keys``, all with
``topic`` and ``made_ms``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as F

from skylark.admin.errors import NotFoundError
from skylark.admin.group_operations import Groups
from skylark.admin.offset_operations import Offsets
from skylark.core.errors import ConfigError
from skylark.spark.cluster_client import Cluster, shared_cluster
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.job_runner import JobProgress, Report, cluster_options
from skylark.spark.jobs.topic_report import (
    PERCENTS,
    SERIES_PERCENTS,
    GroupLag,
    HotKey,
    KeyShare,
    Percentiles,
    QueueShare,
    SizeClass,
    Span,
    TopicReport,
    filled,
    span_width_s,
)
from skylark.spark.source.source_options import source_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from skylark.admin.consumer_progress import QueueProgress

_KEPT: Final = ("brokerName", "queueId", "queueOffset", "keys", "shardingKey")
_COLUMNS: Final = (*_KEPT, "bornTimestamp", "storeTimestamp", "storeSize")
#: Keys that a task counts at once; with more different keys counts become less exact.
_KEYS_TRACKED: Final = 10_000
HOT_KEYS_MAX: Final = 100


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a report job; raises ConfigError."""

    topic: str
    namesrv: str | None = None
    group: str | None = None  #: whose lag is shown
    start: str = "earliest"  #: as startingOffsets
    tags: str | None = None
    hot_keys: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.hot_keys <= HOT_KEYS_MAX:
            raise ConfigError(f"{self.hot_keys} hot keys: it must be 1 to {HOT_KEYS_MAX}")
        source_options(self.source, streaming=False)

    @property
    def source(self) -> dict[str, str]:
        """The options of the source."""
        given = cluster_options(self.namesrv) | {
            "topic": self.topic,
            "startingOffsets": self.start,
            "columns": ",".join(_COLUMNS),
        }
        if self.tags is not None:
            given["tags"] = self.tags
        return given


def run(spark: SparkSession, options: ReportOptions, report: Report) -> TopicReport:
    """Read the topic and compute the figures; raises SkylarkError."""
    source = options.source
    cluster = shared_cluster(source_options(source, streaming=False).connection)
    progress = _progress(cluster, options)
    with translate_errors():
        frame = spark.read.format("rocketmq").options(**source).load()
        rows = frame.select(
            *_KEPT,
            F.unix_millis("storeTimestamp").alias("stored"),
            (F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")).alias("latency"),
            F.col("storeSize").alias("size"),
        )
        made_ms = cluster.session.clock.now_ms()
        found = _totals(rows, options.hot_keys, TopicReport(topic=options.topic, made_ms=made_ms))
        report(JobProgress(rows=found.rows))
        if found.rows:
            found = _divided(rows, found, progress)
    if options.group is not None:
        found = msgspec.structs.replace(found, group=_group_lag(options.group, progress, found))
    report(JobProgress(rows=found.rows, done=True))
    return found


_KEY_FIELDS: Final = "key string, rows bigint"
_TABLES: Final = {
    "spans": "start_ms bigint, width_s bigint, rows bigint, size bigint, latency_p50_ms bigint,"
    " latency_p95_ms bigint, latency_p99_ms bigint, unread bigint",
    "queues": "broker string, queue_id int, rows bigint, size bigint, first_offset bigint,"
    " last_offset bigint, lag bigint",
    "size_classes": "least bigint, rows bigint",
    "keys": _KEY_FIELDS,
    "sharding_keys": _KEY_FIELDS,
}


def save(spark: SparkSession, report: TopicReport, folder: str) -> None:
    """Append the figures to the tables in a folder; raises SkylarkError."""
    found: dict[str, Sequence[msgspec.Struct]] = {
        "spans": report.spans,
        "queues": report.queues,
        "size_classes": report.size_classes,
        "keys": report.keys.hottest,
        "sharding_keys": report.sharding_keys.hottest,
    }
    common = {"topic": report.topic, "made_ms": report.made_ms, "width_s": report.width_s}
    with translate_errors():
        for name, fields in _TABLES.items():
            schema = f"topic string, made_ms bigint, {fields}"
            columns = [field.split()[0] for field in schema.split(", ")]
            rows = [common | msgspec.structs.asdict(each) for each in found[name]]
            frame = spark.createDataFrame(
                [tuple(row[column] for column in columns) for row in rows], schema
            )
            frame.coalesce(1).write.mode("append").parquet(f"{folder.rstrip('/')}/{name}")


# ---- the group -----------------------------------------------------------------------------------


def _progress(cluster: Cluster, options: ReportOptions) -> Sequence[QueueProgress]:
    if options.group is None:
        return ()
    session, group, topic = cluster.session, options.group, options.topic
    committed = cluster.run(Offsets(session).committed(group, topic))
    if not any(offset is not None for offset in committed.values()):
        raise NotFoundError(f"group {group} has consumed nothing of topic {topic}")
    found = cluster.run(Groups(session).progress(group, topic=topic)).queues
    return tuple(each for each in found if each.queue.topic == options.topic)


def _group_lag(group: str, progress: Sequence[QueueProgress], found: TopicReport) -> GroupLag:
    oldest = [span.start_ms for span in found.spans if span.unread]
    lag = sum(queue.lag for queue in progress)
    return GroupLag(group=group, lag=lag, oldest_ms=min(oldest, default=None))


# ---- all messages --------------------------------------------------------------------------------


def _totals(rows: DataFrame, hot_keys: int, report: TopicReport) -> TopicReport:
    """Figures of all messages. Here a message with several keys has a row for each."""
    each = rows.select("*", F.posexplode_outer(F.split("keys", " ")).alias("at", "key"))
    first = "coalesce(at, 0) = 0"
    columns = {
        "rows": f"count_if({first})",
        "total": f"sum(size) FILTER (WHERE {first})",
        "first_ms": "min(stored)",
        "last_ms": "max(stored)",
        "sizes": _spread("size", first),
        "latencies": _spread("latency", first),
        "key_count": "approx_count_distinct(key) FILTER (WHERE key <> '')",
        "keys": f"approx_top_k(key, {hot_keys}, {_KEYS_TRACKED}) FILTER (WHERE key <> '')",
        "shard_count": "approx_count_distinct(shardingKey)",
        "shards": f"approx_top_k(shardingKey, {hot_keys}, {_KEYS_TRACKED})"
        f" FILTER (WHERE {first} AND shardingKey IS NOT NULL)",
    }
    aggregates = [F.expr(text).alias(name) for name, text in columns.items()]
    (row,) = each.agg(*aggregates).collect()
    return msgspec.structs.replace(
        report,
        rows=row.rows,
        size=row.total or 0,
        first_ms=row.first_ms,
        last_ms=row.last_ms,
        sizes=_percentiles(row.sizes),
        latencies_ms=_percentiles(row.latencies),
        keys=_key_share(row.key_count, row["keys"]),
        sharding_keys=_key_share(row.shard_count, row.shards),
    )


def _spread(column: str, condition: str) -> str:
    percents = ", ".join(str(percent / 100) for percent in PERCENTS)
    where = f"FILTER (WHERE {condition})"
    inner = f"percentile_approx({column}, array({percents})) {where}"
    return f"concat(array(min({column})), {inner}, array(max({column})))"


def _percentiles(values: Sequence[int | None] | None) -> Percentiles | None:
    if not values or values[0] is None:
        return None
    names = ("least", *(f"p{percent}" for percent in PERCENTS), "most")
    return msgspec.convert(dict(zip(names, values, strict=True)), Percentiles)


def _key_share(distinct: int, hottest: Iterable[Row] | None) -> KeyShare:
    hot = tuple(HotKey(key=each["item"], rows=each["count"]) for each in hottest or ())
    return KeyShare(distinct=max(distinct, len(hot)), hottest=hot)


# ---- by time, queue and size ---------------------------------------------------------------------


def _divided(
    rows: DataFrame, report: TopicReport, progress: Sequence[QueueProgress]
) -> TopicReport:
    """Add the figures by time, queue and size to the report."""
    assert report.first_ms is not None
    assert report.last_ms is not None
    width_s = span_width_s(report.first_ms, report.last_ms)
    parts = rows.select(
        F.expr(f"stored - stored % {width_s * 1_000}").alias("span"),
        F.concat_ws("\x01", "brokerName", "queueId").alias("queue"),
        F.expr("cast(log2(greatest(size, 1)) AS int)").alias("sizeClass"),
        "size",
        "latency",
        "queueOffset",
        _is_unread(progress).alias("isUnread"),
    )
    sets: Any = [["span"], ["queue"], ["sizeClass"]]
    found = (
        parts.groupingSets(sets, "span", "queue", "sizeClass")
        .agg(
            F.count("*").alias("rows"),
            F.sum("size").alias("total"),
            F.percentile_approx("latency", [each / 100 for each in SERIES_PERCENTS]).alias(
                "latencies"
            ),
            F.min("queueOffset").alias("first"),
            F.max("queueOffset").alias("last"),
            F.count_if("isUnread").alias("unread"),
        )
        .collect()
    )
    lags = {(each.queue.broker_name, each.queue.queue_id): each.lag for each in progress}
    return msgspec.structs.replace(
        report,
        width_s=width_s,
        spans=filled([_span(row) for row in found if row["span"] is not None], width_s),
        queues=tuple(
            sorted(
                (_queue(row, lags) for row in found if row["queue"] is not None),
                key=lambda queue: (queue.broker, queue.queue_id),
            )
        ),
        size_classes=tuple(
            sorted(
                (
                    SizeClass(least=2 ** row["sizeClass"], rows=row["rows"])
                    for row in found
                    if row["sizeClass"] is not None
                ),
                key=lambda each: each.least,
            )
        ),
    )


def _is_unread(progress: Sequence[QueueProgress]) -> Column:
    """Whether the group has not consumed a message yet."""
    offsets: list[Column] = []
    for each in progress:
        name = f"{each.queue.broker_name}\x01{each.queue.queue_id}"
        offsets += [F.lit(name), F.lit(each.consumer_offset)]
    if not offsets:
        return F.lit(False)
    committed = F.element_at(F.create_map(*offsets), F.concat_ws("\x01", "brokerName", "queueId"))
    return F.col("queueOffset") >= committed


def _span(row: Row) -> Span:
    p50, p95, p99 = row["latencies"]
    return Span(
        start_ms=row["span"],
        rows=row["rows"],
        size=row["total"],
        latency_p50_ms=p50,
        latency_p95_ms=p95,
        latency_p99_ms=p99,
        unread=row["unread"],
    )


def _queue(row: Row, lags: Mapping[tuple[str, int], int]) -> QueueShare:
    broker, _, queue_id = row["queue"].rpartition("\x01")
    return QueueShare(
        broker=broker,
        queue_id=int(queue_id),
        rows=row["rows"],
        size=row["total"],
        first_offset=row["first"],
        last_offset=row["last"],
        lag=lags.get((broker, int(queue_id))),
    )
