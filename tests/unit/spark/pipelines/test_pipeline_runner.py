"""Pipelines that fail: which are restarted, and what the others do. Queries are scripted."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skylark.spark.jobs import job_runner
from skylark.spark.pipelines import pipeline_runner
from skylark.spark.pipelines.last_run import LastRun, read_last_run, write_last_run
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile, load
from skylark.spark.pipelines.pipeline_runner import PipelineRun, run_pipelines

BURST = PySparkException("Traceback (most recent call last):\n  File x\nRuntimeError: it burst")
SLOW = PySparkException("Python worker failed to connect back.")
WRONG = PySparkException("skylark.core.errors.ConfigError: a mistake")
LOST = PySparkException("skylark.spark.errors.DataLossError: 3 messages are gone")
VIOLATED = PySparkException(
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure:"
    " Lost task 0.0 in stage 0.0: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION]"
    " pipeline bad expects amount > 0, found -1 SQLSTATE: P0001\n\tat org.apache.A.b(A.java:1)"
)


class Query:
    """A query that ends, fails, or runs until it is stopped."""

    def __init__(self, failure: Exception | None, rows: int, is_endless: bool) -> None:
        self._failure = failure
        self._is_endless = is_endless
        self._stopped = threading.Event()
        self._polls = 0
        self.status = {"isTriggerActive": False}
        self.lastProgress = None
        if rows:
            self.lastProgress = SimpleNamespace(
                batchId=0, timestamp="1", numInputRows=rows, processedRowsPerSecond=1.0, sources=[]
            )

    def awaitTermination(self, timeout: float) -> bool:
        self._polls += 1
        if self._failure is not None:
            if self._polls == 1 and self.lastProgress is not None:
                return False
            raise self._failure
        return self._stopped.wait(0.01) if self._is_endless else True

    def stop(self) -> None:
        self._stopped.set()


class World:
    """A file of pipelines; ``failures`` of each are taken one by one as its query starts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.failures: dict[str, list[Exception]] = defaultdict(list)
        self.rows = 0
        self.starts: list[str] = []
        self.on_start: Callable[[str], None] = lambda _: None
        monkeypatch.setattr(pipeline_runner, "build", lambda *_, **__: None)
        monkeypatch.setattr(pipeline_runner, "start_query", self._start)
        monkeypatch.setattr(pipeline_runner, "POLL_S", 0.01)
        monkeypatch.setattr(job_runner, "POLL_S", 0.01)

    def _start(self, document: object, pipeline: Pipeline, *_: Any) -> Query:
        self.starts.append(pipeline.name)
        self.on_start(pipeline.name)
        failures = self.failures[pipeline.name]
        failure = failures.pop(0) if failures else None
        is_endless = not _[-1].available_now
        return Query(failure, self.rows if failure is not None else 0, is_endless)

    def file(self, **policies: str) -> PipelineFile:
        entries = "".join(
            f"""
  - name: {name}
    source: {{options: {{topic: T}}}}
    sink: {{format: noop}}
    {policy}"""
            for name, policy in policies.items()
        )
        file = self._folder / "p.yaml"
        text = f"name: f\ncluster: {{nameServer: 'h:1'}}\ncheckpoints: ck\npipelines:{entries}\n"
        file.write_text(text)
        return load(file, {})

    def run(
        self, document: PipelineFile, stop: threading.Event | None = None, *, now: bool = False
    ) -> dict[str, PipelineRun]:
        runs = run_pipelines(
            cast(SparkSession, None), document, document.pipelines, stop=stop, available_now=now
        )
        return {run.pipeline: run for run in runs}

    def state(self, name: str) -> LastRun | None:
        return read_last_run(self._folder / "ck" / name)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_pipeline_that_fails_is_restarted(world: World) -> None:
    world.failures["bad"] = [BURST, BURST]
    document = world.file(bad="restart: {pause: 20ms}", good="on_failure: isolate")
    found = world.run(document, now=True)
    assert (found["bad"].state, found["bad"].restarts, found["bad"].problem) == ("done", 2, None)
    assert (found["good"].state, found["good"].restarts) == ("done", 0)
    assert world.starts.count("bad") == 3
    last = world.state("bad")
    assert last is not None
    assert (last.state, last.restarts, last.problem) == ("done", 2, None)


def test_a_pipeline_that_keeps_failing_is_isolated(world: World) -> None:
    stop = threading.Event()
    world.failures["bad"] = [BURST] * 100

    def on_start(name: str) -> None:
        if world.starts.count("bad") == 4:
            threading.Timer(0.2, stop.set).start()

    world.on_start = on_start
    found = world.run(world.file(bad="restart: {pause: 10ms, limit: 3}", good=""), stop)
    assert (found["bad"].state, found["bad"].restarts) == ("failed", 3)
    assert found["bad"].problem == (
        "pipeline bad: Python code in a task raised RuntimeError: it burst"
    )
    assert found["good"].state == "stopped"  # by the user, later
    last = world.state("bad")
    assert last is not None
    assert (last.state, last.restarts, last.problem) == ("failed", 3, found["bad"].problem)


def test_progress_between_failures_counts(world: World) -> None:
    world.rows = 7
    world.failures["bad"] = [BURST] * 6
    found = world.run(world.file(bad="restart: {pause: 1ms, limit: 2}"), now=True)["bad"]
    assert (found.state, found.restarts, found.rows) == ("done", 6, 42)


def test_the_default_restarts_endless_pipelines_only(world: World) -> None:
    world.failures["bad"] = [BURST] * 100
    document = world.file(bad="", good="")
    found = world.run(document, now=True)  # the scheduler of the run repeats it
    assert {name: run.state for name, run in found.items()} == {"bad": "failed", "good": "done"}
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    found = world.run(document, stop)
    assert (found["bad"].state, found["good"].state) == ("stopped", "stopped")
    assert found["bad"].problem is not None  # it was about to be restarted


def test_a_python_worker_that_does_not_start_in_time(world: World) -> None:
    world.failures["slow"] = [SLOW] * 4
    found = world.run(world.file(slow="on_failure: isolate"), now=True)["slow"]
    assert (found.state, found.restarts, world.starts.count("slow")) == ("done", 0, 5)
    world.failures["slow"] = [SLOW] * 5
    found = world.run(world.file(slow="on_failure: isolate"), now=True)["slow"]
    assert found.state == "failed"
    assert "a Python worker of Spark did not start in time" in str(found.problem)


@pytest.mark.parametrize("failure", [WRONG, LOST, VIOLATED])
def test_what_a_restart_does_not_mend(world: World, failure: Exception) -> None:
    world.failures["bad"] = [failure]
    found = world.run(world.file(bad="on_failure: restart", good=""), now=True)
    assert (found["bad"].state, found["bad"].restarts) == ("failed", 0)
    assert found["good"].state == "done"


def test_one_may_stop_all(world: World) -> None:
    world.failures["bad"] = [BURST]
    found = world.run(world.file(bad="on_failure: stop", good=""))
    assert {name: run.state for name, run in found.items()} == {"bad": "failed", "good": "stopped"}


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    assert read_last_run(tmp_path) is None
    write_last_run(tmp_path / "p", LastRun(state="running"))
    found = read_last_run(tmp_path / "p")
    assert found is not None
    assert found.state == "running"
    text = (tmp_path / "p" / "run.json").read_text()
    process = f'"process_id":{found.process_id}'
    assert process in text
    (tmp_path / "p" / "run.json").write_text(text.replace(process, '"process_id":99999999'))
    found = read_last_run(tmp_path / "p")
    assert found is not None
    assert found.state == "died"
    (tmp_path / "p" / "run.json").write_text("{")
    assert read_last_run(tmp_path / "p") is None
