"""Query builder: the analysed data frame of a pipeline from source to sink, and the query from it.

:func:`build` runs nothing and reads no message. It reports what Spark's analyser finds (unknown
columns and functions, invalid SQL), and what Spark itself would report only when the query runs: an
unknown format of a sink, unknown columns to partition by, and for topics everything that the sink
checks.

Each pipeline has a child session with its own views, so that every pipeline can have its rows as
the view ``input``.

A pipeline may name a function, ``python: module:function``. The folder of the pipeline file is on
the import path, so that ``jobs.alerts:transform`` is the function ``transform`` in
``jobs/alerts.py`` beside the file. Functions that run on executors (UDFs) are imported there by
name: so a module beside the file, or the package that it is in, is sent to them.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import pkgutil
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skylark.core.errors import ConfigError
from skylark.core.strict_yaml import nearest
from skylark.spark.error_translation import translate_pipeline_errors
from skylark.spark.errors import violation_text
from skylark.spark.jobs.job_runner import with_trigger
from skylark.spark.lag_listener import EXPECT_METRIC
from skylark.spark.pipelines.checkpoint_folders import local_path
from skylark.spark.pipelines.pipeline_file import FORMAT, Pipeline, PipelineFile, Trigger
from skylark.spark.pipelines.pipeline_start import name_in_errors
from skylark.spark.session import register
from skylark.spark.sink.sink_writer import stream_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Transform = Callable[["DataFrame"], "DataFrame"]

VIEW: Final = "input"
#: Conditions in errors about a format that Spark does not know.
UNKNOWN_FORMAT: Final = ("[DATA_SOURCE_NOT_FOUND]", "[KAFKA_DATA_SOURCE_NOT_ENABLED]")


@contextmanager
def pipeline_errors(pipeline: Pipeline) -> Iterator[None]:
    """Translate errors of Spark, and name the pipeline in them."""
    with name_in_errors(pipeline), translate_pipeline_errors():
        yield


def build(
    spark: SparkSession, document: PipelineFile, pipeline: Pipeline, *, strict: bool = True
) -> DataFrame:
    """The frame that goes into the sink; raises SkylarkError.

    ``strict``: the topic of the sink must be there now.
    """
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
        frame = check_expectations(pipeline, frame)
        _check_sink(pipeline, frame, strict=strict)
    return frame


def check_expectations(pipeline: Pipeline, frame: DataFrame) -> DataFrame:
    """Count the rows that violate ``expect``, and treat them by ``on_violation``.

    The counts are a metric that Spark observes, in the progress of each batch (``expect``). A
    condition that is null is violated.
    """
    if not pipeline.expect:
        return frame
    from pyspark.sql import functions as F

    for column in pipeline.expect:
        if column not in frame.columns:
            raise ConfigError(
                f"expect names the column {column}, which does not exist",
                hint=nearest(column, frame.columns),
            )
    checks = {
        column: F.coalesce(F.expr(f"(`{column}` {condition})").cast("boolean"), F.lit(False))
        for column, condition in pipeline.expect.items()
    }
    counts = [F.count_if(~check).alias(column) for column, check in checks.items()]
    frame = frame.observe(EXPECT_METRIC, *counts)
    if pipeline.on_violation == "keep":
        return frame
    for column, check in checks.items():
        if pipeline.on_violation == "drop":
            frame = frame.where(check)
            continue
        text = violation_text(pipeline.name, column, pipeline.expect[column])
        found = F.coalesce(F.col(f"`{column}`").cast("string"), F.lit("null"))
        failure = F.raise_error(F.concat(F.lit(text), found)).cast("boolean")
        frame = frame.where(F.when(check, F.lit(True)).otherwise(failure))
    return frame


def child_session(spark: SparkSession, document: PipelineFile) -> SparkSession:
    """A child session for a pipeline, with the settings of the file."""
    child = spark.newSession()
    for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions"):
        child.conf.set(name, str(spark.conf.get(name)))
    for name, value in document.conf.items():
        if child.conf.isModifiable(name):
            child.conf.set(name, value)
    return child


def _check_sink(pipeline: Pipeline, frame: DataFrame, *, strict: bool) -> None:
    sink = pipeline.sink
    if sink.topic_options is not None:
        given = {name.lower(): text for name, text in sink.given.items()}
        stream_writer(given, frame.schema, overwrite=False, strict=strict)
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
        writer = with_trigger(writer, None if trigger.available_now else trigger.interval_ms)
        return writer.start(sink_path(sink.path, document.path.absolute().parent))


def sink_path(text: str | None, base: Path) -> str | None:
    """The path of a sink; a relative one is relative to the folder of the file."""
    local = None if text is None else local_path(text, base)
    return text if local is None or not str(local).startswith(str(base)) else str(local)


# ---- functions of users -------------------------------------------------------------------------


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Put the folder of the file on the import path."""
    path = str(folder)
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)


def load_function(pipeline: Pipeline, folder: Path) -> Transform | None:
    """Import the function of a pipeline; None if it has none. Raises ConfigError."""
    if pipeline.python is None:
        return None
    module, _, name = pipeline.python.partition(":")
    where = f"pipeline {pipeline.name}: python: {pipeline.python}"
    try:
        found: Any = pkgutil.resolve_name(pipeline.python)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{where}: there is no module {error.name}",
                hint=f"put {module.replace('.', '/')}.py into {folder}, or install it",
            ) from error
        raise ConfigError(f"{where}: {module} needs the module {error.name}") from error
    except AttributeError as error:
        raise ConfigError(f"{where}: module {module} has no {name}") from error
    except Exception as error:
        raise ConfigError(
            f"{where}: the import failed: {type(error).__name__}: {error}",
            hint="--debug shows the traceback",
        ) from error
    if not callable(found):
        raise ConfigError(f"{where}: {name} is not a function")
    return found  # type: ignore[no-any-return]


def apply_function(pipeline: Pipeline, function: Transform, frame: DataFrame) -> DataFrame:
    """Call the function with the frame; raises ConfigError, and errors of Spark unchanged."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    where = f"pipeline {pipeline.name}: {pipeline.python}"
    try:
        found: Any = function(frame)
    except PySparkException:
        raise
    except Exception as error:
        raise ConfigError(
            f"{where} failed: {type(error).__name__}: {error}", hint="--debug shows where"
        ) from error
    if not isinstance(found, DataFrame):
        raise ConfigError(f"{where} returned {type(found).__name__}, not a DataFrame")
    return found


def ship_code(spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
    """Send the module beside the file, or its whole package, to the executors."""
    if pipeline.python is None:
        return
    top = pipeline.python.partition(":")[0].partition(".")[0]
    files = [folder / f"{top}.py", *sorted((folder / top).rglob("*.py"))]
    archive = _zipped({str(file.relative_to(folder)): file for file in files if file.is_file()})
    if archive is None:
        return
    # Spark accepts a name only once, so the name depends on the content.
    file = _shipped() / f"{top}-{hashlib.sha256(archive).hexdigest()[:16]}.zip"
    if not file.exists():
        file.write_bytes(archive)
    spark.addArtifacts(str(file), pyfile=True)


@cache
def _shipped() -> Path:
    """Folder from which executors fetch the code when their first task starts; removed at exit."""
    folder = tempfile.mkdtemp(prefix="skylark-code-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _zipped(files: dict[str, Path]) -> bytes | None:
    """A zip archive whose bytes depend on names and contents only."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes())
    return found.getvalue() if files else None
