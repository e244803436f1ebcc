"""A stream reader driven as Spark drives it, without Spark.

Offsets go through JSON between calls, as they do through the checkpoint; partitions and the reader
are pickled before a "task" reads. Calls come in the order that Spark 4.3 makes them.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from skylark.spark.data_source import DefaultSource
from skylark.spark.source.source_readers import StreamReader

Row = dict[str, Any]
COLUMNS = "brokerName,queueId,queueOffset,body,tags"


def lowered(options: Mapping[str, object]) -> dict[str, str]:
    """Options as Spark hands them over."""
    return {"columns": COLUMNS} | {key.lower(): str(value) for key, value in options.items()}


def batch_reader(options: Mapping[str, object]) -> DataSourceReader:
    source = DefaultSource(lowered(options))
    return source.reader(source.schema())


def read_batch(options: Mapping[str, object]) -> list[Row]:
    """All rows of a batch read, partition after partition."""
    reader = batch_reader(options)
    parts = reader.partitions()
    task = pickle.loads(pickle.dumps(reader))
    return [row for part in parts for row in read_part(task, part)]


def read_part(task: Any, part: Any) -> list[Row]:
    batches = task.read(pickle.loads(pickle.dumps(part)))
    return [row for batch in batches for row in batch.to_pylist()]


def through_json(offset: Any) -> Any:
    return json.loads(json.dumps(offset))


class DrivenStream:
    """One query with its checkpoint; :meth:`restart` is a new run on the same checkpoint."""

    def __init__(self, **options: object) -> None:
        self._options = lowered(options)
        self.ends: list[Any] = []  # the offsets files
        self.committed = 0  # the commits files
        self.reader = self._make()

    def _make(self) -> StreamReader:
        source = DefaultSource(self._options)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        return reader

    def restart(self, **options: object) -> None:
        self._options |= lowered(options)
        self.reader = self._make()

    @property
    def limit(self) -> ReadLimit:
        return self.reader.getDefaultReadLimit()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """One trigger up to the offsets file; whether there is a batch to run."""
        if self.committed < len(self.ends):
            return True
        first = not self.ends
        start = through_json(self.reader.initialOffset()) if first else self.ends[-1]
        end = self.reader.latestOffset(start, limit or self.limit)
        self.reader.reportLatestOffset()
        if not first and json.dumps(end) == json.dumps(start):
            return False
        self.ends.append(through_json(end))
        if not first:
            self.reader.commit(start)
        return True

    def run(self) -> list[Row]:
        """The batch that was planned."""
        number = self.committed
        start = self.ends[number - 1] if number else through_json(self.reader.initialOffset())
        parts = self.reader.partitions(start, self.ends[number])
        task = pickle.loads(pickle.dumps(self.reader))
        rows = [row for part in parts for row in read_part(task, part)]
        self.committed += 1
        return rows

    def trigger(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """A whole micro-batch; None if there was nothing for one."""
        return self.run() if self.plan(limit) else None

    def available_now(self) -> list[list[Row]]:
        """The batches of a run with that trigger."""
        self.reader.prepareForTriggerAvailableNow()
        batches = []
        while (rows := self.trigger()) is not None:
            batches.append(rows)
        return batches

    def drain(self) -> list[Row]:
        """All there is."""
        rows: list[Row] = []
        while (batch := self.trigger(ReadAllAvailable())) is not None:
            rows += batch
        return rows
