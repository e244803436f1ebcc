"""Runner of pipelines: runs the queries of a file side by side in one session.

All queries are analysed before the first one starts. A thread for each follows it until it ends by
itself (``availableNow``), ``stop`` is set, or it fails. The policy of the pipeline
(:class:`~skylark.spark.pipelines.pipeline_file.RestartPolicy`) decides what happens then: it is
started again from its checkpoint after a pause, or it is left alone while the others run on, or the
endless ones are stopped as if the user had asked for it. A mistake in the file or lost messages are
not mended by a restart.

``spark.master`` of a file is any master of Spark: ``local[*]``, ``spark://host:7077``, ``yarn``,
``k8s://...``, or ``sc://host:15002`` for a Spark Connect server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from pyspark.sql import SparkSession

from skylark.core.clock import SystemClock, TimeSource
from skylark.core.errors import ConfigError, SkylarkError
from skylark.spark.error_translation import translate_pipeline_errors
from skylark.spark.errors import DataLossError, RefusedError, WorkerStartError
from skylark.spark.jobs.job_runner import WORKER_STARTS, JobProgress, follow_query
from skylark.spark.pipelines.last_run import LastRun, write_last_run
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile, Trigger
from skylark.spark.pipelines.pipeline_start import file_checkpoints
from skylark.spark.pipelines.query_builder import build, pipeline_errors, start_query
from skylark.spark.session import command_session, make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

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
    """Result of one pipeline, over all its restarts."""

    pipeline: str
    state: str  #: done, stopped or failed
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    lag: int | None = None
    restarts: int = 0
    problem: str | None = None  #: the last failure, if no run after it has ended well


def run_pipelines(
    spark: SparkSession,
    document: PipelineFile,
    pipelines: Sequence[Pipeline],
    *,
    watcher: PipelineListener | None = None,
    listener: StreamingQueryListener | None = None,
    stop: threading.Event | None = None,
    available_now: bool = False,
    clock: TimeSource | None = None,
) -> list[PipelineRun]:
    """Run pipelines to their end; ``available_now`` overrides their triggers.

    ``listener`` gets Spark's events of all their queries. Raises errors that occur before the first
    one has started; later ones are in the results.
    """
    frames = [
        (pipeline, build(spark, document, pipeline, strict=_is_new(document, pipeline)))
        for pipeline in pipelines
    ]
    stop = stop or threading.Event()
    clock = clock or SystemClock()
    ending = threading.Event()  # for the endless ones
    with (
        _listening(listener, [frame for _, frame in frames]),
        ThreadPoolExecutor(len(frames), "pipeline") as pool,
    ):
        supervised = [
            _Supervised(
                document,
                pipeline,
                frame,
                Trigger(available_now=True) if available_now else pipeline.trigger,
                pool,
                watcher,
                clock,
            )
            for pipeline, frame in frames
        ]
        for each in supervised:
            each.start(stop if each.trigger.available_now else ending)
        while active := [each for each in supervised if not each.is_over]:
            wait([each.following for each in active if each.following is not None], POLL_S)
            if all(each.following is None for each in active):
                stop.wait(POLL_S)
            for each in active:
                each.poll()
            if stop.is_set() or any(each.stops_others for each in supervised):
                ending.set()
        return [each.run for each in supervised]


@contextmanager
def _listening(
    listener: StreamingQueryListener | None, frames: Sequence[DataFrame]
) -> Iterator[None]:
    """Each pipeline has a session of its own, and a listener gets the events of one session."""
    if listener is None:
        yield
        return
    sessions = [frame.sparkSession for frame in frames]
    for session in sessions:
        session.streams.addListener(listener)
    try:
        yield
    finally:
        for session in sessions:
            session.streams.removeListener(listener)


def _is_new(document: PipelineFile, pipeline: Pipeline) -> bool:
    """Whether the pipeline has not completed a batch yet, or only Spark knows it."""
    checkpoints = file_checkpoints(document)
    newest = None if checkpoints.root is None else checkpoints.newest(pipeline.name)
    return newest is None or newest.next_number == 0


class _Supervised:
    """One pipeline and its restarts; all methods are called by the thread of the runner.

    In another thread Spark does not find Python sources when a query starts.
    """

    def __init__(
        self,
        document: PipelineFile,
        pipeline: Pipeline,
        frame: DataFrame,
        trigger: Trigger,
        pool: ThreadPoolExecutor,
        watcher: PipelineListener | None,
        clock: TimeSource,
    ) -> None:
        self._document = document
        self._pipeline = pipeline
        self._frame = frame
        self._pool = pool
        self._watcher = watcher
        self._clock = clock
        self._asked = threading.Event()
        self._failures = 0  # in a row
        self._slow_starts = 0  # in a row, of Python workers
        self._restart_at: float | None = None
        default = "isolate" if trigger.available_now else "restart"
        self._on_failure = pipeline.restart.on_failure or default
        self.trigger = trigger
        self.run = PipelineRun(pipeline=pipeline.name, state="running")
        self.following: Future[_Outcome] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it runs no more and is not going to be restarted."""
        return self.following is None and self._restart_at is None

    @property
    def stops_others(self) -> bool:
        return self.is_over and self.run.state == "failed" and self._on_failure == "stop"

    def start(self, asked: threading.Event) -> None:
        """Start its query; ``asked`` is set when it shall stop."""
        self._asked = asked
        self._restart_at = None
        query = _start(self._document, self._pipeline, self._frame, self.trigger)
        self.following = self._pool.submit(_follow, self._pipeline, query, self._watcher, asked)
        self._write("running")

    def poll(self) -> None:
        """Take note of its end, and start it again when its pause is over."""
        if self.following is not None:
            if self.following.done():
                outcome, self.following = self.following.result(), None
                self._ended(outcome)
        elif self._restart_at is not None and self._asked.is_set():
            self._restart_at = None
            self.run = msgspec.structs.replace(self.run, state="stopped")
            self._write("stopped")
        elif self._restart_at is not None and self._clock.monotonic() >= self._restart_at:
            self.run = msgspec.structs.replace(self.run, restarts=self.run.restarts + 1)
            self.start(self._asked)

    def _ended(self, outcome: _Outcome) -> None:
        before, last = self.run, outcome.run
        self.run = msgspec.structs.replace(
            last,
            batches=before.batches + last.batches,
            rows=before.rows + last.rows,
            seconds=round(before.seconds + last.seconds, 3),
            restarts=before.restarts,
        )
        self._failures = 1 if last.rows else self._failures + 1
        policy = self._pipeline.restart
        self._slow_starts = self._slow_starts + 1 if outcome.is_slow_start else 0
        if 0 < self._slow_starts < WORKER_STARTS:
            logger.warning("starting pipeline %s again: %s", last.pipeline, last.problem)
            self._failures -= 1
            self.start(self._asked)
        elif last.state != "failed" or outcome.is_final or self._on_failure != "restart":
            self._write(last.state)
        elif self._failures > policy.limit:
            logger.error("pipeline %s failed %d times in a row", last.pipeline, self._failures)
            self._write(last.state)
        else:
            pause_s = policy.pause_s(self._failures)
            self._restart_at = self._clock.monotonic() + pause_s
            logger.warning("restarting in %.0f s: %s", pause_s, last.problem)
            self._write("restarting")

    def _write(self, state: str) -> None:
        checkpoints = file_checkpoints(self._document)
        if checkpoints.root is None:
            return
        state_now = LastRun(
            state=state,
            restarts=self.run.restarts,
            problem=self.run.problem,
            changed_ms=self._clock.now_ms(),
        )
        write_last_run(checkpoints.folder(self._pipeline.name), state_now)


class _Outcome(NamedTuple):
    """How one run of a query ended."""

    run: PipelineRun
    is_final: bool = False  #: it failed in a way that a restart does not mend
    is_slow_start: bool = False  #: a Python worker of Spark did not start in time


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
) -> _Outcome:
    """Follow one query; runs in a separate thread."""
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
        run = PipelineRun(
            pipeline=pipeline.name,
            state="failed",
            rows=last.rows,
            lag=last.lag,
            problem=" ".join(str(error).split()),
        )
        return _Outcome(
            run,
            isinstance(error, (ConfigError, DataLossError, RefusedError)),
            isinstance(error, WorkerStartError),
        )
    run = PipelineRun(
        pipeline=pipeline.name,
        state="stopped" if totals.stopped else "done",
        batches=totals.batches,
        rows=totals.rows,
        seconds=totals.seconds,
        lag=totals.lag,
    )
    return _Outcome(run)
