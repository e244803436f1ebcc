"""Status of pipelines: progress and lag by their checkpoints and the brokers, without Spark.

If a broker or name server does not answer, the status names the problem and still shows the content
of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from skylark.core.errors import SkylarkError
from skylark.spark.pipelines.checkpoint_folders import Checkpoint
from skylark.spark.pipelines.last_run import read_last_run
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile
from skylark.spark.pipelines.pipeline_start import file_checkpoints, known_snapshot, name_in_errors
from skylark.spark.source.queue_bounds import ClusterSnapshot


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a queue that a pipeline reads."""

    topic: str
    broker: str
    queue: int
    committed: int | None  #: the offset after the last completed batch
    end: int | None  #: the offset after the last message; None if the broker does not answer

    @property
    def lag(self) -> int | None:
        if self.end is None or self.committed is None:
            return None
        return max(0, self.end - self.committed)


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one pipeline."""

    name: str
    checkpoint: str | None  #: the current folder; None if there is none yet
    batch: int | None  #: the last completed one
    unfinished: int | None  #: one that was planned and will run again
    changed: datetime | None
    queues: tuple[QueueStatus, ...]
    problem: str | None  #: why parts of the status are unknown
    state: str | None = None  #: of the last run; None if there is none
    restarts: int = 0
    failure: str | None = None  #: the last failure of that run

    @property
    def lag(self) -> int | None:
        lags = [queue.lag for queue in self.queues]
        return None if None in lags or not lags else sum(filter(None, lags))


def pipeline_statuses(document: PipelineFile, names: tuple[str, ...]) -> Iterator[PipelineStatus]:
    """The status of the chosen pipelines; raises ConfigError."""
    checkpoints = file_checkpoints(document)
    for pipeline in document.chosen(names):
        with name_in_errors(pipeline):
            status = _status(pipeline, checkpoints.newest(pipeline.name))
            run = read_last_run(checkpoints.folder(pipeline.name))
            if run is not None:
                status = msgspec.structs.replace(
                    status, state=run.state, restarts=run.restarts, failure=run.problem
                )
            yield status


def _status(pipeline: Pipeline, checkpoint: Checkpoint | None) -> PipelineStatus:
    positions = {} if checkpoint is None else checkpoint.positions
    snapshot, problem = ClusterSnapshot(), None
    try:
        snapshot = known_snapshot(pipeline.source.options, positions)
    except SkylarkError as error:
        problem = str(error)
    else:
        deleted = [f"topic {name} does not exist" for name in sorted(snapshot.deleted_topics)]
        problem = "; ".join(deleted + snapshot.silent_brokers()) or None
    queues = [
        QueueStatus(
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            committed=positions.get(queue),
            end=snapshot.bounds[queue].high if queue in snapshot.bounds else None,
        )
        for queue in sorted({*positions, *snapshot.bounds})
    ]
    changed_ms = None if checkpoint is None else checkpoint.changed_ms
    changed = None if changed_ms is None else datetime.fromtimestamp(changed_ms / 1000, tz=UTC)
    done = None if checkpoint is None else checkpoint.done
    unfinished = None if checkpoint is None else checkpoint.unfinished
    return PipelineStatus(
        name=pipeline.name,
        checkpoint=None if checkpoint is None else str(checkpoint.folder),
        batch=None if done is None else done.number,
        unfinished=None if unfinished is None else unfinished.number,
        changed=changed,
        queues=tuple(queues),
        problem=problem,
    )
