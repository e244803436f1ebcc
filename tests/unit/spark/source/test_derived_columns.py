"""Columns that are made from others: decoded values, bad records, Kafka's columns."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from skylark.client.arrow.arrow_columns import make_schema
from skylark.client.decode import schema_registry
from skylark.client.decode.schema_registry import RegistryUnavailableError
from skylark.core.backoff import Backoff
from skylark.core.errors import ConfigError
from skylark.spark import outages
from skylark.spark.data_source import DefaultSource
from skylark.spark.source import derived_columns
from skylark.spark.source.derived_columns import BadRecordError, DerivedColumns, ValueColumn
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


def test_dropped_rows_are_counted_and_the_first_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    derived = DerivedColumns(
        options(valueformat="json", mode="dropmalformed"), ("queueOffset", "value"), ORDER
    )
    parts = [batch([GOOD, BAD, WRONG], derived.base), batch([WRONG], derived.base)]
    with caplog.at_level(logging.WARNING):
        rows = sum(each.num_rows for each in derived.make(iter(parts)))
    assert rows == 1
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "3 rows that cannot be decoded as json were dropped, the first is message id-1 (topic T,"
        " broker broker-a, queue 3, offset 11): no JSON"
    )


class Registry:
    """A schema registry that does not answer at first."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def fetch(self, _: object, number: int) -> object:
        if self.failures:
            self.failures -= 1
            raise RegistryUnavailableError("the schema registry does not answer")
        return schema_registry._Schema(schema="{}", schema_type="JSON")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry(0)
    monkeypatch.setattr(schema_registry.SchemaRegistry, "_fetch", lambda *each: found.fetch(*each))
    monkeypatch.setattr(outages, "RETRY", Backoff(first_s=0.001, most_s=0.001))
    return found


FRAME = b"\0\0\0\0\1"


def test_json_of_a_registry_has_the_declared_types(registry: Registry) -> None:
    kind = struct_of_text("at timestamp, raw binary, n decimal(5,2)")
    body = b'{"at": "2026-11-01T00:00:00Z", "raw": "aGk=", "n": 1.5}'
    columns = ("value", "_corrupt_record")
    (plain,) = made(columns, [body], kind)
    (framed,) = made(columns, [FRAME + body], kind, schemaregistry="http://h:1")
    assert (plain["value"]["at"], plain["value"]["raw"]) == (AT, b"hi")
    assert framed == plain
    (wrong,) = made(columns, [FRAME + b'{"n": "x"}'], kind, schemaregistry="http://h:1")
    assert "not valid" in wrong["_corrupt_record"]
    assert registry.failures == 0


@pytest.mark.parametrize("mode", ["dropmalformed", "permissive"])
def test_an_outage_of_the_registry_is_ridden_out(registry: Registry, mode: str) -> None:
    registry.failures = 3
    rows = made(("value",), [FRAME + GOOD] * 2, schemaregistry="http://h:1", mode=mode)
    assert [row["value"]["uid"] for row in rows] == ["u", "u"]
    registry.failures = 1 << 30
    with pytest.raises(RegistryUnavailableError, match="does not answer"):
        made(("value",), [FRAME + GOOD], schemaregistry="http://h:1", outagetimeout="20ms")


class JumpingClock:
    """Its sleeps take no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_long_outage_of_the_registry_names_it_and_the_time(registry: Registry) -> None:
    given = options(valueformat="json", schemaregistry="http://h:1", outagetimeout="30s")
    clock = JumpingClock()
    column = ValueColumn(given, ORDER, clock)  # type: ignore[arg-type]
    registry.failures = 1 << 30
    derived = DerivedColumns(given, ("value",), ORDER)
    with pytest.raises(RegistryUnavailableError, match=r"registry does not answer, for 30 s now$"):
        column.decode(batch([FRAME + GOOD], derived.base))
    assert clock.now > 25
    assert (1 << 30) - registry.failures > 10


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
