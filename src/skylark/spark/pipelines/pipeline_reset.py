"""Reset of a pipeline: a new checkpoint folder that starts at another position, with a preview.

::

    plan = plan_reset(document, pipeline, reset_position("2026-11-01T12:00:00Z"))
    folder = plan.write()

The old folder is kept (:mod:`skylark.spark.pipelines.checkpoint_folders`). Rows that were written
before are kept as well, so going back writes rows again.
"""

from __future__ import annotations

import msgspec

from skylark.core.errors import ConfigError
from skylark.spark.option_table import moment_ms
from skylark.spark.pipelines.checkpoint_folders import Checkpoint, write_checkpoint
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile
from skylark.spark.pipelines.pipeline_start import (
    file_checkpoints,
    last_logged,
    name_in_errors,
    resolve_start,
    sink_folder,
    source_snapshot,
)
from skylark.spark.source.offset_options import At, Position, starting_position
from skylark.wire.bodies.common_body import MessageQueue


def reset_position(text: str) -> Position:
    """Parse ``--to``: as ``startingOffsets``, or a time; raises ConfigError."""
    text = text.strip()
    try:
        return starting_position(text)
    except ValueError as error:
        try:
            return At(moment_ms(text))
        except ValueError:
            hint = f"{error}, or a time such as 2026-11-01T12:00:00Z"
            raise ConfigError(f"--to {text!r} is not a position", hint=hint) from None


class QueueMove(msgspec.Struct, frozen=True, kw_only=True):
    """Old and new offset of a queue."""

    queue: MessageQueue
    old: int | None
    new: int
    end: int


class ResetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned reset."""

    pipeline: Pipeline
    document: PipelineFile
    old: Checkpoint | None
    next_number: int  #: number of the first batch after the reset
    moves: tuple[QueueMove, ...]

    @property
    def warnings(self) -> list[str]:
        """Consequences that the user should know before."""
        old, found = self.old, []
        if old is not None and old.unfinished is not None:
            text = f"batch {old.unfinished.number} was started and not finished: it is dropped"
            sink = self.pipeline.sink.topic_options
            if sink is not None and sink.exactly_once and old.query_id is not None:
                text += f"; skylark txn abandon {old.query_id} rolls back its undecided rows"
            found.append(text)
        if old is not None and old.has_state:
            found.append("the query has state, windows or counts: it starts empty")
        return found

    def write(self) -> str:
        """Make the new folder and return it; raises ConfigError."""
        checkpoints = file_checkpoints(self.document)
        parent = checkpoints.folder(self.pipeline.name)
        checkpoints.check_writable(self.pipeline.name)
        newest = checkpoints.newest(self.pipeline.name)
        if newest != self.old:
            raise ConfigError(
                f"the checkpoint of pipeline {self.pipeline.name} has changed since the preview",
                hint="is it running? Stop it and try again",
            )
        try:
            positions = {move.queue: move.new for move in self.moves}
            folder = write_checkpoint(parent, self.old, positions, self.next_number)
        except OSError as error:
            raise ConfigError(
                f"cannot write a checkpoint to {parent}", hint=error.strerror or str(error)
            ) from None
        return str(folder)


def plan_reset(document: PipelineFile, pipeline: Pipeline, position: Position) -> ResetPlan:
    """Plan a reset to ``position``; raises SkylarkError."""
    with name_in_errors(pipeline):
        checkpoints = file_checkpoints(document)
        old = checkpoints.newest(pipeline.name)
        checkpoints.check_writable(pipeline.name)
        next_number = _next_number(document, pipeline, old)
        options = msgspec.structs.replace(pipeline.source.options, start=position)
        snapshot = source_snapshot(options)
        before = {} if old is None else old.positions
        moves = tuple(
            QueueMove(
                queue=queue, old=before.get(queue), new=offset, end=snapshot.bounds[queue].high
            )
            for queue, offset in sorted(resolve_start(options, snapshot).items())
        )
        return ResetPlan(
            pipeline=pipeline, document=document, old=old, next_number=next_number, moves=moves
        )


def _next_number(document: PipelineFile, pipeline: Pipeline, old: Checkpoint | None) -> int:
    """Number of the first batch after the reset; raises ConfigError.

    It continues the log of a file sink. Queries with state start with 0, and so do those that
    write to a topic: the new folder has a new query id, and an exactly-once sink refuses an id
    whose first batch is not batch 0, because nothing says what became of those before.
    """
    if pipeline.sink.topic_options is not None:
        return 0
    last = None if old is None else old.last
    number = 0 if last is None else last.number + 1
    if (folder := sink_folder(pipeline, document)) is not None:
        number = last_logged(folder) + 1
    if old is None or not old.has_state:
        return number
    if folder is not None and number:
        raise ConfigError(
            f"a query with state starts with batch 0, and {folder} has batches up to {number - 1}",
            hint="give the sink another path",
        )
    return 0
