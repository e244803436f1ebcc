"""Begin somewhere else: a new checkpoint folder for a pipeline, with a look before.

::

    plan = plan_reset(document, pipeline, reset_position("2026-11-01T12:00:00Z"))
    folder = plan.write()

The old folder stays as it is (:mod:`skylark.spark.pipelines.checkpoint_folders`). Rows that were
written before stay as well, so that going back writes rows a second time.
"""

from __future__ import annotations

import msgspec

from skylark.core.errors import ConfigError
from skylark.spark.option_table import moment_ms
from skylark.spark.pipelines.checkpoint_folders import Checkpoint, write_checkpoint
from skylark.spark.pipelines.pipeline_file import Document, Pipeline
from skylark.spark.pipelines.pipeline_start import (
    document_checkpoints,
    last_logged,
    naming,
    resolve_start,
    sink_folder,
    survey_source,
)
from skylark.spark.source.offset_options import At, Position, starting_position
from skylark.wire.bodies.common_body import MessageQueue


def reset_position(text: str) -> Position:
    """What ``--to`` says: as ``startingOffsets``, or a time; raises ConfigError."""
    text = text.strip()
    try:
        return starting_position(text)
    except ValueError as error:
        try:
            return At(moment_ms(text))
        except ValueError:
            hint = f"{error}, or a time such as 2026-11-01T12:00:00Z"
            raise ConfigError(f"--to {text!r} is no position", hint=hint) from None


class QueueMove(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset does to a queue."""

    queue: MessageQueue
    old: int | None
    new: int
    end: int


class ResetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A reset that was not done yet."""

    pipeline: Pipeline
    document: Document
    old: Checkpoint | None
    next_number: int  #: of the batch that begins there
    moves: tuple[QueueMove, ...]

    @property
    def warnings(self) -> list[str]:
        """What a person should know before."""
        old, found = self.old, []
        if old is not None and old.unfinished is not None:
            text = f"batch {old.unfinished.number} was begun and not finished: it is given up"
            sink = self.pipeline.sink.topic_options
            if sink is not None and sink.exactly_once and old.query_id is not None:
                text += f"; skylark txn abandon {old.query_id} lets go of its undecided rows"
            found.append(text)
        if old is not None and old.has_state:
            found.append("the query has state, windows or counts: it begins empty")
        return found

    def write(self) -> str:
        """Make the new folder and return it; raises ConfigError."""
        checkpoints = document_checkpoints(self.document)
        parent = checkpoints.folder(self.pipeline.name)
        checkpoints.check_writable(self.pipeline.name)
        newest = checkpoints.newest(self.pipeline.name)
        if newest != self.old:
            raise ConfigError(
                f"pipeline {self.pipeline.name} has moved on since the preview",
                hint="does it run? Stop it and try again",
            )
        try:
            positions = {move.queue: move.new for move in self.moves}
            folder = write_checkpoint(parent, self.old, positions, self.next_number)
        except OSError as error:
            raise ConfigError(
                f"no checkpoint can be written to {parent}", hint=error.strerror or str(error)
            ) from None
        return str(folder)


def plan_reset(document: Document, pipeline: Pipeline, position: Position) -> ResetPlan:
    """What a reset to ``position`` would do; raises ConfigError and whatever the cluster says."""
    with naming(pipeline):
        checkpoints = document_checkpoints(document)
        old = checkpoints.newest(pipeline.name)
        checkpoints.check_writable(pipeline.name)
        next_number = _next_number(document, pipeline, old)
        options = msgspec.structs.replace(pipeline.source.options, start=position)
        survey = survey_source(options)
        before = {} if old is None else old.positions
        moves = tuple(
            QueueMove(queue=queue, old=before.get(queue), new=offset, end=survey.bounds[queue].high)
            for queue, offset in sorted(resolve_start(options, survey).items())
        )
        return ResetPlan(
            pipeline=pipeline, document=document, old=old, next_number=next_number, moves=moves
        )


def _next_number(document: Document, pipeline: Pipeline, old: Checkpoint | None) -> int:
    """What the first batch is called: a file sink goes on with its log, state begins with 0."""
    last = None if old is None else old.last
    number = 0 if last is None else last.number + 1
    if (folder := sink_folder(pipeline, document)) is not None:
        number = last_logged(folder) + 1
    if old is None or not old.has_state:
        return number
    if folder is not None and number:
        raise ConfigError(
            f"a query with state begins with batch 0, and {folder} has batches up to {number - 1}",
            hint="give the sink another path",
        )
    return 0
