"""Stores of a real broker (RocketMQ 5.5.0, Java), opened, read, closed and continued as a whole.

The files and what Java reported of them are described in ``test_recovery.py``, which looks at the
parts; here everything goes through the store's own reader.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from skylark.core.hashing import encode_offset_id
from skylark.store.commit_log import Draft
from skylark.store.files import OsFileSystem
from skylark.store.message_store import MessageStore
from skylark.store.store_results import GetStatus, PutStatus
from skylark.wire.message import (
    MessageRecord,
    decode_record,
    format_host,
    inflate_record,
    unwrap_record,
)
from tests.support.store_machine import HOST, Machine, Queue, records_of

DATA = Path(__file__).parent / "data"
STORES = ("store-basic", "store-crashed", "store-torn")
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 32768,
    "mapped_file_size_consume_queue": 6000,
    "mapper_file_size_batch_consume_queue": 4600,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def expected(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "expected" / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def summary_of(name: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((DATA / f"expected/{name}.summary.json").read_text())
    return summary


def bounds_of(name: str) -> dict[Queue, tuple[int, int]]:
    """First and next offset of each queue, as Java says."""
    bounds = {}
    for queue, row in summary_of(name)["queues"].items():
        topic, _, queue_id = queue.rpartition("@")
        bounds[topic, int(queue_id)] = row["min"], row["max"]
    return bounds


def pulled(store: MessageStore, queue: Queue) -> list[MessageRecord]:
    """The messages of a queue as a consumer gets them: inflated, inner batches unwrapped."""
    messages = []
    offset = store.reader.min_offset(*queue)
    while offset < store.reader.max_offset(*queue):
        result = store.reader.get(*queue, offset, 32)
        assert result.status is GetStatus.FOUND
        for record in records_of(result.views):
            inflate_record(record)
            messages += unwrap_record(record)
        offset = result.next_offset
        result.release()
    return messages


def fields_of(message: MessageRecord) -> dict[str, Any]:
    """What Java's consumer reported of a message."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.log_offset,
        "storeSize": message.total_size,
        "bodyCRC": message.body_crc,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": format_host(message.born_host),
        "storeTimestamp": message.store_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "body": base64.b64encode(message.body).decode(),
    }


def assert_as_java(store: MessageStore, name: str) -> None:
    """Bounds, messages, single records and answers by key."""
    bounds = bounds_of(name)
    assert {(it.topic, it.queue_id) for it in store.queues} == bounds.keys()
    java = {
        (it["topic"], it["queueId"], it["queueOffset"]): it for it in expected(f"{name}.messages")
    }
    found = 0
    for queue, (first, end) in bounds.items():
        reader = store.reader
        assert (reader.min_offset(*queue), reader.max_offset(*queue)) == (first, end)
        messages = pulled(store, queue)
        assert len(messages) == end - first
        found += len(messages)
        for message in messages:
            line = java[message.topic, message.queue_id, message.queue_offset]
            fields = fields_of(message)
            assert fields == {key: line[key] for key in fields}
            with_id = store.reader.record(message.log_offset)
            assert with_id is not None
            with with_id:
                record = decode_record(with_id.view)
            if line["msgId"] is not None:  # Java has none for the parts of an inner batch
                assert encode_offset_id(record.store_host, record.log_offset) == line["msgId"]
    assert found == len(java) == summary_of(name)["messages"]
    questions = expected(f"{name}.index")
    assert len(questions) > 30
    for question in questions:
        answer = store.reader.query(question["topic"], question["key"], 64)
        offsets = [record.log_offset for record in records_of(answer.views)]
        answer.release()
        assert offsets == question["storeOffsets"], question["key"]


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / name, tmp_path / "store"))


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("checkpoint", "abort")
    }


def test_a_java_store_is_served_and_kept(name: str, root: Path) -> None:
    machine = Machine()
    java = tree(root)
    store = machine.store(OsFileSystem(), root, **SETTINGS)
    assert store.open().clean == (name == "store-basic")
    store.start()
    machine.advance(1)  # the index of a killed store catches up
    assert_as_java(store, name)
    machine.close(store)
    once = tree(root)
    if name == "store-basic":
        assert once == java
    again = machine.opened(OsFileSystem(), root, **SETTINGS)
    assert_as_java(again, name)
    machine.advance(20_000)
    machine.close(again)
    assert tree(root) == once


def test_a_java_store_goes_on(name: str, root: Path) -> None:
    machine = Machine()
    store = machine.opened(OsFileSystem(), root, **SETTINGS)
    machine.advance(1)
    bounds = bounds_of(name)
    queue = ("GoldenB" if name == "store-basic" else "CrashB", 0)
    for number in range(50):
        result = store.put(
            Draft(*queue, b"%d" % number, b"KEYS\x01key-%d\x02" % number, born_host=HOST)
        )
        assert result.status is PutStatus.PUT_OK
        assert result.queue_offset == bounds[queue][1] + number
    machine.close(store)
    again = machine.opened(OsFileSystem(), root, **SETTINGS)
    messages = pulled(again, queue)
    assert [it.body for it in messages[-50:]] == [b"%d" % number for number in range(50)]
    assert len(messages) == bounds[queue][1] - bounds[queue][0] + 50
    answer = again.reader.query(queue[0], "key-7", 64)
    assert [it.body for it in records_of(answer.views)] == [b"7"]
    answer.release()
    machine.close(again)
