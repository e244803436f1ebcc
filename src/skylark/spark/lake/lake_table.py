"""Lake table: one interface to Delta Lake and Iceberg, and writing micro-batches exactly once.

The commit of a batch holds the id of the query and the number of the batch. Before a batch is
written, the table is asked for the last batch of its query. So each point of a crash is safe:

====================================  ==============================================================
crash                                 what the next run does
====================================  ==============================================================
while tasks write files               it writes the batch again; no commit names the old files, so
                                      no reader sees them
after the commit, before Spark's own  it finds the batch in the table and writes nothing
during the commit                     one of the two, since a commit is atomic
====================================  ==============================================================

Of two drivers with the same checkpoint one commits a batch. The other one finds that out when its
commit fails: the library compares with all commits since the table was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, Protocol

from skylark.core.errors import ConfigError
from skylark.spark.lake.lake_files import DataFile, FilePlan, write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LakeTableFormat = Literal["delta", "iceberg"]
LakeFormat = Literal["parquet", "delta", "iceberg"]
#: Of each format; the extra of this package that installs it has the name of the format.
_LIBRARIES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}


class LakeTable(Protocol):
    """A table of one of the formats; raises ClientError if the library fails."""

    name: str  #: for messages

    def exists(self) -> bool: ...

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Make the table if there is none; raises ConfigError if it has other columns."""

    def file_plan(self, schema: pa.Schema) -> FilePlan:
        """How tasks write files of this table."""

    def last_batch(self, query: str) -> int:
        """The last batch of a query in the table; -1 if it has none, or does not exist."""

    def columns(self) -> list[str]: ...

    def values(self, column: str) -> set[str]:
        """The values that a partition column has in the table."""

    def append(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        """Add files in one commit, unless the table has this batch."""

    def replace(self, files: Sequence[DataFile]) -> None:
        """Have these files in place of all rows, in one commit."""

    def paths(self) -> list[str]:
        """The files of the table, for Spark; raises ConfigError if they are not all there is."""

    def reader_options(self) -> dict[str, str]:
        """The options with which Spark reads these files."""


def open_table(table_format: LakeTableFormat, name: str) -> LakeTable:
    """A table by its folder (Delta) or its name in a catalog (Iceberg); it need not exist yet.

    Raises ConfigError if the library is missing.
    """
    require_format(table_format)
    if table_format == "delta":
        from skylark.spark.lake.delta_table import DeltaLakeTable

        return DeltaLakeTable(name)
    from skylark.spark.lake.iceberg_table import IcebergLakeTable

    return IcebergLakeTable(name)


def require_format(lake_format: LakeFormat) -> None:
    """Raise ConfigError if the library of a format is missing."""
    library = _LIBRARIES.get(lake_format)
    if library is not None and find_spec(library) is None:
        raise ConfigError(
            f"the Python package {library} is not installed",
            hint=f"pip install 'skylark-mq[{lake_format}]'",
        )


def append_batch(table: LakeTable, frame: DataFrame, query: str, batch: int) -> bool:
    """Add a micro-batch; False, with nothing computed, if the table has it. Runs in the driver."""
    if table.last_batch(query) >= batch:
        return False
    files = write_files(frame, table.file_plan(arrow_schema(frame.schema)))
    table.append(files, query, batch)
    return True


def replace_rows(table: LakeTable, frame: DataFrame) -> None:
    """Write the rows of a frame in place of those of the table."""
    schema = arrow_schema(frame.schema)
    table.create(schema, ())
    table.replace(write_files(frame, table.file_plan(schema)))


def read_table(spark: SparkSession, table: LakeTable, schema: StructType) -> DataFrame:
    """These columns of a table; raises NotFoundError if it does not exist."""
    paths = table.paths()
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(**table.reader_options()).parquet(*paths)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types of the columns, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
