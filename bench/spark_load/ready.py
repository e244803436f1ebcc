"""A data source that does nothing but hand over: how quick Spark takes rows from Python at best.

``format("ready")`` yields the record batch in the file ``path`` again and again, ``rows`` rows in
each of ``parts`` partitions. The batch is one that the connector has made, so both have the same
columns and sizes. Spark's workers import this module, so it must be on their path.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


class ReadySource(DataSource):
    """Needs a schema by ``.schema(...)``."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        options = self.options
        return ReadyReader(Path(options["path"]), int(options["rows"]), int(options["parts"]))


class ReadyReader(DataSourceReader):
    """Hands over one batch many times."""

    def __init__(self, path: Path, row_count: int, part_count: int) -> None:
        self._path = path
        self._row_count = row_count
        self._part_count = part_count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._part_count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        batch = load(self._path)
        left = self._row_count
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def save(batch: pa.RecordBatch, path: Path) -> None:
    """Keep a batch for :class:`ReadySource`."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def load(path: Path) -> pa.RecordBatch:
    """What was kept."""
    import pyarrow as pa

    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        return reader.get_batch(0)
