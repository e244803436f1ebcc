"""Topics as Arrow: each row is what the plain decoder reads, and no message is missed unnoticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.arrow import arrow_reader as arrow
from skylark.client.arrow import record_rows
from skylark.client.arrow.arrow_columns import DEFAULT_COLUMNS, EXTRA_COLUMNS
from skylark.client.arrow.arrow_reader import (
    ArrowDecoder,
    arrow_schema,
    read_arrow,
)
from skylark.client.core.client_options import ClientOptions
from skylark.core.errors import (
    ClientError,
    ConfigError,
    RemoteProtocolError,
)
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.compress import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZLIB_OLD,
    COMPRESSION_ZSTD,
    compress_body,
    compression_flags,
)
from skylark.wire.layout import FLAG_COMPRESSED, FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from skylark.wire.message import (
    MessageRecord,
    encode_record,
    format_host,
    inflate_record,
    iter_records,
    pack_host,
    unwrap_record,
)
from skylark.wire.properties import encode_properties
from tests.unit.client.consumer.pull_world import PullWorld, pull_world, queue, served

ALL = DEFAULT_COLUMNS + EXTRA_COLUMNS
Row = dict[str, Any]


def time_of(time_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


def plain_rows(body: bytes, start: int = 0, end: int = 2**62) -> list[Row]:
    """The rows as the plain decoder reads them, one by one."""
    rows = []
    for record in iter_records(body):
        stored_flag = record.sys_flag
        inflate_record(record)
        parts = unwrap_record(record)
        for part in parts:
            flag = stored_flag if parts == [record] else part.sys_flag
            if start <= part.queue_offset < end:
                rows.append(plain_row(part, flag))
    return rows


def plain_row(record: MessageRecord, stored_flag: int) -> Row:
    properties = record.properties
    deliver = properties.get("TIMER_DELIVER_MS")
    return {
        "topic": record.topic,
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": record.queue_offset,
        "msgId": properties.get("UNIQ_KEY") or record.offset_id,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "body": record.body,
        "bornTimestamp": time_of(record.born_timestamp),
        "storeTimestamp": time_of(record.store_timestamp),
        "bornHost": format_host(record.born_host),
        "reconsumeTimes": record.reconsume_times,
        "sysFlag": stored_flag,
        "properties": properties,
        "commitLogOffset": record.log_offset,
        "offsetMsgId": record.offset_id,
        "flag": record.flag,
        "bodyCrc": record.body_crc,
        "storeSize": record.total_size,
        "storeHost": format_host(record.store_host),
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "shardingKey": properties.get("__SHARDINGKEY"),
        "deliverTimestamp": None if deliver is None else time_of(int(deliver)),
    }


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        if "properties" in row:
            items = row["properties"]
            row["properties"] = dict(items)
            assert len(items) == len(row["properties"])
    return rows


def decoded(body: bytes, columns: Iterable[str] = ALL, **given: Any) -> list[Row]:
    decoder = ArrowDecoder(queue(), tuple(columns), tags=given.pop("tags", None))
    batches = list(decoder.decode(body, given.pop("start", 0), given.pop("end", 2**62), **given))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == decoder.schema
    return rows_in(batches)


# ---- decoding ------------------------------------------------------------------------------------

HOSTS = st.sampled_from(
    [pack_host("10.0.0.1", 5), pack_host("10.0.0.2", 65_535), pack_host("2001:db8::7", 10_911)]
)
TIMES = st.integers(0, 4_000_000_000_000)
NAMES = st.sampled_from(["a", "KEYS", "TAGS", "UNIQ_KEY", "__SHARDINGKEY", "long name", "é"])
VALUES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9
)
PROPERTIES = st.one_of(
    st.dictionaries(NAMES, VALUES).map(lambda found: encode_properties(found).encode()),
    st.integers(0, 10**14).map(lambda ms: b"TIMER_DELIVER_MS\x01%d\x02" % ms),
    # What other clients may leave there: no ends, twice the same name, bytes that are no text.
    st.lists(st.sampled_from([b"a", b"TAGS", b"\x01", b"\x02", b"v", b"\xff"]), max_size=9).map(
        b"".join
    ),
)
BODIES = st.binary(max_size=40)
COMPRESSIONS = st.sampled_from(
    [None, None, None, COMPRESSION_ZLIB, COMPRESSION_ZLIB_OLD, COMPRESSION_LZ4, COMPRESSION_ZSTD]
)


@st.composite
def stored_bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """A body and its flags: plain or compressed, one message or a batch."""
    body, flags = draw(BODIES), 0
    if draw(st.integers(0, 5)) == 0:
        parts = st.builds(BatchMessage, BODIES, PROPERTIES, st.integers(0, 9))
        body = encode_batch(draw(st.lists(parts, min_size=1, max_size=3)))
        flags = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
    kind = draw(COMPRESSIONS)
    if kind is not None:
        body, flags = compress_body(body, kind), flags | compression_flags(kind)
    return body, flags


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """What a pull may bring."""
    records = []
    offset = draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(0, 8))):
        body, flags = draw(stored_bodies())
        offset += draw(st.integers(1, 5))
        records.append(
            encode_record(
                draw(st.sampled_from(["T", "%RETRY%g", "a" * 200])),
                body,
                draw(PROPERTIES),
                queue_offset=offset * 4,
                log_offset=draw(st.integers(0, 2**62)),
                born_timestamp=draw(TIMES),
                born_host=draw(HOSTS),
                store_timestamp=draw(TIMES),
                store_host=draw(HOSTS),
                flag=draw(st.integers(-(2**31), 2**31 - 1)),
                sys_flag=flags,
                reconsume_times=draw(st.integers(0, 20)),
                prepared_transaction_offset=draw(st.integers(0, 2**62)),
            )
        )
    return b"".join(records)


@settings(max_examples=150, deadline=None)
@given(answers(), st.integers(0, 40), st.integers(0, 4200))
def test_rows_are_those_of_the_plain_decoder(body: bytes, start: int, end: int) -> None:
    assert decoded(body) == plain_rows(body)
    assert decoded(body, start=start, end=end) == plain_rows(body, start, end)


@settings(max_examples=40, deadline=None)
@given(answers(), st.lists(st.sampled_from(ALL), min_size=1, unique=True))
def test_any_columns_in_any_order(body: bytes, columns: list[str]) -> None:
    expected = [{name: row[name] for name in columns} for row in plain_rows(body)]
    assert decoded(body, columns) == expected


@settings(max_examples=40, deadline=None)
@given(answers(), st.sampled_from(["v", "A || v", "é||v"]))
def test_tags_are_compared_as_texts(body: bytes, tags: str) -> None:
    wanted = {tag.strip() for tag in tags.split("||")}
    expected = [row for row in plain_rows(body) if row["tags"] in wanted]
    assert decoded(body, tags=tags) == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused(body: bytes) -> None:
    try:
        assert decoded(body) == plain_rows(body)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            plain_rows(body)


def test_large_answers_and_equal_tags() -> None:
    def tag(index: int) -> str:
        return ("Aa", "BB", "C")[index % 3]  # the first two have the same hash

    body = b"".join(
        encode_record(
            "T",
            b"x" * (index % 50),
            encode_properties({"TAGS": tag(index), "n": str(index)}).encode(),
            queue_offset=index,
        )
        for index in range(20_000)
    )
    found = decoded(body, ["queueOffset", "tags", "body", "properties"], tags="Aa")
    assert [row["queueOffset"] for row in found] == list(range(0, 20_000, 3))
    assert {row["tags"] for row in found} == {"Aa"}
    assert all(len(row["body"]) == row["queueOffset"] % 50 for row in found)
    assert found[-1]["properties"] == {"TAGS": "Aa", "n": "19998"}


def test_a_damaged_body_is_a_protocol_error() -> None:
    body = encode_record("T", b"no zlib", sys_flag=compression_flags(COMPRESSION_ZLIB))
    with pytest.raises(RemoteProtocolError, match="zlib"):
        decoded(body)
    assert decoded(body, ["sysFlag"]) == [{"sysFlag": FLAG_COMPRESSED | 0x300}]


def test_inflated_bodies_end_a_batch_before_it_gets_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow, "INFLATED_BATCH_SIZE", 1000)
    packed = compress_body(bytes(600), COMPRESSION_LZ4)
    flags = compression_flags(COMPRESSION_LZ4)
    body = b"".join(
        encode_record("T", packed, queue_offset=index, sys_flag=flags) for index in range(5)
    )
    batches = list(ArrowDecoder(queue(), ["queueOffset", "body"]).decode(body, 0, 9))
    assert [batch.num_rows for batch in batches] == [1, 1, 1, 1, 1]
    assert [row["queueOffset"] for row in rows_in(batches)] == [0, 1, 2, 3, 4]


def test_inner_batches_may_not_grow_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_rows, "UNWRAPPED_SIZE_MAX", 1000)
    packed = compress_body(encode_batch([BatchMessage(bytes(600))]), COMPRESSION_ZSTD)
    flags = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP | compression_flags(COMPRESSION_ZSTD)
    one = encode_record("T", packed, sys_flag=flags)
    assert len(decoded(one)) == 1
    with pytest.raises(RemoteProtocolError, match="exceeds 1000 bytes"):
        decoded(one + one)


def test_static_topics_shift_their_offsets() -> None:
    body = encode_record("T", b"x", queue_offset=3)
    assert decoded(body, ["queueOffset"], offset_delta=100) == [{"queueOffset": 103}]


def test_schema() -> None:
    schema = arrow_schema()
    assert schema.names == list(DEFAULT_COLUMNS)
    assert len(schema) == 14
    assert schema.field("storeTimestamp").type == pa.timestamp("us", "UTC")
    assert schema.field("properties").type == pa.map_(pa.string(), pa.string())
    assert arrow_schema(["body", "queueId"]).types == [pa.binary(), pa.int32()]
    with pytest.raises(ConfigError, match=r"no column 'nosuch'.*there are topic, brokerName"):
        arrow_schema(["body", "nosuch"])
    with pytest.raises(ConfigError, match="each once"):
        arrow_schema(["body", "body"])


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ClientError, match=r"needs pyarrow: pip install"):
        read_arrow("T")


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, skylark.client.arrow.arrow_reader;"
        "sys.exit(len({'numpy', 'pyarrow', 'lz4', 'zstandard'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# ---- topics --------------------------------------------------------------------------------------


async def collected(w: PullWorld, topic: str = "T", **given: Any) -> list[Row]:
    async def read() -> list[pa.RecordBatch]:
        batches = read_arrow(topic, w.options(), runtime=w.runtime, **given)
        return [batch async for batch in batches]

    return rows_in(await w.finish(read()))


async def test_a_whole_topic(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=6) as w:
        for queue_id in range(6):
            await w.send(
                *[b"%d-%d" % (queue_id, index) for index in range(queue_id)],
                queue_id=queue_id,
                KEYS="k1 k2",
                TAGS="A",
            )
        rows = await collected(w)
        places = [(row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows]
        assert sorted(places) == [("broker-a", q, o) for q in range(6) for o in range(q)]
        assert {row["body"] for row in rows} == {
            b"%d-%d" % (q, o) for q in range(6) for o in range(q)
        }
        assert {(row["topic"], row["keys"], row["tags"]) for row in rows} == {("T", "k1 k2", "A")}
        assert rows[0]["properties"]["CLUSTER"] == "DefaultCluster"
        store_times = [row["storeTimestamp"] for row in rows]
        assert all(
            abs(each - time_of(w.clock.now_ms())) < timedelta(minutes=1) for each in store_times
        )


async def test_bounds(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w:
        await w.send(b"a", b"b")
        await w.clock.advance(seconds=100)
        middle = time_of(w.clock.now_ms())
        await w.send(b"c")
        await w.send(b"d", queue_id=1)

        async def bodies(**given: Any) -> list[bytes]:
            return sorted(row["body"] for row in await collected(w, columns=["body"], **given))

        assert await bodies(start=middle) == [b"c", b"d"]
        assert await bodies(start=middle - timedelta(seconds=50), end=middle) == []
        assert await bodies(end=middle) == [b"a", b"b"]
        assert await bodies(start="latest") == await bodies(end="earliest") == []
        assert await bodies(start={("broker-a", 0): 1}) == [b"b", b"c", b"d"]
        assert await bodies(start={("broker-a", 0): 3}, end={("broker-a", 1): 0}) == []
        assert await bodies(end={("broker-a", 0): 2, ("broker-a", 1): 99}) == [b"a", b"b", b"d"]
        with pytest.raises(ClientError, match=r"no queues \[\('broker-a', 7\)\]"):
            await bodies(start={("broker-a", 7): 1})
        with pytest.raises(ClientError, match="is after its end, 3"):
            await bodies(start={("broker-a", 0): 4})
        with pytest.raises(ConfigError, match="not 'newest'"):
            await bodies(start="newest")


@pytest.mark.parametrize("bound", [5, None, 1.5, "newest"])
def test_what_is_no_bound_is_refused(bound: Any) -> None:
    for name in ("start", "end"):
        with pytest.raises(ConfigError, match=f"{name} is earliest, latest, a time or offsets"):
            read_arrow("T", **{name: bound})


async def test_only_some_tags(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        for tag in ("Aa", "BB", "C", "Aa"):
            await w.send(tag.encode(), TAGS=tag)
        rows = await collected(w, tags="Aa || C", columns=["queueOffset", "body"])
        assert rows == [
            {"queueOffset": 0, "body": b"Aa"},
            {"queueOffset": 2, "body": b"C"},
            {"queueOffset": 3, "body": b"Aa"},
        ]


async def test_an_empty_topic_and_an_unknown_one(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        assert await collected(w) == []
        with pytest.raises(ClientError, match="No route info"):
            await collected(w, "U")


async def test_reading_may_be_left_early(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=3) as w:
        for queue_id in range(3):
            await w.send(b"x", queue_id=queue_id)

        async def one() -> int:
            batches = read_arrow("T", w.options(), runtime=w.runtime)
            async for batch in batches:
                await batches.aclose()
                return int(batch.num_rows)
            raise AssertionError

        assert await w.finish(one()) == 1  # the world sees to it that nothing is left


# ---- without a world ----------------------------------------------------------------------------


async def test_a_topic_with_the_control_thread(tmp_path: Path) -> None:
    with served(tmp_path) as at:
        await asyncio.to_thread(at.send, b"a", b"b")
        options = ClientOptions(namesrv=at.namesrv)
        batches = [batch async for batch in read_arrow("T", options, columns=["body"])]
        assert rows_in(batches) == [{"body": b"a"}, {"body": b"b"}]
