"""Writer of the Parquet files of a table, in tasks of Spark.

::

    <root>/dt=2026-11-01/topic=orders/part-<unique>.parquet

A task writes a file for each partition that its rows have. It holds at most :data:`HELD_BYTES_MAX`
of rows and :data:`OPEN_FILES_MAX` files open. For each file it returns a row to the driver, so the
files of attempts that failed are in no list, and no reader sees them. Names are unique: a repeated
task never overwrites a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

HELD_BYTES_MAX: Final = 64 << 20
OPEN_FILES_MAX: Final = 64
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_FILE: Final = "path string, size bigint, rows bigint, partition array<string>"


class FilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how tasks write files; they get a copy of it."""

    schema: Any  #: the pa.Schema of the rows
    partition_by: tuple[str, ...] = ()
    keep_partition_columns: bool = False  #: files have these columns too, not only their folders
    create: Callable[[str], IO[bytes]]  #: opens a new file, by its path below the root


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a task has written."""

    path: str  #: below the root
    size: int
    rows: int
    partition: tuple[str | None, ...]  #: a value for each column of ``partition_by``


def write_files(frame: DataFrame, plan: FilePlan) -> list[DataFile]:
    """Write the rows of a frame; the driver gets a row per file."""
    write: Callable[..., Iterator[object]] = partial(write_rows, plan=plan)
    rows = frame.mapInArrow(write, _FILE).collect()
    return [
        DataFile(path=row.path, size=row.size, rows=row.rows, partition=tuple(row.partition))
        for row in rows
    ]


# ---- tasks ---------------------------------------------------------------------------------------


def write_rows(batches: Iterator[pa.RecordBatch], *, plan: FilePlan) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task; yields the :class:`DataFile` of each file."""
    open_files: dict[tuple[str | None, ...], _OpenFile] = {}
    for batch in batches:
        for partition, rows in split(batch.cast(plan.schema), plan.partition_by):
            # The partition that was used last is the last one in the table.
            file = open_files.pop(partition, None) or _OpenFile(plan, partition)
            open_files[partition] = file
            file.add(rows)
            if len(open_files) > OPEN_FILES_MAX:
                yield open_files.pop(next(iter(open_files))).close()
            if sum(each.held for each in open_files.values()) > HELD_BYTES_MAX:
                max(open_files.values(), key=lambda each: each.held).flush()
    for file in open_files.values():
        yield file.close()


def split(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each partition, with the values of its columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns:
        if batch.num_rows:
            yield (), batch
        return
    column = batch.column(columns[0])
    values = column.unique()
    for value in values:
        alone = len(values) == 1
        # Unlike a comparison, this finds null as well.
        chosen = pa.array([value.as_py()], column.type)
        rows = batch if alone else batch.filter(pc.is_in(column, value_set=chosen))
        text = None if value.as_py() is None else str(value.as_py())
        for others, part in split(rows, columns[1:]):
            yield (text, *others), part


class _OpenFile:
    """A file that a task writes, and the rows of its next row group."""

    def __init__(self, plan: FilePlan, partition: tuple[str | None, ...]) -> None:
        import pyarrow.parquet as pq

        folders = [
            f"{name}={_NULL if value is None else quote(value, safe='')}/"
            for name, value in zip(plan.partition_by, partition, strict=True)
        ]
        self._path = f"{''.join(folders)}part-{uuid4()}.parquet"
        self._partition = partition
        left_out = () if plan.keep_partition_columns else plan.partition_by
        self._columns = [name for name in plan.schema.names if name not in left_out]
        schema = plan.schema
        for name in left_out:
            schema = schema.remove(schema.get_field_index(name))
        self._stream = plan.create(self._path)
        self._writer = pq.ParquetWriter(self._stream, schema)
        self._waiting: list[pa.RecordBatch] = []
        self.held = 0
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        part = rows.select(self._columns)
        self._waiting.append(part)
        self.held += part.nbytes
        self._rows += part.num_rows

    def flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self.held = [], 0

    def close(self) -> pa.RecordBatch:
        """Finish the file; returns its row."""
        import pyarrow as pa

        self.flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        values = [[self._path], [size], [self._rows], [list(self._partition)]]
        types = [pa.string(), pa.int64(), pa.int64(), pa.list_(pa.string())]
        arrays = [pa.array(value, kind) for value, kind in zip(values, types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=list(DataFile.__struct_fields__))
