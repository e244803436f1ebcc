"""Spark types of decoded bodies."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import StructType

from skylark.core.errors import ConfigError
from skylark.spark.source.value_types import arrow_ready, json_type, struct_of_text, value_type
from tests.unit.client.decode.test_body_decoders import descriptor_set


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind} for each, kind in fields],
    }


@pytest.mark.parametrize(
    "text",
    [
        "uid string, amount int",
        "`a b` bigint, c decimal(10,2), d timestamp",
        "a array<map<string,struct<x:int,y:array<double>>>>, b boolean",
    ],
)
def test_text_as_spark_writes_it(text: str) -> None:
    found = struct_of_text(text)
    again = struct_of_text(found.simpleString()[7:-1].replace("a b", "`a b`"))
    assert again == found
    assert struct_of_text(json.dumps(found.jsonValue())) == found
    assert len(found) == text.count(", ") + 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "in place of a name"),
        ("uid", "unknown type"),
        ("uid strin", "unknown type 'strin'"),
        ("uid string amount int", "in place of a comma"),
        ("a array<int", "in place of '>'"),
        ("a decimal(x", "decimal"),
        ("a ; b", "cannot be read"),
        ("{}", "no JSON of a StructType"),
    ],
)
def test_text_that_is_no_schema(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        struct_of_text(text)


def avro(schema: Any) -> StructType:
    return value_type("avro", json.dumps(schema).encode())


def test_avro_records() -> None:
    inner = record(("x", "int"), name="Inner")
    schema = record(
        ("id", "long"),
        ("name", ["null", "string"]),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("state", {"type": "enum", "name": "S", "symbols": ["A"]}),
        ("one", inner),
        ("many", {"type": "array", "items": "Inner"}),
        ("by", {"type": "map", "values": "double"}),
    )
    assert avro(schema).simpleString() == (
        "struct<id:bigint,name:string,at:timestamp,price:decimal(9,2),state:string,one:struct<x:int>,"
        "many:array<struct<x:int>>,by:map<string,double>>"
    )


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("string", "is not a record"),
        (record(("a", ["int", "string"])), r"value.a is a union of 2 types"),
        (record(("a", ["null", "R"])), "value.a is R"),
        (record(("a", {"type": "int", "logicalType": "time-millis"})), "logical type time-millis"),
    ],
)
def test_avro_schemas_without_a_counterpart(schema: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        avro(schema)


def test_protobuf_messages() -> None:
    assert value_type("protobuf", descriptor_set(), "shop.Order").simpleString() == (
        "struct<uid:string,amount:bigint,state:string,lines:array<struct<sku:string>>,"
        "labels:map<string,bigint>,gift:struct<sku:string>,raw:binary>"
    )


def test_json_is_checked_by_the_type() -> None:
    kind = struct_of_text(
        "uid string, n smallint, tags array<string>, m map<string,int>, t timestamp"
    )
    decoder = msgspec.json.Decoder(json_type(kind))
    good = {
        "uid": "u",
        "n": 5,
        "tags": ["a"],
        "m": {"x": 1},
        "t": "2026-11-01T12:00:00Z",
        "more": 1,
    }
    found = decoder.decode(json.dumps(good))
    assert {name: found[name] for name in ("uid", "n", "tags", "m")} == {
        name: good[name] for name in ("uid", "n", "tags", "m")
    }
    assert decoder.decode('{"uid": null}') == {"uid": None}
    for wrong in ('{"n": 40000}', '{"n": 1.5}', '{"uid": 3}', '{"m": {"x": "y"}}', "[]"):
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(wrong)


def test_maps_become_pairs() -> None:
    assert arrow_ready(struct_of_text("a int, b array<string>")) is None
    ready = arrow_ready(
        struct_of_text("a int, m map<string,map<string,int>>, l array<map<int,int>>")
    )
    assert ready is not None
    assert ready({"a": 1, "m": {"x": {"y": 2}}, "l": [{1: 2}]}) == {
        "a": 1, "m": [("x", [("y", 2)])], "l": [[(1, 2)]],
    }  # fmt: skip
    assert ready({"a": 1}) == {"a": 1, "m": None, "l": None}
    assert ready(None) is None
