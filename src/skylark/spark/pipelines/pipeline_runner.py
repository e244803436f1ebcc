"""Pipelines that run: one query each, side by side in one session.

All are analysed before the first starts. Each is followed by a thread of its own, to its end
(``availableNow``), until ``stop`` is set, or until it fails. When one fails, those that would go on
for ever are stopped as if a person had asked for it: they end the batch in hand, and the next run
goes on from their checkpoints. Those that end by themselves are waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from skylark.core.errors import SkylarkError
from skylark.spark.jobs.job_runner import JobProgress, drive
from skylark.spark.pipelines.pipeline_file import Document, Pipeline, Trigger
from skylark.spark.pipelines.pipeline_session import pipeline_errors
from skylark.spark.pipelines.pipeline_start import document_checkpoints
from skylark.spark.pipelines.query_builder import build, start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2


class Watcher(Protocol):
    """Whoever wants to know how pipelines go; called from several threads."""

    def progress(self, name: str, progress: JobProgress) -> None:
        """Called about once a second for each pipeline, and once at its end."""


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a pipeline."""

    pipeline: str
    state: str  #: done, stopped or failed
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    lag: int | None = None
    problem: str | None = None


class NoWatcher:
    """For callers that do not want to know."""

    def progress(self, name: str, progress: JobProgress) -> None:
        """Nothing."""


class _Report:
    """Tells a watcher about one pipeline, and remembers the last word."""

    def __init__(self, name: str, watcher: Watcher) -> None:
        self._name = name
        self._watcher = watcher
        self.last = JobProgress(rows=0)

    def progress(self, progress: JobProgress) -> None:
        self.last = progress
        self._watcher.progress(self._name, progress)


def run_pipelines(
    spark: SparkSession,
    document: Document,
    pipelines: Sequence[Pipeline],
    *,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
    available_now: bool = False,
) -> list[PipelineRun]:
    """Run pipelines to their end; ``available_now`` wins over their triggers.

    What is wrong before one has started is raised; later it is in the results.
    """
    frames = [(pipeline, build(spark, document, pipeline)) for pipeline in pipelines]
    stop = stop or threading.Event()
    ending = threading.Event()  # for those that would go on for ever
    runs: list[Future[PipelineRun]] = []
    with ThreadPoolExecutor(len(frames), "pipeline") as pool:
        for pipeline, frame in frames:
            trigger = Trigger(available_now=True) if available_now else pipeline.trigger
            report = _Report(pipeline.name, watcher or NoWatcher())
            asked = stop if trigger.available_now else ending
            # Started here: in another thread Spark would not know of Python sources.
            query = _start(document, pipeline, frame, trigger)
            runs.append(pool.submit(_follow, pipeline, query, report, asked))
        while waiting := wait(runs, POLL_S).not_done:
            ended = [run.result() for run in runs if run not in waiting]
            if stop.is_set() or any(run.state == "failed" for run in ended):
                ending.set()
        return [run.result() for run in runs]


def _start(
    document: Document, pipeline: Pipeline, frame: DataFrame, trigger: Trigger
) -> StreamingQuery | SkylarkError:
    try:
        location = document_checkpoints(document).location(pipeline.name)
        return start_query(document, pipeline, frame, location, trigger)
    except SkylarkError as error:
        return error


def _follow(
    pipeline: Pipeline,
    query: StreamingQuery | SkylarkError,
    report: _Report,
    stop: threading.Event,
) -> PipelineRun:
    """One pipeline, in a thread of its own."""
    try:
        if isinstance(query, SkylarkError):
            raise query
        with pipeline_errors(pipeline):
            totals = drive(query, report, stop)
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
