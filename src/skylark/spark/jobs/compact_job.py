"""Compact job: writes the latest message of each key, without deleted keys.

The latest message is the one that was stored last, and for equal times the one with the higher
offset. A key whose latest message has the property ``DELETED=true`` (a tombstone) is left out.
Messages without a key are counted and left out. The result is written as a whole: a Parquet
folder, a Delta or Iceberg table, or messages of another topic.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.observation import Observation

from skylark.core.clock import SystemClock
from skylark.core.errors import ConfigError
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.job_runner import Report, cluster_options, follow_batch
from skylark.spark.jobs.queue_spans import queue_spans
from skylark.spark.lake.lake_table import (
    LakeFormat,
    open_table,
    replace_rows,
    require_format,
)
from skylark.spark.source.schema import ALL_TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOMBSTONE: Final = "DELETED"
#: Columns that are copied to messages of the new topic.
_SENT: Final = ("body", "tags", "keys", "properties", "shardingKey", "flag")


class CompactOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a compact job; the result goes to a lake or a topic."""

    topic: str
    key: str = "keys"  #: an SQL expression over the columns of the source
    namesrv: str | None = None
    to_lake: str | None = None
    to_topic: str | None = None
    format: LakeFormat = "parquet"
    overwrite: bool = False  #: replace an existing lake

    def __post_init__(self) -> None:
        if (self.to_lake is None) == (self.to_topic is None):
            raise ConfigError("the result goes to a lake or to a topic", hint="give one of the two")
        if self.to_topic == self.topic:
            raise ConfigError(
                f"{self.topic} cannot be compacted into itself", hint="name another topic"
            )
        if self.overwrite and self.to_lake is None:
            raise ConfigError("a topic cannot be overwritten")
        require_format(self.format)

    @property
    def cluster(self) -> dict[str, str]:
        return cluster_options(self.namesrv)

    @property
    def source(self) -> dict[str, str]:
        """The options of the source."""
        return {**self.cluster, "topic": self.topic, "columns": ",".join(ALL_TYPES)}


class CompactSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run or a dry run."""

    topic: str
    to: str
    rows: int  #: rows read
    without_key: int
    keys: int
    deleted: int  #: keys whose latest message is a tombstone
    written: int
    seconds: float


def run(
    spark: SparkSession, options: CompactOptions, report: Report, stop: Event | None = None
) -> CompactSummary:
    """Write the latest messages; raises SkylarkError."""
    return _run(spark, options, report, stop, _write)


def plan(
    spark: SparkSession, options: CompactOptions, report: Report, stop: Event | None = None
) -> CompactSummary:
    """Read everything and count, without writing; raises SkylarkError."""
    return _run(spark, options, report, stop, _count)


def _run(
    spark: SparkSession,
    options: CompactOptions,
    report: Report,
    stop: Event | None,
    finish: Callable[[DataFrame, CompactOptions], None],
) -> CompactSummary:
    clock = SystemClock()
    start = clock.monotonic()
    total = sum(span.rows for span in queue_spans(options.source))
    with translate_errors():
        read, found = Observation(), Observation()
        frame = spark.read.format("rocketmq").options(**options.source).load()
        latest = latest_rows(frame, options.key, read, found)
        follow_batch(
            spark,
            lambda: finish(latest, options),
            report,
            stop,
            counted="inputRecords",
            total=total,
        )
        before, after = read.get, found.get
    return CompactSummary(
        topic=options.topic,
        to=options.to_lake or options.to_topic or "",
        rows=before["rows"],
        without_key=before["without_key"],
        keys=after["keys"],
        deleted=after["deleted"],
        written=after["keys"] - after["deleted"],
        seconds=round(clock.monotonic() - start, 3),
    )


def latest_rows(frame: DataFrame, key: str, read: Observation, found: Observation) -> DataFrame:
    """The latest row of each key, with the key as column ``key``."""
    columns = frame.columns
    keyed = frame.withColumn("key", F.expr(key).cast("string"))
    has_key = F.coalesce(F.col("key") != "", F.lit(False))
    keyed = keyed.observe(
        read, F.count("*").alias("rows"), F.count_if(~has_key).alias("without_key")
    )
    order = F.struct("storeTimestamp", "queueOffset", "brokerName", "queueId")
    latest = (
        keyed.where(has_key)
        .groupBy("key")
        .agg(F.max_by(F.struct(*columns), order).alias("latest"))
        .select("key", "latest.*")
    )
    deleted = F.coalesce(F.lower(F.col("properties")[TOMBSTONE]) == "true", F.lit(False))
    latest = latest.observe(found, F.count("*").alias("keys"), F.count_if(deleted).alias("deleted"))
    return latest.where(~deleted)


def _write(latest: DataFrame, options: CompactOptions) -> None:
    if options.to_topic is not None:
        sink = {**options.cluster, "topic": options.to_topic}
        writer = latest.select(*_SENT).write.format("rocketmq").options(**sink)
        writer.mode("append").save()
        return
    assert options.to_lake is not None
    if options.format != "parquet":
        table = open_table(options.format, options.to_lake)
        if table.exists() and not options.overwrite:
            raise _exists_already(options.to_lake)
        replace_rows(table, latest)
        return
    mode = "overwrite" if options.overwrite else "errorifexists"
    try:
        latest.write.mode(mode).parquet(options.to_lake)
    except AnalysisException as error:
        if not (error.getCondition() or "").endswith("ALREADY_EXISTS"):
            raise
        raise _exists_already(options.to_lake) from None


def _exists_already(lake: str) -> ConfigError:
    return ConfigError(f"{lake} exists already", hint="--overwrite replaces it")


def _count(latest: DataFrame, options: CompactOptions) -> None:
    latest.write.format("noop").mode("overwrite").save()
