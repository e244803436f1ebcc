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
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from pyspark.sql import SparkSession

from skylark.core.errors import SkylarkError
from skylark.spark.error_translation import translate_pipeline_errors
from skylark.spark.jobs.job_runner import JobProgress, follow_query
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile, Trigger
from skylark.spark.pipelines.pipeline_start import file_checkpoints
from skylark.spark.pipelines.query_builder import build, pipeline_errors, start_query
from skylark.spark.session import command_session, make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: For annotations in modules that must not import pyspark.
Session: TypeAlias = SparkSession

_CONNECT: Final = "sc://"
POLL_S: Final = 0.2


def open_session(
    document: PipelineFile, *, quiet: bool = True
) -> AbstractContextManager[SparkSession]:
    """A session for a file; see :func:`~skylark.spark.session.command_session`."""
    return command_session(partial(_make, document), quiet=quiet)


@translate_pipeline_errors()
def _make(document: PipelineFile, *, quiet: bool) -> SparkSession:
    if not document.master.startswith(_CONNECT):
        app_name = f"skylark pipeline {document.name}"
        return make_session(document.master, app_name=app_name, conf=document.conf, quiet=quiet)
    builder = SparkSession.builder.remote(document.master)
    for name, value in document.conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


#: Receiver of the progress of a pipeline by its name: called about once a second for each, and once
#: at its end, from several threads.
PipelineListener: TypeAlias = Callable[[str, JobProgress], object]


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one pipeline."""

    pipeline: str
    state: str  #: done, stopped or failed
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    lag: int | None = None
    problem: str | None = None


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
            asked = stop if trigger.available_now else ending
            # Started in this thread: in another one Spark does not find Python sources.
            query = _start(document, pipeline, frame, trigger)
            runs.append(pool.submit(_follow, pipeline, query, watcher, asked))
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
    watcher: PipelineListener | None,
    stop: threading.Event,
) -> PipelineRun:
    """Follow one pipeline; runs in a separate thread."""
    last = JobProgress(rows=0)

    def report(progress: JobProgress) -> None:
        nonlocal last
        last = progress
        if watcher is not None:
            watcher(pipeline.name, progress)

    try:
        if isinstance(query, SkylarkError):
            raise query
        with pipeline_errors(pipeline):
            totals = follow_query(query, report, stop)
    except SkylarkError as error:
        return PipelineRun(
            pipeline=pipeline.name,
            state="failed",
            rows=last.rows,
            lag=last.lag,
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
