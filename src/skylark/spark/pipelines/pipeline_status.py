"""How the pipelines of a file stand: from their checkpoints and the brokers, without Spark.

A broker or a name server that does not answer is told as a problem; what the checkpoint says is
shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from skylark.core.errors import SkylarkError
from skylark.spark.pipelines.checkpoint_folders import Checkpoint
from skylark.spark.pipelines.pipeline_file import Document, Pipeline
from skylark.spark.pipelines.pipeline_start import document_checkpoints, naming, survey_known
from skylark.spark.source.queue_bounds import Survey


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that a pipeline reads."""

    topic: str
    broker: str
    queue: int
    committed: int | None  #: the offset behind what was read for good
    end: int | None  #: the offset behind the last message; None if the broker does not answer

    @property
    def lag(self) -> int | None:
        if self.end is None or self.committed is None:
            return None
        return max(0, self.end - self.committed)


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline."""

    name: str
    checkpoint: str | None  #: the folder that counts; None if it has none yet
    batch: int | None  #: the last that is complete
    unfinished: int | None  #: one that was begun and will be run again
    changed: datetime | None
    queues: tuple[QueueStatus, ...]
    problem: str | None  #: why not all of it is known

    @property
    def lag(self) -> int | None:
        lags = [queue.lag for queue in self.queues]
        return None if None in lags or not lags else sum(filter(None, lags))


def pipeline_statuses(document: Document, names: tuple[str, ...]) -> Iterator[PipelineStatus]:
    """The status of the chosen pipelines; raises ConfigError."""
    checkpoints = document_checkpoints(document)
    for pipeline in document.chosen(names):
        with naming(pipeline):
            yield _status(pipeline, checkpoints.newest(pipeline.name))


def _status(pipeline: Pipeline, checkpoint: Checkpoint | None) -> PipelineStatus:
    positions = {} if checkpoint is None else checkpoint.positions
    survey, problem = Survey(), None
    try:
        survey = survey_known(pipeline.source.options, positions)
    except SkylarkError as error:
        problem = str(error)
    else:
        silent = [f"broker {name} does not answer: {why}" for name, why in survey.silent.items()]
        gone = [f"topic {name} does not exist" for name in sorted(survey.gone)]
        problem = "; ".join(gone + silent) or None
    queues = [
        QueueStatus(
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            committed=positions.get(queue),
            end=survey.bounds[queue].high if queue in survey.bounds else None,
        )
        for queue in sorted({*positions, *survey.bounds})
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
