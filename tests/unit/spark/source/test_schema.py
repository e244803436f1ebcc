"""The columns as Spark types and as Arrow types."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from skylark.client.arrow.arrow_reader import arrow_schema
from skylark.core.errors import ConfigError
from skylark.spark.data_source import DefaultSource
from skylark.spark.source.schema import ALL_TYPES, DEFAULT_TYPES, schema_columns, source_schema


def test_spark_and_arrow_agree() -> None:
    assert source_schema().names == arrow_schema().names == list(DEFAULT_TYPES)
    everything = list(ALL_TYPES)
    ours = arrow_schema(everything)
    theirs = to_arrow_schema(source_schema(everything), timezone="UTC")
    assert [field.name for field in theirs] == everything
    for field in theirs:
        assert ours.field(field.name).type == field.type or pa.types.is_map(field.type)
        assert ours.field(field.name).nullable


@pytest.mark.spec("spark.9.5")
def test_columns_are_chosen_by_option_or_schema() -> None:
    source = DefaultSource({"columns": "queueOffset,body"})
    assert source.schema().simpleString() == "struct<queueOffset:bigint,body:binary>"
    user = StructType().add("body", BinaryType()).add("queueOffset", LongType())
    assert schema_columns(user) == ("body", "queueOffset")


def test_errors_about_columns_list_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="no column nosuch: there are topic string, brokerName"):
        schema_columns(StructType().add("nosuch", IntegerType()))
    with pytest.raises(ConfigError, match="column body is binary, not string"):
        schema_columns(StructType().add("body", StringType()))
    with pytest.raises(ConfigError, match="column body is binary, not binary not null"):
        schema_columns(StructType().add("body", BinaryType(), nullable=False))
    with pytest.raises(ConfigError, match="no column x"):
        DefaultSource({"columns": "x"}).schema()
    with pytest.raises(ConfigError, match="each once"):
        schema_columns(StructType())
