"""Runner of pipelines: runs the queries of a file side by side in one session.

All queries are analysed before the first one starts. A thread for each follows it until it ends by
itself (``availableNow``), ``stop`` is set, or it fails. When one fails, the endless ones are
stopped as if the user had asked for it: they finish their current batch, and the next run continues
from their checkpoints. The runner waits for those that end by themselves.

``spark.master`` of a file is any master of Spark: ``local[*]``, ``spark://host:7077``, ``yarn``,
``k8s://...``, or ``sc://host:15002`` for a Spark Connect server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec
from pyspark.sql import SparkSession

from skylark.core.errors import SkylarkError
from skylark.spark.error_translation import translate_pipeline_errors
from skylark.spark.jobs.job_runner import JobProgress, follow_query
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile, Trigger
from skylark.spark.pipelines.pipeline_start import file_checkpoints
from skylark.spark.pipelines.query_builder import build, pipeline_errors, start_query
from skylark.spark.session import make_session, silence_error_loggers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: For annotations in modules that must not import pyspark.
Session: TypeAlias = SparkSession

_CONNECT: Final = "sc://"
POLL_S: Final = 0.2


@contextmanager
def open_session(document: PipelineFile, *, quiet: bool = True) -> Iterator[SparkSession]:
    """A session for a file; raises ConfigError.

    An active session is used and not stopped at the end. ``quiet`` turns the log of the JVM off:
    the error is reported in one sentence, without stack traces.
    """
    active = SparkSession.getActiveSession()
    if quiet:
        silence_error_loggers()
    with translate_pipeline_errors():
        spark = _make(document, quiet=quiet and active is None)
    try:
        yield spark
    finally:
        if active is None:
            spark.stop()


def _make(document: PipelineFile, *, quiet: bool) -> SparkSession:
    if not document.master.startswith(_CONNECT):
        app_name = f"skylark pipeline {document.name}"
        return make_session(document.master, app_name=app_name, conf=document.conf, quiet=quiet)
    builder = SparkSession.builder.remote(document.master)
    for name, value in document.conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class PipelineListener(Protocol):
    """Receiver of progress reports; called from several threads."""

    def progress(self, name: str, progress: JobProgress) -> None:
        """Called about once a second for each pipeline, and once at its end."""


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one pipeline."""

    pipeline: str
    state: str  #: done, stopped or failed
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    lag: int | None = None
    problem: str | None = None


class NoListener:
    """Ignores all progress reports."""

    def progress(self, name: str, progress: JobProgress) -> None:
        """Ignored."""


class _Report:
    """Passes the progress of one pipeline on to a listener, and keeps the last report."""

    def __init__(self, name: str, watcher: PipelineListener) -> None:
        self._name = name
        self._watcher = watcher
        self.last = JobProgress(rows=0)

    def progress(self, progress: JobProgress) -> None:
        self.last = progress
        self._watcher.progress(self._name, progress)


def run_pipelines(
    spark: SparkSession,
    document: PipelineFile,
    pipelines: Sequence[Pipeline],
    *,
    watcher: PipelineListener | None = None,
    stop: threading.Event | None = None,
    available_now: bool = False,
) -> list[PipelineRun]:
    """Run pipelines to their end; ``available_now`` overrides their triggers.

    Raises errors that occur before the first one has started; later ones are in the results.
    """
    frames = [(pipeline, build(spark, document, pipeline)) for pipeline in pipelines]
    stop = stop or threading.Event()
    ending = threading.Event()  # for the endless ones
    runs: list[Future[PipelineRun]] = []
    with ThreadPoolExecutor(len(frames), "pipeline") as pool:
        for pipeline, frame in frames:
            trigger = Trigger(available_now=True) if available_now else pipeline.trigger
            report = _Report(pipeline.name, watcher or NoListener())
            asked = stop if trigger.available_now else ending
            # Started in this thread: in another one Spark does not find Python sources.
            query = _start(document, pipeline, frame, trigger)
            runs.append(pool.submit(_follow, pipeline, query, report, asked))
        while waiting := wait(runs, POLL_S).not_done:
            ended = [run.result() for run in runs if run not in waiting]
            if stop.is_set() or any(run.state == "failed" for run in ended):
                ending.set()
        return [run.result() for run in runs]


def _start(
    document: PipelineFile, pipeline: Pipeline, frame: DataFrame, trigger: Trigger
) -> StreamingQuery | SkylarkError:
    try:
        location = file_checkpoints(document).location(pipeline.name)
        return start_query(document, pipeline, frame, location, trigger)
    except SkylarkError as error:
        return error


def _follow(
    pipeline: Pipeline,
    query: StreamingQuery | SkylarkError,
    report: _Report,
    stop: threading.Event,
) -> PipelineRun:
    """Follow one pipeline; runs in a separate thread."""
    try:
        if isinstance(query, SkylarkError):
            raise query
        with pipeline_errors(pipeline):
            totals = follow_query(query, report, stop)
    except SkylarkError as error:
        return PipelineRun(
            pipeline=pipeline.name,
            state="failed",
            rows=report.last.rows,
            lag=report.last.lag,
            problem=" ".join(str(error).split()),
        )
    return PipelineRun(
        pipeline=pipeline.name,
        state="stopped" if totals.stopped else "done",
        batches=totals.batches,
        rows=totals.rows,
        seconds=totals.seconds,
        lag=totals.lag,
    )
