"""The data source ``rocketmq``: the class that Spark finds, which creates readers and writers.

Spark creates a :class:`DefaultSource` in a separate process, long before anything is read, and
imports this module whenever it looks for data sources. So the module is small, sends no request,
and imports readers and writers when they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from skylark.spark.option_table import read_options
from skylark.spark.source.schema import schema_columns, source_schema
from skylark.spark.source.source_options import OPTIONS, source_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

FORMAT = "rocketmq"


class DefaultSource(DataSource):
    """Source and sink of format ``rocketmq``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The default columns, or those of the option ``columns``; raises ConfigError."""
        return source_schema(read_options(self.options, OPTIONS).get("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        from skylark.spark.source.source_readers import BatchReader

        return BatchReader(source_options(self.options, streaming=False), schema_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from skylark.spark.source.source_readers import StreamReader

        return StreamReader(source_options(self.options, streaming=True), schema_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from skylark.spark.sink.sink_writer import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Spark passes arguments by position and by keyword: the parameter names are fixed."""
        from skylark.spark.sink.sink_writer import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
