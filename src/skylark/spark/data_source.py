"""The data source ``rocketmq``: the class that Spark finds, which creates readers and writers.

Spark creates a :class:`DefaultSource` in a separate process, long before anything is read, and
imports this module whenever it looks for data sources. So the module is small, sends no request,
and imports readers and writers when they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from skylark.core.errors import ConfigError
from skylark.spark.option_table import read_options
from skylark.spark.source.schema import schema_columns, source_schema
from skylark.spark.source.source_options import OPTIONS, SourceOptions, source_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

FORMAT = "rocketmq"
#: An option that only jobs of Spark's Kafka source have.
KAFKA_SERVERS = "kafka.bootstrap.servers"


class DefaultSource(DataSource):
    """Source and sink of format ``rocketmq``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The default columns, or those of the option ``columns``; raises ConfigError."""
        values = read_options(self.options, OPTIONS)
        value = None
        if "valueFormat" in values:
            value = decoded_type(
                values["valueFormat"], values.get("valueSchema"), values.get("valueMessage")
            )
        return source_schema(
            values.get("columns"),
            value=value,
            is_kafka=KAFKA_SERVERS in {name.lower() for name in self.options},
            with_corrupt=values.get("mode", "permissive") == "permissive",
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        from skylark.spark.source.source_readers import BatchReader

        return BatchReader(*self._reading(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from skylark.spark.source.source_readers import StreamReader

        return StreamReader(*self._reading(schema, streaming=True))

    def _reading(
        self, schema: StructType, *, streaming: bool
    ) -> tuple[SourceOptions, tuple[str, ...], StructType | None]:
        """Options, columns and the type of decoded bodies; raises ConfigError."""
        options = source_options(self.options, streaming=streaming)
        decodes = options.value_format is not None
        columns = schema_columns(schema, decodes=decodes)
        if not decodes:
            return options, columns, None
        if "value" in columns:
            kind = schema["value"].dataType
            assert isinstance(kind, StructType), "schema_columns has checked it"
            return options, columns, kind
        kind = decoded_type(options.value_format, options.value_schema, options.value_message)
        return options, columns, kind

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from skylark.spark.sink.sink_writer import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Spark passes arguments by position and by keyword: the parameter names are fixed."""
        from skylark.spark.sink.sink_writer import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


def decoded_type(name: str | None, schema: bytes | None, message: str | None) -> StructType:
    """The type of decoded bodies by the options; raises ConfigError."""
    from skylark.spark.source.value_types import value_type

    assert name is not None, "there is a format"
    if schema is None:
        raise ConfigError(
            f"valueFormat={name} needs the schema of its values",
            hint="give valueSchema, as text or a file, or .schema(...) with a column value",
        )
    return value_type(name, schema, message)
