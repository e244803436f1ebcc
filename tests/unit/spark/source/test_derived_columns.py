"""Columns that are made from others: decoded values, bad records, Kafka's columns."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from skylark.client.arrow.arrow_columns import make_schema
from skylark.core.errors import ConfigError
from skylark.spark.data_source import DefaultSource
from skylark.spark.source import derived_columns
from skylark.spark.source.derived_columns import BadRecordError, DerivedColumns
from skylark.spark.source.schema import KAFKA_TYPES, source_schema
from skylark.spark.source.source_options import SourceOptions, source_options
from skylark.spark.source.value_types import struct_of_text

ORDER = struct_of_text("uid string, amount int, labels map<string,int>")
AT = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def options(**given: str) -> SourceOptions:
    given = {"nameserver": "h:1", "topic": "T", **given}
    return source_options(given, streaming=False, environ={})


def batch(bodies: Sequence[bytes], columns: Sequence[str]) -> pa.RecordBatch:
    rows = [
        {
            "topic": "T", "brokerName": "broker-a", "queueId": 3, "queueOffset": 10 + n,
            "msgId": f"id-{n}", "keys": f"k{n}" if n else None, "body": body,
            "storeTimestamp": AT, "properties": [("a", "b")],
        }
        for n, body in enumerate(bodies)
    ]  # fmt: skip
    schema = make_schema(pa, columns)
    return pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema
    )


def made(
    columns: Sequence[str], bodies: Sequence[bytes], kind: StructType | None = ORDER, **given: str
) -> list[dict[str, Any]]:
    if kind is not None:
        given = {"valueformat": "json", **given}
    derived = DerivedColumns(options(**given), columns, kind)
    assert derived.is_needed
    found: list[dict[str, Any]] = []
    for each in derived.make(iter([batch(bodies, derived.base)])):
        assert each.schema.names == list(columns)
        found += each.to_pylist()
    return found


GOOD, BAD, WRONG = b'{"uid": "u", "amount": 3, "labels": {"x": 1}}', b"{", b'{"amount": "3"}'


def test_values_are_decoded() -> None:
    rows = made(("queueOffset", "value"), [GOOD, b'{"uid": null, "other": 1}'])
    assert rows == [
        {"queueOffset": 10, "value": {"uid": "u", "amount": 3, "labels": [("x", 1)]}},
        {"queueOffset": 11, "value": {"uid": None, "amount": None, "labels": None}},
    ]


def test_permissive_rows_say_why_and_where() -> None:
    rows = made(("value", "_corrupt_record", "body"), [GOOD, BAD, WRONG])
    assert [row["_corrupt_record"] is None for row in rows] == [True, False, False]
    assert rows[1]["value"] is None
    assert rows[1]["body"] == BAD
    assert rows[1]["_corrupt_record"].startswith(
        "message id-1 (topic T, broker broker-a, queue 3, offset 11): no JSON"
    )
    assert "not valid: Expected `int | null`, got `str`" in rows[2]["_corrupt_record"]


def test_malformed_rows_are_dropped() -> None:
    rows = made(("queueOffset", "value"), [BAD, GOOD, WRONG], mode="dropmalformed")
    assert [row["queueOffset"] for row in rows] == [11]
    assert made(("value",), [BAD], mode="dropmalformed") == []


def test_failfast_names_the_message() -> None:
    with pytest.raises(
        BadRecordError,
        match=r"message id-1 \(topic T, broker broker-a, queue 3, offset 11\) cannot be decoded",
    ):
        made(("value",), [GOOD, BAD], mode="failfast")


def test_values_that_do_not_fit_arrow_are_bad() -> None:
    """The type is the user's own; Avro has checked the bodies by another one."""
    schema = b'{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    given = {"valueformat": "avro", "valueschema": schema.decode()}
    rows = made(
        ("value", "_corrupt_record"), [b"\x02", b"\x80\x80\x80\x80\x80\x80\x01"],
        struct_of_text("n int"), **given,
    )  # fmt: skip
    assert rows[0] == {"value": {"n": 1}, "_corrupt_record": None}
    assert "it does not fit the schema" in rows[1]["_corrupt_record"]


def test_bad_records_are_sent_to_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[int, str]] = []
    monkeypatch.setattr(
        derived_columns, "_send_bad_records", lambda _options, _batch, reasons: sent.append(reasons)
    )
    made(("value",), [BAD, GOOD, WRONG], badrecordstopic="Bad", mode="dropmalformed")
    assert [sorted(each) for each in sent] == [[0, 2]]


def test_the_columns_of_kafka() -> None:
    columns = tuple(KAFKA_TYPES)
    rows = made(columns, [b"x", b"y"], None)
    assert rows[1] == {
        "key": b"k1", "value": b"y", "topic": "T", "partition": 3, "offset": 11, "timestamp": AT,
        "timestampType": 1, "headers": [{"key": "a", "value": b"b"}],
    }  # fmt: skip
    assert rows[0]["key"] is None


def test_plain_columns_need_nothing() -> None:
    derived = DerivedColumns(options(), ("body", "keys"), None)
    assert not derived.is_needed
    assert derived.base == ("body", "keys")


def test_schemas() -> None:
    kafka = DefaultSource({"kafka.bootstrap.servers": "h:1", "subscribe": "T"}).schema()
    assert kafka.names[:7] == [name for name in KAFKA_TYPES if name != "headers"]
    assert set(source_schema().names) < set(kafka.names)
    decoded = DefaultSource(
        {"topic": "T", "valueformat": "json", "valueschema": "uid string", "columns": "value,keys"}
    ).schema()
    assert decoded.simpleString() == "struct<value:struct<uid:string>,keys:string>"
    default = DefaultSource({"topic": "T", "value_format": "json", "valueschema": "uid string"})
    assert default.schema().names[-2:] == ["value", "_corrupt_record"]
    with pytest.raises(ConfigError, match="valueFormat=avro needs the schema"):
        DefaultSource({"topic": "T", "valueformat": "avro"}).schema()


def test_a_user_gives_the_type_of_values() -> None:
    given = {"nameserver": "h:1", "topic": "T", "valueformat": "json"}
    source = DefaultSource(given)
    schema = StructType().add("value", ORDER).add("queueOffset", "long")
    assert source._reading(schema, streaming=True)[2] == ORDER
    with pytest.raises(ConfigError, match="column value is struct<>, not string"):
        source._reading(StructType().add("value", "string"), streaming=True)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mode": "failfast"}, "option mode is about decoding, and no valueFormat"),
        ({"valueformat": "json", "mode": "failfast", "bad_records": "B"}, "exclude each other"),
        ({"valueformat": "xml"}, "valueFormat=.xml. is not valid"),
        ({"valueformat": "avro", "valueschema": "/nowhere/x.avsc"}, "no such file"),
    ],
)
def test_mistakes(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        options(**given)
