"""Iceberg tables, by the library ``pyiceberg``.

The name is ``[CATALOG.]NAMESPACE.TABLE``; catalogs are settings of pyiceberg (``~/.pyiceberg.yaml``
or environment variables ``PYICEBERG_CATALOG__...``), and without a name it is the one it calls
``default``. A commit has the query and the number of the batch in the summary of its snapshot, and
as a property of the table, since snapshots expire: ``skylark.batch.<query> = <batch>``.

pyiceberg repeats a commit after a conflict without asking whether the batch came in between. So
that is turned off here; :meth:`IcebergLakeTable.append` asks and repeats by itself.

The driver reads the metadata of the table and the footers of new files, and writes the manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import IO, TYPE_CHECKING, Final, cast

from skylark.admin.errors import NotFoundError
from skylark.core.errors import ClientError, ConfigError, SkylarkError
from skylark.spark.lake.lake_files import DataFile, FilePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table, Transaction

_COMMITS_MAX: Final = 20
_BATCH_OF: Final = "skylark.batch."


class IcebergLakeTable:
    """An Iceberg table in a catalog."""

    def __init__(self, name: str) -> None:
        self.name = name
        catalog, _, rest = name.partition(".") if name.count(".") > 1 else ("", "", name)
        namespace, found, table = rest.rpartition(".")
        if not found or not all(part for part in rest.split(".")):
            raise ConfigError(
                f"{name!r} is no name of an Iceberg table", hint="CATALOG.NAMESPACE.TABLE"
            )
        self._catalog_name = catalog or None
        self._namespace = tuple(namespace.split("."))
        self._identifier = (*self._namespace, table)

    def exists(self) -> bool:
        with self._errors():
            return self._catalog.table_exists(self._identifier)

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        if not self.exists():
            with self._errors():
                self._create(schema, partition_by)
        table = self._open()
        known = table.schema()
        missing = {*schema.names} - {field.name for field in known.fields}
        wanted = [(column, "identity") for column in partition_by]
        partitions = [
            (known.find_column_name(field.source_id), str(field.transform))
            for field in table.spec().fields
        ]
        if missing or partitions != wanted:
            raise ConfigError(
                f"the Iceberg table {self.name} has other columns or partitions",
                hint="name another table",
            )

    def file_plan(self, schema: pa.Schema) -> FilePlan:
        table = self._open()
        return FilePlan(
            schema=schema,
            partition_by=tuple(field.name for field in table.spec().fields),
            keep_partition_columns=True,  # Iceberg takes partitions from the statistics of files
            create=partial(create_file, table.io, _data_folder(table)),
        )

    def last_batch(self, query: str) -> int:
        return _last_batch(self._open(), query) if self.exists() else -1

    def columns(self) -> list[str]:
        return [field.name for field in self._open().schema().fields]

    def values(self, column: str) -> set[str]:
        with self._errors():
            table = self._open()
            if table.current_snapshot() is None:
                return set()
            partitions = table.inspect.partitions()
            return {each["partition"][column] for each in partitions.to_pylist()}

    def append(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(_COMMITS_MAX):
            table = self._open()
            if _last_batch(table, query) >= batch:
                return
            # pyiceberg takes it from here; the table in the catalog keeps what it has.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            try:
                with self._errors(CommitFailedException), table.transaction() as transaction:
                    transaction.set_properties({f"{_BATCH_OF}{query}": str(batch)})
                    summary = {"skylark.query": query, "skylark.batch": str(batch)}
                    self._add(table, transaction, files, summary)
            except CommitFailedException as error:
                if attempt == _COMMITS_MAX - 1:
                    raise ClientError(f"the Iceberg table {self.name} failed: {error}") from error
            else:
                return

    def replace(self, files: Sequence[DataFile]) -> None:
        from pyiceberg.expressions import AlwaysTrue

        old, table = self.paths(), self._open()
        with self._errors(), table.transaction() as transaction:
            if old:
                transaction.delete(AlwaysTrue())
            self._add(table, transaction, files, {})

    def paths(self) -> list[str]:
        table = self._open()
        with self._errors():
            tasks = list(table.scan().plan_files())
        if any(task.delete_files or task.file.file_format != "PARQUET" for task in tasks):
            raise ConfigError(
                f"the Iceberg table {self.name} has deleted rows or files other than Parquet,"
                " which cannot be read here"
            )
        return [task.file.file_path for task in tasks]

    def reader_options(self) -> dict[str, str]:
        return {}

    @property
    def _catalog(self) -> Catalog:
        return catalog_of(self._catalog_name)

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        self._catalog.create_namespace_if_not_exists(self._namespace)
        # Each batch adds a manifest: without merging, a reader would open thousands.
        transaction = self._catalog.create_table_transaction(
            self._identifier, schema, properties={"commit.manifest-merge.enabled": "true"}
        )
        with suppress(TableAlreadyExistsError), transaction, transaction.update_spec() as spec:
            for column in partition_by:
                spec.add_identity(column)

    def _open(self) -> Table:
        from pyiceberg.exceptions import NoSuchTableError

        with self._errors(NoSuchTableError):
            try:
                return self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                raise NotFoundError(f"there is no Iceberg table {self.name}") from None

    def _add(
        self,
        table: Table,
        transaction: Transaction,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
    ) -> None:
        paths = [f"{_data_folder(table)}/{file.path}" for file in files]
        # Their names are unique: nothing to look for in all manifests.
        transaction.add_files(paths, dict(summary), check_duplicate_files=False)

    @contextmanager
    def _errors(self, *passed: type[Exception]) -> Iterator[None]:
        """Errors of the library as ClientError; it has no class for all of them."""
        try:
            yield
        except Exception as error:
            if isinstance(error, (SkylarkError, *passed)):
                raise
            raise ClientError(f"the Iceberg table {self.name} failed: {error}") from error


@cache
def catalog_of(name: str | None) -> Catalog:
    """A catalog by its name; it stays open, with its connections. Raises ConfigError."""
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name)
    except ValueError as error:
        raise ConfigError(
            f"the Iceberg catalog {name or 'default'} is not known: {error}",
            hint="describe it in ~/.pyiceberg.yaml",
        ) from None


def _last_batch(table: Table, query: str) -> int:
    return int(table.properties.get(f"{_BATCH_OF}{query}", -1))


def _data_folder(table: Table) -> str:
    folder = table.properties.get("write.data.path") or f"{table.location()}/data"
    return folder.rstrip("/")


def create_file(io: FileIO, root: str, path: str) -> IO[bytes]:
    """Open a new file of a table for writing; in tasks."""
    return cast("IO[bytes]", io.new_output(f"{root}/{path}").create())
