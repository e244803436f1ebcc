"""State of a streaming job, read from its checkpoint on any file system that Spark knows.

Spark keeps a file per batch in ``offsets`` (written before the batch) and one in ``commits``
(written when it is done). The next batch starts at the end of the last batch that is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import AnalysisException

from skylark.spark.source.stream_offset import StreamOffset, decode_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the query of a checkpoint."""

    planned: int | None = None  #: the last batch that was planned
    done: int | None = None  #: the last batch that is done
    planned_offset: StreamOffset | None = None  #: the end of the last planned batch
    offset: StreamOffset | None = None  #: the end of the last done batch, where the next one starts


def checkpoint_state(spark: SparkSession, checkpoint: str) -> CheckpointState:
    """Read a checkpoint; raises ConfigError if it is one of another source."""
    done = _files(spark, f"{checkpoint.rstrip('/')}/commits")
    planned = _files(spark, f"{checkpoint.rstrip('/')}/offsets")
    last_planned = max(planned, default=None)
    last_done = max(done.keys() & planned.keys(), default=None)
    return CheckpointState(
        planned=last_planned,
        done=max(done, default=None),
        planned_offset=None if last_planned is None else _source_offset(planned[last_planned]),
        offset=None if last_done is None else _source_offset(planned[last_done]),
    )


def checkpoint_offset(spark: SparkSession, checkpoint: str) -> StreamOffset | None:
    """The end of the last batch that is done; None if there is none.

    Raises ConfigError if the checkpoint is one of another source.
    """
    return checkpoint_state(spark, checkpoint).offset


def _source_offset(file: str) -> StreamOffset:
    """The offset in a checkpoint file, whose lines are: version, settings, one per source."""
    line = file.splitlines()[-1]
    try:
        return decode_offset(msgspec.json.decode(line))
    except msgspec.DecodeError:
        return decode_offset(line)  # raises the error for an offset of another source


def _files(spark: SparkSession, folder: str) -> dict[int, str]:
    """The files of a folder whose names are numbers; Spark keeps the last hundred."""
    try:
        files = spark.read.text(folder, wholetext=True).select("_metadata.file_name", "value")
        return {int(row[0]): row[1] for row in files.collect() if row[0].isdecimal()}
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
