"""Query builder: the analysed data frame of a pipeline from source to sink, and the query from it.

:func:`build` runs nothing and reads no message. It reports what Spark's analyser finds (unknown
columns and functions, invalid SQL), and what Spark itself would report only when the query runs: an
unknown format of a sink, unknown columns to partition by, and for topics everything that the sink
checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from skylark.core.errors import ConfigError
from skylark.core.strict_yaml import nearest
from skylark.spark.pipelines.checkpoint_folders import local_path
from skylark.spark.pipelines.pipeline_file import FORMAT, Pipeline, PipelineFile, Trigger
from skylark.spark.pipelines.pipeline_session import child_session, pipeline_errors
from skylark.spark.pipelines.user_functions import (
    apply_function,
    importable,
    load_function,
    ship_code,
)
from skylark.spark.session import register
from skylark.spark.sink.sink_writer import stream_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

VIEW: Final = "input"
#: Conditions in errors about a format that Spark does not know.
UNKNOWN_FORMAT: Final = ("[DATA_SOURCE_NOT_FOUND]", "[KAFKA_DATA_SOURCE_NOT_ENABLED]")


def build(spark: SparkSession, document: PipelineFile, pipeline: Pipeline) -> DataFrame:
    """The frame that goes into the sink; raises SkylarkError."""
    folder = document.path.absolute().parent
    with pipeline_errors(pipeline), importable(folder):
        function = load_function(pipeline, folder)
        session = child_session(spark, document)
        register(session)  # pipelines run side by side: see register()
        ship_code(session, pipeline, folder)
        frame = session.readStream.format(FORMAT).options(**pipeline.source.given).load()
        if pipeline.sql is not None:
            frame.createOrReplaceTempView(VIEW)
            frame = session.sql(pipeline.sql)
        if function is not None:
            frame = apply_function(pipeline, function, frame)
        if not frame.isStreaming:
            raise ConfigError("the result is not a stream", hint=f"select from the view {VIEW}")
        _check_sink(pipeline, frame)
    return frame


def _check_sink(pipeline: Pipeline, frame: DataFrame) -> None:
    sink = pipeline.sink
    if sink.topic_options is not None:
        given = {name.lower(): text for name, text in sink.given.items()}
        stream_writer(given, frame.schema, overwrite=False)
        return
    columns = {name.lower() for name in frame.columns}
    for name in sink.partition_by:
        if name.lower() not in columns:
            raise ConfigError(
                f"partitionBy names the column {name}, which does not exist",
                hint=nearest(name, frame.columns),
            )
    try:
        _ = frame.sparkSession.read.format(sink.format).load().schema
    except Exception as error:
        if any(mark in str(error) for mark in UNKNOWN_FORMAT):
            raise


def start_query(
    document: PipelineFile, pipeline: Pipeline, frame: DataFrame, location: str, trigger: Trigger
) -> StreamingQuery:
    """Start the query of a pipeline, with its checkpoint at ``location``."""
    sink = pipeline.sink
    with pipeline_errors(pipeline):
        writer = (
            frame.writeStream.format(sink.format)
            .queryName(pipeline.name)
            .outputMode(sink.output_mode)
            .option("checkpointLocation", location)
            .options(**sink.given)
        )
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        if trigger.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger.interval_ms} milliseconds")
        return writer.start(sink_path(sink.path, document.path.absolute().parent))


def sink_path(text: str | None, base: Path) -> str | None:
    """The path of a sink; a relative one is relative to the folder of the file."""
    local = None if text is None else local_path(text, base)
    return text if local is None or not str(local).startswith(str(base)) else str(local)
