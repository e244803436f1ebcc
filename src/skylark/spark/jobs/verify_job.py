"""Verify job: checks that a lake has the messages of a topic, by counts and CRC sums.

Spark sums up both sides, range by range: the number of messages, and the sum of a CRC-32 over
offset, body, tags, keys and properties of each. A message that is missing, duplicated, changed or
misplaced changes one of the two. Only ranges that differ reach the driver.

It compares all messages that the topic has when the job starts. Messages that retention has deleted
from the topic are only in the lake, and are counted as ``expired``. An archive that lags differs
from its topic; ``archived_only`` compares each queue up to the last offset in the lake.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import functions as F

from skylark.core.clock import SystemClock
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.archive_job import read_lake
from skylark.spark.jobs.job_runner import Report, cluster_options, follow_batch
from skylark.spark.jobs.queue_spans import QueueSpan, queue_spans
from skylark.spark.lake.lake_table import LakeFormat, require_format
from skylark.spark.source.stream_offset import queue_tree

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RANGE_SIZE: Final = 100_000
#: Ranges that are listed; all are counted.
DIFFERENCES_MAX: Final = 1_000
_COMPARED: Final = ("brokerName", "queueId", "queueOffset", "body", "tags", "keys", "properties")
_RANGE: Final = ("brokerName", "queueId", "part")
_BOUNDS: Final = "brokerName string, queueId int, low bigint, high bigint"


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a verify job."""

    topic: str
    lake: str
    namesrv: str | None = None
    format: LakeFormat = "parquet"
    range_size: int = RANGE_SIZE
    archived_only: bool = False

    def __post_init__(self) -> None:
        require_format(self.format)

    @property
    def source(self) -> dict[str, str]:
        """The options of the source."""
        return {
            **cluster_options(self.namesrv),
            "topic": self.topic,
            "columns": ",".join(_COMPARED),
        }


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A range of offsets in which topic and lake differ."""

    broker_name: str
    queue_id: int
    first_offset: int
    last_offset: int
    topic_rows: int
    lake_rows: int
    topic_crc: int
    lake_crc: int


class VerifySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result."""

    topic: str
    lake: str
    agree: bool
    ranges: int
    different: int
    topic_rows: int
    lake_rows: int
    expired: int  #: rows of the lake that the topic no longer has
    seconds: float
    differences: list[Difference]  #: the first of them


def run(
    spark: SparkSession, options: VerifyOptions, report: Report, stop: Event | None = None
) -> VerifySummary:
    """Compare topic and lake; raises SkylarkError."""
    clock = SystemClock()
    start = clock.monotonic()
    spans = queue_spans(options.source)
    with translate_errors():
        lake = read_lake(spark, options.lake, options.format)
        lake = lake.where(F.col("topic") == options.topic)
        if options.archived_only:
            spans = _archived(lake, spans)
        offsets = {
            "startingOffsets": json.dumps(queue_tree({span.queue: span.start for span in spans})),
            "endingOffsets": json.dumps(queue_tree({span.queue: span.end for span in spans})),
        }
        topic = spark.read.format("rocketmq").options(**options.source, **offsets).load()
        bounds = spark.createDataFrame(
            [(span.broker_name, span.queue_id, span.start, span.end) for span in spans], _BOUNDS
        )
        placed = lake.join(F.broadcast(bounds), ["brokerName", "queueId"], "left")
        expired = placed.where(F.coalesce(F.col("queueOffset") < F.col("low"), F.lit(True))).count()
        inside = placed.where(
            (F.col("queueOffset") >= F.col("low")) & (F.col("queueOffset") < F.col("high"))
        )
        joined = (
            sums(topic, options.range_size, "topic")
            .join(sums(inside, options.range_size, "lake"), list(_RANGE), "full")
            .fillna(0)
            .withColumn("different", _different())
            .persist()
        )
        try:
            work = partial(_result, joined, options)
            found = follow_batch(spark, work, report, stop, counted="inputRecords")
        finally:
            joined.unpersist()
    return msgspec.structs.replace(
        found, expired=expired, seconds=round(clock.monotonic() - start, 3)
    )


def sums(rows: DataFrame, range_size: int, side: str) -> DataFrame:
    """Count and CRC sum of each range of offsets."""
    part = F.floor(F.col("queueOffset") / range_size).cast("bigint")
    return (
        rows.withColumn("part", part)
        .groupBy(*_RANGE)
        .agg(F.count("*").alias(f"{side}_rows"), F.sum(row_crc()).alias(f"{side}_crc"))
    )


def row_crc() -> Column:
    """The CRC-32 of one message with its offset."""
    properties = F.array_sort(F.map_entries("properties")).cast("string")
    texts = F.concat_ws("\u0001", F.col("queueOffset").cast("string"), "tags", "keys", properties)
    return F.crc32(F.concat(texts.cast("binary"), F.lit(b"\x02"), F.col("body")))


def _different() -> Column:
    return (F.col("topic_rows") != F.col("lake_rows")) | (F.col("topic_crc") != F.col("lake_crc"))


def _archived(lake: DataFrame, spans: Sequence[QueueSpan]) -> list[QueueSpan]:
    """The spans, cut at the last offset of each queue in the lake."""
    ends = lake.groupBy("brokerName", "queueId").agg(F.max("queueOffset").alias("last"))
    last = {(row.brokerName, row.queueId): row.last for row in ends.toLocalIterator()}
    cut = []
    for span in spans:
        archived = last.get((span.broker_name, span.queue_id), -1) + 1
        end = max(span.start, min(span.end, archived))
        cut.append(msgspec.structs.replace(span, end=end, rows=end - span.start))
    return cut


def _result(joined: DataFrame, options: VerifyOptions) -> VerifySummary:
    totals = joined.agg(
        F.count("*").alias("ranges"),
        F.count_if("different").alias("different"),
        F.coalesce(F.sum("topic_rows"), F.lit(0)).alias("topic_rows"),
        F.coalesce(F.sum("lake_rows"), F.lit(0)).alias("lake_rows"),
    ).first()
    assert totals is not None, "sums are one row"
    size = options.range_size
    worst = joined.where("different").sort(*_RANGE).limit(DIFFERENCES_MAX)
    worst = worst.select(
        F.col("brokerName").alias("broker_name"),
        F.col("queueId").alias("queue_id"),
        (F.col("part") * size).alias("first_offset"),
        ((F.col("part") + 1) * size - 1).alias("last_offset"),
        *("topic_rows", "lake_rows", "topic_crc", "lake_crc"),
    )
    return VerifySummary(
        topic=options.topic,
        lake=options.lake,
        agree=totals.different == 0,
        **totals.asDict(),
        expired=0,
        seconds=0.0,
        differences=[Difference(**row.asDict()) for row in worst.toLocalIterator()],
    )
