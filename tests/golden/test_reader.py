"""Reading the stores that a real broker (RocketMQ 5.5.0, Java) left behind, as a consumer does.

``data/expected`` is what a second Java broker served from copies of them, through pull and query
calls; times are those of its messages.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.core.hashing import java_hash
from skylark.filter.sql_eval import compile_sql
from skylark.filter.tag import parse_tags
from skylark.store.consume_queue import Boundary
from skylark.store.message_reader import Reader
from skylark.store.queue_scan import PropertyMatcher, TagMatcher
from skylark.store.running_flags import RunningFlags
from skylark.store.store_results import GetStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.message import (
    MessageRecord,
    decode_record,
    inflate_record,
    iter_records,
    unwrap_record,
)
from tests.unit.store.crash_store import CrashStore

DATA = Path(__file__).parent / "data"
STORES = ["store-basic", "store-crashed", "store-torn"]
ROOT = Path("/store")
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 32768,
    "mapped_file_size_consume_queue": 6000,
    "mapper_file_size_batch_consume_queue": 4600,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def opened(name: str) -> Reader:
    disk = FaultyFileSystem()
    disk.copy_in(DATA / name, ROOT)
    store = CrashStore(disk, ROOT, **SETTINGS)
    store.open()
    return Reader(
        store.config,
        store.log,
        store.queues,
        store.index,
        RunningFlags(),
        ram_size=1 << 40,
        dispatched_until=lambda: store.dispatch.dispatched_until,
    )


def expected(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "expected" / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def by_queue(name: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in expected(f"{name}.messages"):
        queues.setdefault((line["topic"], line["queueId"]), []).append(line)
    return queues


def pulled(
    reader: Reader,
    topic: str,
    queue_id: int,
    tags: TagMatcher | None = None,
    properties: PropertyMatcher | None = None,
    count_max: int = 32,
) -> Iterator[MessageRecord]:
    """The records of a queue, read to its end."""
    offset = 0
    while offset < reader.max_offset(topic, queue_id):
        result = reader.get(topic, queue_id, offset, count_max, tags, properties)
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        assert result.next_offset > offset
        records = [record for view in result.views for record in iter_records(bytes(view))]
        result.release()
        yield from records
        offset = result.next_offset
    end = reader.get(topic, queue_id, offset, count_max)
    assert (end.status, end.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, offset)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("count_max", [1, 32])
def test_every_message_is_served(name: str, count_max: int) -> None:
    reader = opened(name)
    for (topic, queue_id), lines in by_queue(name).items():
        found = []
        for record in pulled(reader, topic, queue_id, count_max=count_max):
            inflate_record(record)
            found += [
                (part.queue_offset, part.log_offset, base64.b64encode(part.body).decode())
                for part in unwrap_record(record)
            ]
        assert found == [
            (line["queueOffset"], line["commitLogOffset"], line["body"]) for line in lines
        ]


@pytest.mark.parametrize("expression", ["Aa", "Aa || TagB", "TagA || TagB || TagC", "x"])
def test_tags_select_by_their_hash(expression: str) -> None:
    reader = opened("store-basic")
    wanted = {java_hash(tag.strip()) for tag in expression.split("||")}
    for (topic, queue_id), lines in by_queue("store-basic").items():
        if topic in ("SCHEDULE_TOPIC_XXXX", "GoldenBatchCq"):
            continue  # a due time stands for the tag, or messages share an entry
        records = pulled(reader, topic, queue_id, parse_tags(expression))
        assert [record.queue_offset for record in records] == [
            line["queueOffset"] for line in lines if java_hash(line["tags"] or "") in wanted
        ]


def test_sql_selects_by_properties() -> None:
    reader = opened("store-basic")
    sql = compile_sql("a between 3 and 9 and seq is not null")
    found = 0
    for (topic, queue_id), lines in by_queue("store-basic").items():
        if topic == "GoldenBatchCq":
            continue
        records = pulled(reader, topic, queue_id, None, sql)
        offsets = [record.queue_offset for record in records]
        assert offsets == [
            line["queueOffset"]
            for line in lines
            if "seq" in line["properties"] and 3 <= int(line["properties"].get("a", -1)) <= 9
        ]
        found += len(offsets)
    assert found == 7


@pytest.mark.parametrize("name", STORES)
def test_times(name: str) -> None:
    reader = opened(name)
    for (topic, queue_id), lines in by_queue(name).items():
        if topic == "GoldenBatchCq":
            continue
        times = [line["storeTimestamp"] for line in lines]
        assert reader.earliest_store_time(topic, queue_id) == times[0]
        assert [reader.store_time(topic, queue_id, offset) for offset in range(len(times))] == times
        for time in {*times[::7], times[-1]}:
            first = times.index(time)
            last = len(times) - 1 - times[::-1].index(time)
            assert reader.offset_by_time(topic, queue_id, time) == first
            assert reader.offset_by_time(topic, queue_id, time, Boundary.UPPER) == last


@pytest.mark.parametrize("name", STORES)
def test_queries(name: str) -> None:
    reader = opened(name)
    for question in expected(f"{name}.index"):
        result = reader.query(question["topic"], question["key"], 64)
        found = [decode_record(view).log_offset for view in result.views]
        result.release()
        assert found == question["storeOffsets"], question["key"]
        if name == "store-basic" and found:
            assert question["ext"] == {
                "indexLastUpdatePhyoffset": str(result.index_last_log_offset),
                "indexLastUpdateTimestamp": str(result.index_last_timestamp),
            }
