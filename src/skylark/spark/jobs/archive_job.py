"""Archive job: writes topics to a lake, every message exactly once.

::

    <output>/_spark_metadata/...            the list of valid files: readers must honour it
    <output>/dt=2026-11-01/topic=orders/part-....parquet
    <output>.checkpoint/...                 how far the archive is

It keeps all columns of the source, partitioned by the UTC day of ``storeTimestamp`` and by topic.
Spark's file sink makes it exactly once: files that a crash has left are not in its list. Tables of
Delta and Iceberg are written by :mod:`skylark.spark.lake`: their own commits are this list.

**Folder and checkpoint belong together.** Spark counts batches in both, and skips a batch that the
folder already has. With a new checkpoint it would silently drop the first batches for an old
folder. A table knows the last batch of each checkpoint, so several archives may share it, each with
its own topics. :func:`check_output` refuses all other combinations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType
from pyspark.sql.utils import is_remote

from skylark.core.errors import ConfigError
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.job_runner import (
    Report,
    StreamJobOptions,
    checkpoint_state,
    query_of,
    run_query,
    running_query,
    with_trigger,
)
from skylark.spark.jobs.queue_spans import QueueSpan, queue_spans
from skylark.spark.lake.lake_table import (
    LakeFormat,
    LakeTable,
    append_batch,
    arrow_schema,
    open_table,
    read_table,
    require_format,
)
from skylark.spark.source.schema import ALL_TYPES, source_schema
from skylark.spark.source.stream_offset import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_PER_BATCH: Final = 1_000_000
DAY: Final = "dt"
_PARTITIONS: Final = (DAY, "topic")
_BATCH_FILE: Final = re.compile(r"(\d+)(?:\.compact)?")


class ArchiveOptions(StreamJobOptions, frozen=True, kw_only=True):
    """Options of an archive job."""

    topics: tuple[str, ...]
    output: str  #: a folder, or the name of an Iceberg table
    format: LakeFormat = "parquet"
    checkpoint: str | None = None  #: default: beside the folder
    rows_per_batch: int = ROWS_PER_BATCH

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("no topic is given")
        require_format(self.format)
        if self.format == "iceberg" and self.checkpoint is None:
            raise ConfigError("an archive in Iceberg needs a checkpoint", hint="give --checkpoint")

    @property
    def checkpoint_folder(self) -> str:
        return self.checkpoint or f"{self.output.rstrip('/')}.checkpoint"

    @property
    def source(self) -> dict[str, str]:
        """The options of the source."""
        return self.stream_source(
            self.rows_per_batch, topics=",".join(self.topics), columns=",".join(ALL_TYPES)
        )


class ArchiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run."""

    output: str
    checkpoint: str
    rows: int
    batches: int
    seconds: float
    rows_per_second: int
    lag: int | None
    stopped: bool


def run(
    spark: SparkSession, options: ArchiveOptions, report: Report, stop: Event | None = None
) -> ArchiveSummary:
    """Archive all messages, or run on until ``stop`` is set; raises SkylarkError."""
    with translate_errors():
        check_output(spark, options)
        frame = spark.readStream.format("rocketmq").options(**options.source).load()
        frame = frame.withColumn(DAY, utc_day("storeTimestamp"))
        if options.format == "parquet":
            writer = frame.writeStream.format("parquet").partitionBy(*_PARTITIONS)
            writer = writer.option("path", options.output)
        else:
            table = open_table(options.format, options.output)
            table.create(arrow_schema(frame.schema), _PARTITIONS)
            writer = frame.writeStream.foreachBatch(partial(_append, table))
        writer = writer.option("checkpointLocation", options.checkpoint_folder)
        writer = writer.queryName(f"archive of {', '.join(options.topics)}")
        writer = with_trigger(writer, options.interval_ms)
        totals = run_query(writer.start, report, stop)
    return ArchiveSummary(
        output=options.output,
        checkpoint=options.checkpoint_folder,
        rows=totals.rows,
        **totals.figures,
    )


def plan(spark: SparkSession, options: ArchiveOptions) -> list[QueueSpan]:
    """The ranges that a run would archive now; raises SkylarkError."""
    with translate_errors():
        return queue_spans(options.source, check_output(spark, options))


def _append(table: LakeTable, frame: DataFrame, batch: int) -> None:
    append_batch(table, frame, running_query(frame), batch)


def utc_day(column: str) -> Column:
    """The UTC day of a time, independent of the time zone of the session."""
    return F.to_date(F.to_utc_timestamp(F.col(column), F.current_timezone()))


# ---- folder and checkpoint -----------------------------------------------------------------------


def check_output(spark: SparkSession, options: ArchiveOptions) -> StreamOffset | None:
    """The offset at which the archive continues; None if it is new.

    Raises ConfigError if the checkpoint is one of other topics or of another folder.
    """
    state = checkpoint_state(spark, options.checkpoint_folder)
    output, checkpoint = options.output, options.checkpoint_folder
    known = state.planned_offset
    if known is not None and known.topics != set(options.topics):
        raise ConfigError(
            f"the checkpoint {checkpoint} is one of topic {', '.join(sorted(known.topics))},"
            f" not of {', '.join(options.topics)}",
            hint="use a separate checkpoint for each archive",
        )
    stored = _last_stored(spark, options)
    # A batch is in the lake first: after a crash it may be one ahead.
    done = -1 if state.done is None else state.done
    if stored is None:
        return state.offset
    if stored not in (done, done + 1) or (stored >= 0 and state.planned is None):
        raise ConfigError(
            f"{output} was not written with the checkpoint {checkpoint}: the folder has"
            f" {stored + 1} batches, the checkpoint {done + 1}",
            hint="name the checkpoint of this folder, or use a new folder and checkpoint",
        )
    if stored < 0 and options.format != "parquet":
        _require_other_topics(open_table(options.format, output), options)
    return state.offset


def _require_other_topics(table: LakeTable, options: ArchiveOptions) -> None:
    """Raise ConfigError if another archive writes one of the topics to the table."""
    known = table.values("topic") if table.exists() else set()
    if both := sorted(known.intersection(options.topics)):
        raise ConfigError(
            f"{options.output} has messages of topic {', '.join(both)} already, which were not"
            f" written with the checkpoint {options.checkpoint_folder}",
            hint="name the checkpoint of that archive, or use a new lake",
        )


def _last_stored(spark: SparkSession, options: ArchiveOptions) -> int | None:
    """The last batch that the lake has of this checkpoint; -1 if none, None if it is unknown."""
    if options.format != "parquet":
        if is_remote():
            raise ConfigError(
                f"Spark Connect cannot archive to {options.format}", hint="archive as parquet"
            )
        table = open_table(options.format, options.output)
        query = query_of(spark, options.checkpoint_folder)
        return -1 if query is None else table.last_batch(query)
    # With Spark Connect the folder is on the server, where we cannot list it.
    return None if is_remote() else _last_listed(spark, options.output)


def _last_listed(spark: SparkSession, output: str) -> int:
    """The last batch in the log of the file sink, on any file system; -1 if there is none.

    Sources of Spark ignore folders of this name, so it is read by Hadoop's file system.
    """
    context = spark.sparkContext
    assert context._jvm is not None
    path = context._jvm.org.apache.hadoop.fs.Path(f"{output.rstrip('/')}/_spark_metadata")
    system = path.getFileSystem(context._jsc.hadoopConfiguration())
    if not system.exists(path):
        return -1
    names = (str(entry.getPath().getName()) for entry in system.listStatus(path))
    found = (_BATCH_FILE.fullmatch(name) for name in names)
    return max((int(each[1]) for each in found if each), default=-1)


# ---- the lake ------------------------------------------------------------------------------------


def read_lake(spark: SparkSession, path: str, lake_format: LakeFormat) -> DataFrame:
    """The rows of an archive: its source columns and ``dt``.

    Raises NotFoundError if it does not exist, ConfigError if it is not an archive.
    """
    with translate_errors():
        table = None if lake_format == "parquet" else open_table(lake_format, path)
        found = _parquet_columns(spark, path) if table is None else table.columns()
        columns = _known_columns(path, found)
        fields = source_schema([name for name in columns if name != DAY])
        schema = StructType([*fields, *[StructField(DAY, DateType())] * (DAY in columns)])
        if table is not None:
            return read_table(spark, table, schema)
        # With explicit types: Spark would read a topic named 2026 as a number.
        return spark.read.schema(schema).parquet(path)


def _parquet_columns(spark: SparkSession, path: str) -> list[str]:
    try:
        return spark.read.parquet(path).columns
    except AnalysisException as error:
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        return [*ALL_TYPES, DAY]  # an empty archive


def _known_columns(path: str, columns: Iterable[str]) -> list[str]:
    known = [name for name in columns if name in ALL_TYPES or name == DAY]
    needed = ("topic", "brokerName", "queueId", "queueOffset", "body")
    if missing := [name for name in needed if name not in known]:
        raise ConfigError(
            f"{path} is not an archive: it has no column {', '.join(missing)}",
            hint="skylark job archive makes one",
        )
    return known
