"""Where a streaming job goes on: read from its checkpoint, on any file system Spark knows.

Spark keeps a file per batch in ``offsets`` (written before the batch) and one in ``commits``
(written when it is done). The end of the last batch that is done is where the next one begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import AnalysisException

from skylark.spark.source.stream_offset import StreamOffset, decode_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """How far the query of a checkpoint is."""

    planned: int | None = None  #: the last batch that was begun
    done: int | None = None  #: the last one that is done
    planned_offset: StreamOffset | None = None  #: the end of the batch that was begun
    offset: StreamOffset | None = None  #: the end of the one that is done: the next begins there


def checkpoint_state(spark: SparkSession, checkpoint: str) -> CheckpointState:
    """What a checkpoint knows; raises ConfigError if it is one of another source."""
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
    """The offset in a file of the checkpoint: a version, a line of settings, one per source."""
    line = file.splitlines()[-1]
    try:
        return decode_offset(msgspec.json.decode(line))
    except msgspec.DecodeError:
        return decode_offset(line)  # which says that it is none of ours


def _files(spark: SparkSession, folder: str) -> dict[int, str]:
    """The files of a folder that are named by a number; Spark keeps a hundred."""
    try:
        files = spark.read.text(folder, wholetext=True).select("_metadata.file_name", "value")
        return {int(row[0]): row[1] for row in files.collect() if row[0].isdecimal()}
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
