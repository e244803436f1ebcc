"""Recovery of the stores that a real broker (RocketMQ 5.5.0, Java) left behind.

``data/store-basic`` was shut down in order, ``data/store-crashed`` killed while messages came in,
and ``data/store-torn`` is a copy of it with a damaged end. ``data/expected`` is what a second Java
broker reported after it had recovered copies of them. The stores are complete but for
``rocksdbstore``, which holds no messages.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.core.errors import CorruptLogError
from skylark.store.files import OsFileSystem
from skylark.store.recovery import RecoveryReport
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.message import RecordFault, format_host, inflate_record, unwrap_record
from tests.unit.store.crash_store import CrashStore

DATA = Path(__file__).parent / "data"
ROOT = Path("/store")
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 32768,
    "mapped_file_size_consume_queue": 6000,
    "mapper_file_size_batch_consume_queue": 4600,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def installed(store: str) -> FaultyFileSystem:
    disk = FaultyFileSystem()
    disk.copy_in(DATA / store, ROOT)
    return disk


def opened(disk: FaultyFileSystem, **settings: Any) -> tuple[CrashStore, RecoveryReport]:
    store = CrashStore(disk, ROOT, **{**SETTINGS, **settings})
    return store, store.open()


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "abort"
    }


def tree_of(disk: FaultyFileSystem, tmp_path: Path) -> dict[str, bytes]:
    disk.copy_out(ROOT, tmp_path)
    return tree(tmp_path)


def remove_tree(disk: FaultyFileSystem, path: Path) -> None:
    for entry in disk.list_directory(path):
        if entry.is_directory:
            remove_tree(disk, path / entry.name)
        else:
            disk.remove(path / entry.name)
    disk.remove_directory(path)


def expected(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "expected" / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def served(store: CrashStore) -> Iterator[dict[str, Any]]:
    """All messages as Java's consumer sees them: the fields that a store answers for."""
    for queue in store.queues:
        offset = queue.min_offset
        while offset < queue.max_offset:
            entry = queue.read_entry(offset)
            assert entry is not None
            record = store.record(entry.log_offset, entry.size)
            inflate_record(record)
            for part in unwrap_record(record):
                yield {
                    "topic": part.topic,
                    "queueId": part.queue_id,
                    "queueOffset": part.queue_offset,
                    "commitLogOffset": part.log_offset,
                    "storeSize": part.total_size,
                    "bodyCRC": part.body_crc,
                    "storeTimestamp": part.store_timestamp,
                    "bornHost": format_host(part.born_host),
                    "body": base64.b64encode(part.body).decode(),
                }
            offset = entry.queue_offset + entry.message_count


def assert_as_java(store: CrashStore, name: str) -> None:
    """Queue bounds, queue entries, messages, log bounds and answers by key."""
    summary = json.loads((DATA / f"expected/{name}.summary.json").read_text())
    assert {
        f"{queue.topic}@{queue.queue_id}": (queue.min_offset, queue.max_offset, queue.next_offset)
        for queue in store.queues
    } == {queue: (it["min"], it["max"], it["max"]) for queue, it in summary["queues"].items()}
    assert store.log.min_offset == int(summary["runtime"]["commitLogMinOffset"])
    assert store.log.max_offset == int(summary["runtime"]["commitLogMaxOffset"])

    entries = [
        (queue.topic, queue.queue_id, *entry[:4])
        for queue in store.queues
        for offset in range(queue.min_offset, queue.max_offset)
        if (entry := queue.read_entry(offset)) is not None and queue.topic != "GoldenBatchCq"
    ]
    names = ("topic", "queueId", "queueOffset", "physicOffset", "size", "tagsCode")
    java = [tuple(line[key] for key in names) for line in expected(f"{name}.cq")]
    assert sorted(entries) == sorted(java)

    messages = list(served(store))
    keys = messages[0].keys()
    java_messages = [{key: line[key] for key in keys} for line in expected(f"{name}.messages")]
    assert len(messages) == len(java_messages) == summary["messages"]
    order = ("topic", "queueId", "queueOffset")
    assert sorted(messages, key=lambda it: [it[key] for key in order]) == sorted(
        java_messages, key=lambda it: [it[key] for key in order]
    )

    questions = expected(f"{name}.index")
    assert len(questions) > 30
    for question in questions:
        found = store.keys(question["topic"], question["key"])
        assert found == question["storeOffsets"], question["key"]


def test_the_files_are_as_java_left_them() -> None:
    sums = (DATA / "recovery.sha256").read_text().splitlines()
    assert len(sums) == 11
    for line in sums:
        digest, name = line.split()
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest, name


def test_a_store_that_was_shut_down_opens_without_any_change(tmp_path: Path) -> None:
    disk = installed("store-basic")
    store, report = opened(disk)
    assert report.clean
    assert (report.scan_start, report.log_end) == (98304, 124586)
    assert (report.fault, report.truncated_bytes) == (RecordFault.UNWRITTEN, 0)
    assert not report.derived_files_rebuilt
    assert (report.replayed_records, report.index_behind_from) == (0, None)
    assert not store.dirty_ranges.pending
    found, java = tree_of(disk, tmp_path), tree(DATA / "store-basic")
    # While the store is open, what a Java broker reads of it covers closed index files only.
    open_checkpoint, closed_checkpoint = found.pop("checkpoint"), java.pop("checkpoint")
    assert open_checkpoint[:8] == closed_checkpoint[:8]
    assert open_checkpoint[8:16] == open_checkpoint[16:24] == closed_checkpoint[16:24]
    assert found == java
    assert disk.read_file(ROOT / "abort") == b"4711"
    assert_as_java(store, "store-basic")


def test_the_same_on_a_real_disk(tmp_path: Path) -> None:
    for name, content in tree(DATA / "store-basic").items():
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    store = CrashStore(OsFileSystem(), tmp_path / "store", **SETTINGS)
    assert store.open().clean
    assert_as_java(store, "store-basic")
    store.close()
    java, ours = tree(DATA / "store-basic"), tree(tmp_path / "store")
    assert {name for name in java if java[name] != ours.get(name)} <= {"checkpoint"}
    assert ours.keys() == java.keys()


@pytest.mark.spec("store.12.24")
@pytest.mark.parametrize("missing", [("consumequeue",), ("consumequeue", "batchconsumequeue")])
def test_deleted_queues_come_back_byte_for_byte(tmp_path: Path, missing: tuple[str, ...]) -> None:
    disk = installed("store-basic")
    for directory in missing:
        remove_tree(disk, ROOT / directory)
    store, report = opened(disk)
    assert (report.clean, report.derived_files_rebuilt, report.scan_start) == (True, True, 0)
    assert report.replayed_records > 400
    assert report.misplaced_records == report.unqueued_records == 0
    assert_as_java(store, "store-basic")
    store.close()
    java, ours = tree(DATA / "store-basic"), tree_of(disk, tmp_path)
    assert {name for name in java if java[name] != ours.get(name)} == {"checkpoint"}
    assert ours.keys() == java.keys()


@pytest.mark.parametrize("index_later", [False, True])
def test_a_deleted_index_comes_back(tmp_path: Path, index_later: bool) -> None:
    disk = installed("store-basic")
    remove_tree(disk, ROOT / "index")
    store = CrashStore(disk, ROOT, **SETTINGS)
    report = store.open(index_later=index_later)
    assert report.index_behind_from == (0 if index_later else None)
    if index_later:
        assert store.catch_up(10_000) > 10
    assert_as_java(store, "store-basic")
    store.close()
    ours = tree_of(disk, tmp_path)
    java = [file.read_bytes() for file in sorted((DATA / "store-basic/index").iterdir())]
    assert [content for name, content in sorted(ours.items()) if name.startswith("index/")] == java


@pytest.mark.spec("store.12.21")
@pytest.mark.parametrize(
    ("name", "fault", "log_end", "truncated"),
    [
        ("store-crashed", RecordFault.UNWRITTEN, 144910, 0),
        ("store-torn", RecordFault.BAD_LENGTHS, 142909, 143074 + 64 - 142909),
    ],
)
@pytest.mark.parametrize("index_later", [False, True])
def test_a_killed_store_recovers_to_what_java_reported(
    name: str, fault: RecordFault, log_end: int, truncated: int, index_later: bool
) -> None:
    disk = installed(name)
    store = CrashStore(disk, ROOT, **SETTINGS)
    report = store.open(index_later=index_later)
    assert (report.clean, report.scan_start, report.log_end) == (False, 0, log_end)
    assert (report.fault, report.truncated_bytes) == (fault, truncated)
    assert report.fault_file == ROOT / "commitlog/00000000000000131072"
    assert report.replayed_records == report.scanned_records
    assert report.repeated_records == report.misplaced_records == report.unqueued_records == 0
    if index_later:
        store.catch_up()
    assert_as_java(store, name)
    # The file that was made ahead of time is gone, and nothing follows the last record.
    files = disk.list_directory(ROOT / "commitlog")
    assert [entry.name for entry in files][-1] == "00000000000000131072"
    content = disk.read_file(ROOT / "commitlog/00000000000000131072")
    assert content[log_end - 131072 :] == bytes(32768 - (log_end - 131072))
    # Another start finds nothing to do, whether or not this one ended in order.
    again, second = opened(disk.kill())
    assert (second.clean, second.log_end, second.truncated_bytes) == (False, log_end, 0)
    again.close()
    last, third = opened(disk_of(again))
    assert (third.clean, third.log_end, third.replayed_records) == (True, log_end, 0)
    assert_as_java(last, name)


def disk_of(store: CrashStore) -> FaultyFileSystem:
    assert isinstance(store.files, FaultyFileSystem)
    return store.files


@pytest.mark.parametrize("name", ["store-crashed", "store-torn"])
def test_derived_files_of_a_killed_store_are_those_of_java(name: str, tmp_path: Path) -> None:
    """Rebuilt queue files equal Java's own, and are zero after the last message."""
    disk = installed(name)
    store, _ = opened(disk)
    store.write_views()
    ours = tree_of(disk, tmp_path)
    summary = json.loads((DATA / f"expected/{name}.summary.json").read_text())["queues"]
    assert len(summary) == 5
    for queue, bounds in summary.items():
        path = f"consumequeue/{queue.replace('@', '/')}/00000000000000000000"
        java = (DATA / name / path).read_bytes()
        assert ours[path] == java[: bounds["max"] * 20].ljust(6000, b"\0")


def test_a_missing_middle_file_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    disk = installed("store-basic")
    disk.remove(ROOT / "commitlog/00000000000000065536")
    with pytest.raises(CorruptLogError, match="00000000000000065536") as caught:
        opened(disk)
    assert caught.value.offset == 65536
    java = tree(DATA / "store-basic")
    del java["commitlog/00000000000000065536"]
    assert tree_of(disk, tmp_path) == java


def test_file_sizes_of_another_store_are_refused(tmp_path: Path) -> None:
    disk = installed("store-basic")
    with pytest.raises(CorruptLogError, match="mappedFileSizeCommitLog is 16384") as caught:
        opened(disk, mapped_file_size_commit_log=16384)
    assert caught.value.file == "/store/commitlog/00000000000000000000"
    assert tree_of(disk, tmp_path) == tree(DATA / "store-basic")
