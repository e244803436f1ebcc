"""Schema of the source: its columns with their Spark types.

:mod:`skylark.client.arrow.arrow_reader` fills the columns. All are nullable: an Arrow batch must
match the schema exactly, and nullable is Spark's default. Users select columns by the option
``columns`` or by a schema, because Spark does not tell a Python source which columns a query uses.
A schema may have any of the columns in any order, with the types below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from skylark.core.errors import ConfigError

DEFAULT_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "msgId": StringType(),
    "tags": StringType(),
    "keys": StringType(),
    "body": BinaryType(),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "bornHost": StringType(),
    "reconsumeTimes": IntegerType(),
    "sysFlag": IntegerType(),
    "properties": MapType(StringType(), StringType()),
}
ALL_TYPES: Final[dict[str, DataType]] = DEFAULT_TYPES | {
    "commitLogOffset": LongType(),
    "offsetMsgId": StringType(),
    "flag": IntegerType(),
    "bodyCrc": IntegerType(),
    "storeSize": IntegerType(),
    "storeHost": StringType(),
    "preparedTransactionOffset": LongType(),
    "shardingKey": StringType(),
    "deliverTimestamp": TimestampType(),
}


def source_schema(columns: Sequence[str] | None = None) -> StructType:
    """The schema with these columns, or the default ones; raises ConfigError."""
    names = list(DEFAULT_TYPES) if columns is None else list(columns)
    if unknown := [name for name in names if name not in ALL_TYPES]:
        raise _no_columns(unknown)
    return StructType([StructField(name, ALL_TYPES[name]) for name in names])


def schema_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a user's schema, in its order; raises ConfigError."""
    if unknown := [field.name for field in schema if field.name not in ALL_TYPES]:
        raise _no_columns(unknown)
    if not len(schema) or len(set(schema.names)) != len(schema):
        raise ConfigError("the schema must have columns, each once", hint=_column_hint())
    for field in schema:
        wanted = ALL_TYPES[field.name]
        if field.dataType != wanted or not field.nullable:
            nullable = "" if field.nullable else " not null"
            raise ConfigError(
                f"column {field.name} is {wanted.simpleString()}, not"
                f" {field.dataType.simpleString()}{nullable}",
                hint="read it as it is, and cast it in the query",
            )
    return tuple(schema.names)


def _no_columns(unknown: Sequence[str]) -> ConfigError:
    return ConfigError(f"the source has no column {', '.join(unknown)}", hint=_column_hint())


def _column_hint() -> str:
    columns = (f"{name} {kind.simpleString()}" for name, kind in ALL_TYPES.items())
    return f"there are {', '.join(columns)}"
