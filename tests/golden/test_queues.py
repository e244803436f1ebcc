"""Consume queues against those of a real broker (RocketMQ 5.5.0, Java).

``data/store-*`` are the stores of a broker that was shut down, of one that was killed, and a copy
of the latter with a damaged end; ``data/expected`` is what a second Java broker made of them. From
the records of the log the queue files come out byte for byte, with the sizes the broker had.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from skylark.core.hashing import java_hash
from skylark.core.names import SCHEDULE_TOPIC
from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import ConsumeQueue, Dispatched
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.queue_registry import ConsumeQueues
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import FLAG_INNER_BATCH
from skylark.wire.message import MessageRecord, Verify
from tests.support.records import plain_records

DATA = Path(__file__).parent / "data"
TRANSACTION_MASK, TRANSACTION_COMMIT = 0xC, 0x8
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
LOG_END = {"store-basic": 124586, "store-crashed": 144910, "store-torn": 142909}


def records(store: str) -> list[MessageRecord]:
    log = b"".join(file.read_bytes() for file in sorted((DATA / store / "commitlog").iterdir()))
    found, _, end = plain_records(log, verify=Verify.BODY, log_start=0)
    assert end == LOG_END[store]
    return found


def expected(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "expected" / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def open_queues(files: FileSystem, root: Path) -> ConsumeQueues:
    return ConsumeQueues(
        files, root, DirtyRanges(files), queue_file_size=6000, batch_queue_file_size=4600
    )


def tags_code(record: MessageRecord) -> int:
    properties = record.properties
    if record.topic == SCHEDULE_TOPIC:
        level = min(int(properties["DELAY"]), len(DELAYS_S))
        return record.store_timestamp + 1000 * DELAYS_S[level - 1]
    return java_hash(properties.get("TAGS", ""))


def dispatch(queues: ConsumeQueues, record: MessageRecord) -> Dispatched | None:
    if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
        return None
    if record.sys_flag & FLAG_INNER_BATCH:
        return queues.get_or_create_batch(record.topic, record.queue_id).dispatch(
            record.log_offset,
            record.total_size,
            tags_code(record),
            record.store_timestamp,
            int(record.properties["INNER_BASE"]),
            int(record.properties["INNER_NUM"]),
        )
    return queues.get_or_create(record.topic, record.queue_id).dispatch(
        record.log_offset, record.total_size, tags_code(record), record.queue_offset
    )


def entries_of(queues: ConsumeQueues) -> list[tuple[str, int, int, int, int, int]]:
    found = []
    for queue in queues:
        for offset in range(queue.min_offset, queue.max_offset):
            entry = queue.read_entry(offset)
            assert entry is not None
            if entry.queue_offset == offset:
                found.append((queue.topic, queue.queue_id, *entry[:4]))
    return sorted(found)


def java_entries(store: str) -> list[tuple[str, int, int, int, int, int]]:
    names = ("topic", "queueId", "queueOffset", "physicOffset", "size", "tagsCode")
    return sorted(tuple(line[name] for name in names) for line in expected(f"{store}.cq"))


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.glob("*consumequeue/**/*")
        if file.is_file()
    }


def test_the_files_are_as_java_left_them() -> None:
    sums = (DATA / "views.sha256").read_text().splitlines()
    assert len(sums) == 42
    for line in sums:
        digest, name = line.split()
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest, name


def test_queue_files_are_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    queues = open_queues(OsFileSystem(), tmp_path)
    assert {dispatch(queues, record) for record in records("store-basic")} == {Dispatched.APPENDED}
    queues.flush()
    queues.close()
    java = tree(DATA / "store-basic")
    assert len(java) == 20
    assert tree(tmp_path) == java


@pytest.mark.parametrize("store", ["store-basic", "store-crashed"])
def test_queues_read_as_java_serves_them(store: str) -> None:
    disk = FaultyFileSystem()
    disk.copy_in(DATA / store, Path("/store"))
    queues = open_queues(disk, Path("/store"))
    queues.load(clean=True)
    queues.recover()
    plain = [entry for entry in entries_of(queues) if entry[0] != "GoldenBatchCq"]
    assert plain == java_entries(store)
    summary = json.loads((DATA / "expected" / f"{store}.summary.json").read_text())["queues"]
    assert {
        f"{queue.topic}@{queue.queue_id}": (queue.min_offset, queue.max_offset) for queue in queues
    } == {name: (bounds["min"], bounds["max"]) for name, bounds in summary.items()}
    # Nothing is left to do, and doing it again changes nothing.
    assert {dispatch(queues, record) for record in records(store)} <= {Dispatched.REPEATED, None}
    assert queues.dirty_count == 0


def test_inner_batches_read_as_java_serves_them() -> None:
    disk = FaultyFileSystem()
    disk.copy_in(DATA / "store-basic", Path("/store"))
    queues = open_queues(disk, Path("/store"))
    queues.load(clean=True)
    assert queues.recover() == LOG_END["store-basic"]
    queue = queues.get("GoldenBatchCq", 0)
    assert isinstance(queue, BatchQueue)
    lines = expected("store-basic.batchcq")
    assert [queue.read_entry(line["msgBaseOffset"]) for line in lines] == [
        (
            line["msgBaseOffset"],
            line["physicOffset"],
            line["size"],
            line["tagsCode"],
            line["batchSize"],
        )
        for line in lines
    ]


@pytest.mark.parametrize("store", ["store-crashed", "store-torn"])
@pytest.mark.parametrize("synced_until", [0, 65536, 131072])
def test_a_crashed_store_recovers_to_what_java_reports(store: str, synced_until: int) -> None:
    """Java's own queue files lead beyond the damaged log; ours are cut and filled from it."""
    disk = FaultyFileSystem()
    disk.copy_in(DATA / store, Path("/store"))
    queues = open_queues(disk, Path("/store"))
    queues.load(clean=False)
    assert queues.recover(synced_until) <= synced_until
    for record in records(store):
        if record.log_offset >= synced_until:
            assert dispatch(queues, record) is Dispatched.APPENDED
    queues.truncate(LOG_END[store])
    assert entries_of(queues) == java_entries(store)


def test_entries_beyond_the_end_of_the_log_are_cut() -> None:
    """Without trust in the checkpoint: what recovery after a clean exit does."""
    disk = FaultyFileSystem()
    disk.copy_in(DATA / "store-torn", Path("/store"))
    queues = open_queues(disk, Path("/store"))
    queues.load(clean=True)
    assert queues.recover() == 144910
    queues.truncate(LOG_END["store-torn"])
    assert entries_of(queues) == java_entries("store-torn")
    queue = queues.get("CrashB", 0)
    assert isinstance(queue, ConsumeQueue)
    assert (queue.max_offset, queue.next_offset, queue.max_log_offset) == (148, 148, 142579)
    file = disk.read_file(Path("/store/consumequeue/CrashB/0/00000000000000000000"))
    assert file[148 * 20 :] == bytes(6000 - 148 * 20)
