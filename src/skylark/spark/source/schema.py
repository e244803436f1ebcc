"""Schema of the source: its columns with their Spark types.

:mod:`skylark.client.arrow.arrow_reader` fills the columns. All are nullable: an Arrow batch must
match the schema exactly, and nullable is Spark's default. Users select columns by the option
``columns`` or by a schema, because Spark does not tell a Python source which columns a query uses.
A schema may have any of the columns in any order, with the types below.

With ``valueFormat`` there are two more columns, ``value`` with the decoded body and
``_corrupt_record``; with the options of Spark's Kafka source its columns come first
(:mod:`skylark.spark.source.derived_columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
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


VALUE: Final = "value"
CORRUPT: Final = "_corrupt_record"
#: The columns of Spark's Kafka source, in its order; ``topic`` is one of ours.
KAFKA_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    VALUE: BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField(VALUE, BinaryType())])
    ),
}


def source_schema(
    columns: Sequence[str] | None = None,
    *,
    value: DataType | None = None,
    is_kafka: bool = False,
    with_corrupt: bool = True,
) -> StructType:
    """The schema with these columns, or the default ones; raises ConfigError.

    ``value`` is the type of decoded bodies; ``is_kafka``: the options are those of Spark's Kafka
    source, so that its columns come first; ``with_corrupt``: bad records are rows.
    """
    types = _types(value)
    names = list(DEFAULT_TYPES)
    if is_kafka:
        names = [*(name for name in KAFKA_TYPES if name != "headers"), *names]
    if value is not None:
        names += [VALUE, CORRUPT] if with_corrupt else [VALUE]
    names = list(dict.fromkeys(names)) if columns is None else list(columns)
    if unknown := [name for name in names if name not in types]:
        raise _no_columns(unknown)
    return StructType([StructField(name, types[name]) for name in names])


def schema_columns(schema: StructType, *, decodes: bool = False) -> tuple[str, ...]:
    """The columns of a user's schema, in its order; raises ConfigError.

    ``decodes``: bodies are decoded, and the column ``value`` may be any struct.
    """
    types = _types(schema[VALUE].dataType if decodes and VALUE in schema.names else None)
    if unknown := [field.name for field in schema if field.name not in types]:
        raise _no_columns(unknown)
    if not len(schema) or len(set(schema.names)) != len(schema):
        raise ConfigError("the schema must have columns, each once", hint=_column_hint())
    for field in schema:
        wanted = types[field.name]
        if decodes and field.name == VALUE and not isinstance(field.dataType, StructType):
            wanted = StructType()
        if field.dataType != wanted or not field.nullable:
            nullable = "" if field.nullable else " not null"
            raise ConfigError(
                f"column {field.name} is {wanted.simpleString()}, not"
                f" {field.dataType.simpleString()}{nullable}",
                hint="read it as it is, and cast it in the query",
            )
    return tuple(schema.names)


def _types(value: DataType | None) -> dict[str, DataType]:
    """The types of all columns; ``value`` is that of decoded bodies."""
    types = KAFKA_TYPES | ALL_TYPES
    return types if value is None else types | {VALUE: value, CORRUPT: StringType()}


def _no_columns(unknown: Sequence[str]) -> ConfigError:
    return ConfigError(f"the source has no column {', '.join(unknown)}", hint=_column_hint())


def _column_hint() -> str:
    columns = (f"{name} {kind.simpleString()}" for name, kind in ALL_TYPES.items())
    return f"there are {', '.join(columns)}"
