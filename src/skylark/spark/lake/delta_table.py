"""Delta Lake tables, by the library ``deltalake``.

A commit has an ``add`` action per file, and a ``txn`` action with the query and the number of the
batch. Delta refuses a commit if another one with the same query came since the table was opened.

The driver reads the log of the table, which lists all its files, and writes a file of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from skylark.admin.errors import NotFoundError
from skylark.core.clock import SystemClock
from skylark.core.errors import ClientError, ConfigError
from skylark.spark.lake.lake_files import DataFile, FilePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

#: What a reader of the plain files may ignore; others, such as deletion vectors, change their rows.
_HARMLESS_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})


class DeltaLakeTable:
    """A Delta table in a folder."""

    def __init__(self, folder: str) -> None:
        self.name = folder
        self._root = location(folder)

    def exists(self) -> bool:
        from deltalake import DeltaTable

        with self._errors():
            return DeltaTable.is_deltatable(self._root)

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        from deltalake import DeltaTable, Schema

        with self._errors():
            DeltaTable.create(self._root, schema, mode="ignore", partition_by=list(partition_by))
            table = self._open()
            known = {field.name: field.type for field in table.schema().fields}
            wanted = {field.name: field.type for field in Schema.from_arrow(schema).fields}
            partitions = table.metadata().partition_columns
        if not wanted.items() <= known.items() or partitions != list(partition_by):
            raise ConfigError(
                f"the Delta table {self.name} has other columns or partitions",
                hint="name another folder",
            )

    def file_plan(self, schema: pa.Schema) -> FilePlan:
        return FilePlan(
            schema=schema,
            partition_by=tuple(self._open().metadata().partition_columns),
            create=partial(create_file, self._root),
        )

    def last_batch(self, query: str) -> int:
        return _last_batch(self._open(), query) if self.exists() else -1

    def columns(self) -> list[str]:
        with self._errors():
            return [field.name for field in self._open().schema().fields]

    def values(self, column: str) -> set[str]:
        with self._errors():
            return {partition[column] for partition in self._open().partitions()}

    def append(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        table = self._open()
        if _last_batch(table, query) >= batch:
            return
        with self._errors():
            try:
                properties = CommitProperties(app_transactions=[Transaction(query, batch)])
                self._commit(table, files, "append", properties)
            except CommitFailedError:
                if _last_batch(self._open(), query) < batch:
                    raise

    def replace(self, files: Sequence[DataFile]) -> None:
        with self._errors():
            self._commit(self._open(), files, "overwrite")

    def paths(self) -> list[str]:
        table = self._open()
        features = frozenset(table.protocol().reader_features or ())
        if features - _HARMLESS_FEATURES:
            raise ConfigError(
                f"the Delta table {self.name} has features that cannot be read here:"
                f" {', '.join(sorted(features - _HARMLESS_FEATURES))}"
            )
        with self._errors():
            return table.file_uris()

    def reader_options(self) -> dict[str, str]:
        return {"basePath": self._root}  # columns of partitions are in the names of folders

    def _open(self) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self._errors():
            try:
                return DeltaTable(self._root)
            except TableNotFoundError:
                raise NotFoundError(f"there is no Delta table in {self.name}") from None

    def _commit(
        self,
        table: DeltaTable,
        files: Sequence[DataFile],
        mode: str,
        properties: CommitProperties | None = None,
    ) -> None:
        from deltalake.transaction import AddAction

        columns = table.metadata().partition_columns
        now_ms = SystemClock().now_ms()
        actions = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=dict(zip(columns, file.partition, strict=True)),
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        table.create_write_transaction(
            list(actions), mode, table.schema(), columns, commit_properties=properties
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            raise ClientError(f"the Delta table {self.name} failed: {error}") from error


def _last_batch(table: DeltaTable, query: str) -> int:
    batch = table.transaction_version(query)
    return -1 if batch is None else batch


def location(folder: str) -> str:
    """The address of a folder: an absolute path, or a URI of another file system."""
    if "://" in folder and not folder.startswith("file:"):
        return folder.rstrip("/")
    return str(Path(folder.removeprefix("file:").removeprefix("//")).absolute())


def create_file(root: str, path: str) -> IO[bytes]:
    """Open a new file of a table for writing; in tasks."""
    from pyarrow.fs import FileSystem

    system, folder = FileSystem.from_uri(root)
    target = f"{folder}/{path}"
    system.create_dir(target.rpartition("/")[0], recursive=True)
    return cast("IO[bytes]", system.open_output_stream(target))
