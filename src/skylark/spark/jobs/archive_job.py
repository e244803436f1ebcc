"""Archive job: writes topics to a lake, every message exactly once.

::

    <output>/_spark_metadata/...            the list of valid files: readers must honour it
    <output>/dt=2026-11-01/topic=orders/part-....parquet
    <output>.checkpoint/...                 how far the archive is

It keeps all columns of the source, partitioned by the UTC day of ``storeTimestamp`` and by topic.
Spark's file sink makes it exactly once: files that a crash has left are not in its list. Delta and
Iceberg need their jars; an Iceberg table has a name, not a folder.

**Folder and checkpoint belong together.** Spark counts batches in both, and skips a batch that the
folder already has. With a new checkpoint it would silently drop the first batches for an old
folder. :func:`check_output` refuses such combinations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from threading import Event
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType
from pyspark.sql.utils import is_remote

from skylark.core.errors import ConfigError
from skylark.spark.error_translation import condition_of, is_spark_error, translate_errors
from skylark.spark.jobs.job_runner import (
    Report,
    StreamJobOptions,
    checkpoint_state,
    run_query,
    with_trigger,
)
from skylark.spark.jobs.queue_spans import QueueSpan, queue_spans
from skylark.spark.source.schema import ALL_TYPES, source_schema
from skylark.spark.source.stream_offset import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LakeFormat = Literal["parquet", "delta", "iceberg"]
ROWS_PER_BATCH: Final = 1_000_000
DAY: Final = "dt"
_JARS: Final = {
    "delta": "io.delta:delta-spark_2.13:VERSION",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:VERSION",
}
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
        _require_format(spark, options)
        check_output(spark, options)
        frame = spark.readStream.format("rocketmq").options(**options.source).load()
        writer = (
            frame.withColumn(DAY, utc_day("storeTimestamp"))
            .writeStream.format(options.format)
            .option("checkpointLocation", options.checkpoint_folder)
            .partitionBy(DAY, "topic")
            .queryName(f"archive of {', '.join(options.topics)}")
        )
        writer = with_trigger(writer, options.interval_ms)
        start = writer.toTable if options.format == "iceberg" else writer.start
        totals = run_query(lambda: start(options.output), report, stop)
    return ArchiveSummary(
        output=options.output,
        checkpoint=options.checkpoint_folder,
        rows=totals.rows,
        **totals.figures,
    )


def plan(spark: SparkSession, options: ArchiveOptions) -> list[QueueSpan]:
    """The ranges that a run would archive now; raises SkylarkError."""
    with translate_errors():
        _require_format(spark, options)
        return queue_spans(options.source, check_output(spark, options))


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
    # With Spark Connect the folder is on the server, where we cannot list it.
    if options.format == "parquet" and not is_remote():
        # Spark writes the folder first: after a crash it may be one batch ahead.
        done = -1 if state.done is None else state.done
        stored = _last_stored(spark, output)
        if stored not in (done, done + 1) or (stored >= 0 and state.planned is None):
            raise ConfigError(
                f"{output} was not written with the checkpoint {checkpoint}: the folder has"
                f" {stored + 1} batches, the checkpoint {done + 1}",
                hint="name the checkpoint of this folder, or use a new folder and checkpoint",
            )
    return state.offset


def _last_stored(spark: SparkSession, output: str) -> int:
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
        if lake_format != "parquet":
            frame = spark.read.format(lake_format).load(path)
            return frame.select(*_known_columns(path, frame.columns))
        try:
            columns = spark.read.parquet(path).columns
        except AnalysisException as error:
            if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                raise
            columns = [*ALL_TYPES, DAY]  # an empty archive
        fields = source_schema([name for name in _known_columns(path, columns) if name != DAY])
        schema = StructType([*fields, *[StructField(DAY, DateType())] * (DAY in columns)])
        # With explicit types: Spark would read a topic named 2026 as a number.
        return spark.read.schema(schema).parquet(path)


def _known_columns(path: str, columns: Iterable[str]) -> list[str]:
    known = [name for name in columns if name in ALL_TYPES or name == DAY]
    needed = ("topic", "brokerName", "queueId", "queueOffset", "body")
    if missing := [name for name in needed if name not in known]:
        raise ConfigError(
            f"{path} is not an archive: it has no column {', '.join(missing)}",
            hint="skylark job archive makes one",
        )
    return known


def _require_format(spark: SparkSession, options: ArchiveOptions) -> None:
    """Raise ConfigError if the jars of the format are missing."""
    if options.format == "parquet":
        return
    try:
        spark.read.format(options.format).load(options.output)
    except Exception as error:
        if not is_spark_error(error):
            raise
        # All other errors are due to a table that does not exist yet.
        if condition_of(error) == "DATA_SOURCE_NOT_FOUND":
            raise ConfigError(
                f"Spark has no jars of {options.format}",
                hint=f"name them with --conf spark.jars.packages={_JARS[options.format]},"
                " or archive as parquet",
            ) from None
