"""Reading: statuses and limits of a read, filters, leases, and records by offset, time and key."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from skylark.core.hashing import java_hash
from skylark.filter.tag import parse_tags
from skylark.store.config import BrokerRole
from skylark.store.consume_queue import Boundary
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.message_reader import QueryResult, Reader, StoreNotReadableError
from skylark.store.running_flags import StoreFlag
from skylark.store.store_results import GetStatus
from skylark.wire.codes import ResponseCode
from skylark.wire.message import decode_record, iter_records, pack_host
from tests.unit.store.manual_owner import START_MS
from tests.unit.store.small_store import (
    QUEUE_FILE_ENTRIES,
    SmallStore,
    bodies,
    draft,
    log_offset_of,
    memory_store,
    offsets,
    outcome,
    retire_first_file,
)


@pytest.fixture
def store() -> SmallStore:
    return memory_store()


@pytest.fixture(params=["os", "faulty"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> SmallStore:
    if request.param == "faulty":
        return memory_store()
    files: FileSystem = OsFileSystem()
    return SmallStore(files, tmp_path)


# ---- where a read begins -------------------------------------------------------------------------


def queue_from_10_to_20(store: SmallStore) -> None:
    queue = store.queues.get_or_create("T", 0)
    for number in range(20):
        store.put(b"%d" % number)
    entry = queue.read_entry(10)
    assert entry is not None
    queue.correct_min(entry.log_offset)
    assert (queue.min_offset, queue.max_offset) == (10, 20)


@pytest.mark.spec("store.12.27")
@pytest.mark.parametrize(
    ("offset", "status", "next_offset", "code"),
    [
        (5, GetStatus.OFFSET_TOO_SMALL, 10, ResponseCode.PULL_OFFSET_MOVED),
        (-1, GetStatus.OFFSET_TOO_SMALL, 10, ResponseCode.PULL_OFFSET_MOVED),
        (20, GetStatus.OFFSET_OVERFLOW_ONE, 20, ResponseCode.PULL_NOT_FOUND),
        (25, GetStatus.OFFSET_OVERFLOW_BADLY, 20, ResponseCode.PULL_OFFSET_MOVED),
        (19, GetStatus.FOUND, 20, ResponseCode.SUCCESS),
    ],
)
def test_offsets_outside_are_corrected(
    store: SmallStore, offset: int, status: GetStatus, next_offset: int, code: ResponseCode
) -> None:
    queue_from_10_to_20(store)
    result = store.reader.get("T", 0, offset, 32)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (10, 20)
    assert result.status.pull_code(offset) is code
    result.release()


@pytest.mark.spec("store.12.27")
def test_a_slave_leaves_offsets_as_they_are(store: SmallStore) -> None:
    queue_from_10_to_20(store)
    slave = store.make_reader(broker_role=BrokerRole.SLAVE)
    assert [slave.get("T", 0, offset, 32).next_offset for offset in (5, 20, 25)] == [5, 20, 25]
    assert slave.get("absent", 0, 7, 32).next_offset == 7
    checking = store.make_reader(broker_role=BrokerRole.SLAVE, offset_check_in_slave=True)
    assert [checking.get("T", 0, offset, 32).next_offset for offset in (5, 20, 25)] == [10, 20, 20]


@pytest.mark.spec("store.12.27")
def test_an_empty_and_an_absent_queue(store: SmallStore) -> None:
    store.queues.get_or_create("T", 0)
    for topic, status in (
        ("T", GetStatus.NO_MESSAGE_IN_QUEUE),
        ("absent", GetStatus.NO_MATCHED_LOGIC_QUEUE),
    ):
        result = store.reader.get(topic, 0, 3, 32)
        assert outcome(result) == (status, 0, 0)
        assert (result.min_offset, result.max_offset) == (0, 0)
        assert status.pull_code(0) is ResponseCode.PULL_NOT_FOUND
        assert status.pull_code(3) is ResponseCode.PULL_OFFSET_MOVED


def test_a_store_that_is_not_readable_raises(store: SmallStore) -> None:
    store.put()
    store.flags.set(StoreFlag.NOT_READABLE)
    with pytest.raises(StoreNotReadableError):
        store.reader.get("T", 0, 0, 32)
    store.flags.set(StoreFlag.NOT_READABLE, on=False)
    store.flags.set(StoreFlag.DISK_FULL)
    assert bodies(store.reader.get("T", 0, 0, 32)) == [b"body"]
    store.reader.shut_down = True
    with pytest.raises(StoreNotReadableError):
        store.reader.get("T", 0, 0, 32)


# ---- queue files ---------------------------------------------------------------------------------


@pytest.mark.spec("store.12.30")
def test_a_read_stays_within_a_queue_file(any_store: SmallStore) -> None:
    store = any_store
    for number in range(QUEUE_FILE_ENTRIES + 40):
        store.put(b"%d" % number)
    for _ in ("from memory", "from files"):
        last = store.reader.get("T", 0, QUEUE_FILE_ENTRIES - 1, 32)
        assert outcome(last) == (GetStatus.FOUND, QUEUE_FILE_ENTRIES, 1)
        last.release()
        following = store.reader.get("T", 0, QUEUE_FILE_ENTRIES, 32)
        assert outcome(following) == (GetStatus.FOUND, QUEUE_FILE_ENTRIES + 32, 32)
        following.release()
        store.queues.flush()
    nothing = store.reader.get("T", 0, QUEUE_FILE_ENTRIES - 10, 32, parse_tags("no"))
    assert nothing.next_offset == QUEUE_FILE_ENTRIES
    travelling = store.make_reader(travel_cq_file_num_when_get_message=2)
    nothing = travelling.get("T", 0, QUEUE_FILE_ENTRIES - 10, 32, parse_tags("no"))
    assert nothing.next_offset == QUEUE_FILE_ENTRIES + 40


def test_a_queue_file_that_is_missing_is_passed_over(tmp_path: Path) -> None:
    store = SmallStore(OsFileSystem(), tmp_path, mapped_file_size_commit_log=1 << 20)
    for _ in range(3 * QUEUE_FILE_ENTRIES):
        store.put()
    store.queues.flush()
    store.queues.close()
    (tmp_path / "consumequeue/T/0/00000000000000020000").unlink()
    result = store.reader.get("T", 0, QUEUE_FILE_ENTRIES + 5, 32)
    assert outcome(result) == (GetStatus.OFFSET_FOUND_NULL, 2 * QUEUE_FILE_ENTRIES, 0)
    assert result.status.pull_code(QUEUE_FILE_ENTRIES + 5) is ResponseCode.PULL_NOT_FOUND
    assert offsets(store.reader.get("T", 0, 2 * QUEUE_FILE_ENTRIES, 2)) == [2000, 2001]


# ---- times ---------------------------------------------------------------------------------------


@pytest.mark.spec("store.12.31")
@pytest.mark.parametrize(
    ("timestamp", "lower", "upper"),
    [(1_000, 0, 2), (2_000, 3, 2), (3_000, 3, 4), (4_000, 5, 4), (500, 0, 0)],
)
def test_offset_by_time(any_store: SmallStore, timestamp: int, lower: int, upper: int) -> None:
    store = any_store
    for time_ms in (1_000, 1_000, 1_000, 3_000, 3_000):
        store.owner.now = 100.0 + time_ms / 1000
        store.put()
    find = store.reader.offset_by_time
    assert find("T", 0, START_MS + timestamp) == lower
    assert find("T", 0, START_MS + timestamp, Boundary.UPPER) == upper
    assert find("absent", 0, START_MS) == 0


def test_offset_by_time_among_deleted_records(store: SmallStore) -> None:
    for number in range(300):
        store.owner.now = 100.0 + number
        store.put()
    first = retire_first_file(store)
    find = store.reader.offset_by_time
    assert find("T", 0, START_MS) == first  # those before count as too old
    assert find("T", 0, START_MS + 250_000) == 250
    assert find("T", 0, START_MS + 250_999, Boundary.UPPER) == 250


def test_store_times(store: SmallStore) -> None:
    for number in range(3):
        store.owner.now = 100.0 + number
        store.put()
    reader = store.reader
    assert [reader.store_time("T", 0, offset) for offset in (0, 2, 3)] == [
        START_MS, START_MS + 2_000, None,
    ]  # fmt: skip
    assert reader.store_time("absent", 0, 0) is None
    assert reader.earliest_store_time("T", 0) == START_MS
    assert reader.earliest_store_time("absent", 0) is None
    queue = store.queues.get_or_create("T", 0)
    queue.correct_min(log_offset_of(queue, 1))
    assert reader.earliest_store_time("T", 0) == START_MS + 1_000
    assert (reader.min_offset("T", 0), reader.max_offset("T", 0)) == (1, 3)
    assert (reader.min_offset("absent", 0), reader.max_offset("absent", 0)) == (0, 0)


# ---- records by log offset -----------------------------------------------------------------------


def test_record_bylog_offset_of(any_store: SmallStore) -> None:
    store = any_store
    puts = [store.put(b"%d" % number, a="b") for number in range(200)]
    assert len(store.log.files.files) > 1
    for number in (0, 100, 199):
        lease = store.reader.record(puts[number].log_offset)
        assert lease is not None
        record = decode_record(lease.view)
        assert (record.body, record.total_size) == (b"%d" % number, len(lease.view))
        assert store.reader.store_time_of(puts[number].log_offset) == record.store_timestamp
        lease.release()
    assert store.lease_count() == 0


def test_only_where_a_record_begins(store: SmallStore) -> None:
    puts = [store.put(b"x" * 40) for _ in range(100)]
    starts = {put.log_offset for put in puts}
    found = set()
    for log_offset in range(-5, store.log.max_offset + 5):
        lease = store.reader.record(log_offset)
        if lease is not None:
            found.add(log_offset)
            lease.release()
    assert found == starts
    assert store.reader.record(1 << 62) is None


def test_a_record_within_a_body_is_none(store: SmallStore) -> None:
    store.put(b"first")
    lease = store.reader.record(0)
    assert lease is not None
    copy = bytes(lease.view)
    lease.release()
    second = store.put(copy)
    assert store.reader.record(second.log_offset) is not None
    assert store.reader.record(second.log_offset + 88) is None  # it says that it stands at 0


def test_records_with_long_hosts(store: SmallStore) -> None:
    for number in range(2):
        store.owner.now = 100.0 + number
        store.putter.put(draft("T", pack_host("::1", 1), b""))
    second = store.log.max_offset // 2
    assert store.reader.store_time_of(second) == START_MS + 1_000
    # a size that is not even that of the head
    struct.pack_into(">i", store.log.files.last.buffer, second, 95)
    assert store.reader.store_time_of(second) is None


# ---- keys ----------------------------------------------------------------------------------------


def found_bodies(result: QueryResult) -> list[bytes]:
    found = [next(iter_records(bytes(view))).body for view in result.views]
    assert result.size == sum(map(len, result.views))
    result.release()
    return found


@pytest.mark.spec("store.12.17")
def test_query_by_key_unique_key_and_tag(any_store: SmallStore) -> None:
    store = any_store
    store.put(b"1", KEYS="a b", UNIQ_KEY="U1", TAGS="t")
    store.put(b"2", KEYS="b  c", UNIQ_KEY="U2", TAGS="t")
    store.put(b"3", topic="other", KEYS="a")
    query = store.reader.query
    assert found_bodies(query("T", "a", 32)) == [b"1"]
    assert found_bodies(query("T", "b", 32)) == [b"1", b"2"]
    assert found_bodies(query("T", "U1", 32)) == [b"1"]
    assert found_bodies(query("T", "U2", 32, index_type="U")) == [b"2"]
    assert found_bodies(query("T", "t", 32, index_type="T")) == [b"1", b"2"]
    assert found_bodies(query("T", "t", 32, index_type="K")) == []
    assert found_bodies(query("T", "b", 1)) == [b"2"]  # the newest
    assert store.lease_count() == 0


@pytest.mark.spec("store.12.17")
def test_query_returns_64_and_what_collides(store: SmallStore) -> None:
    assert java_hash("T#Aa") == java_hash("T#BB")
    store.put(b"Aa", KEYS="Aa")
    store.put(b"BB", KEYS="BB")
    assert found_bodies(store.reader.query("T", "Aa", 32)) == [b"Aa", b"BB"]
    for number in range(100):
        store.put(b"%d" % number, KEYS="k")
    newest = [b"%d" % number for number in range(36, 100)]
    assert found_bodies(store.reader.query("T", "k", 1_000)) == newest
    fewer = store.make_reader(max_msgs_num_batch=5)
    assert found_bodies(fewer.query("T", "k", 1_000)) == newest[-5:]


@pytest.mark.spec("store.12.18")
def test_query_in_a_range_of_time(store: SmallStore) -> None:
    for number in range(3):
        store.owner.now = 100.0 + 10 * number
        store.put(b"%d" % number, KEYS="k")
    query = store.reader.query
    early = query("T", "k", 32, 0, START_MS - 1)
    assert (found_bodies(early), early.index_last_log_offset) == ([], store.index.end_offset)
    assert early.index_last_timestamp == START_MS + 20_000
    assert found_bodies(query("T", "k", 32, START_MS, START_MS + 10_000)) == [b"0", b"1"]
    assert found_bodies(query("T", "k", 32, START_MS + 5_000, START_MS + 30_000)) == [b"1", b"2"]


def test_query_passes_over_deleted_records(store: SmallStore) -> None:
    count = 0
    while len(store.log.files.files) < 2:
        store.put(b"%d" % count, KEYS="k" if count % 10 == 0 else "other")
        count += 1
    assert b"0" in found_bodies(store.reader.query("T", "k", 64))
    store.put(b"new", KEYS="k")
    retire_first_file(store)
    assert found_bodies(store.reader.query("T", "k", 64)) == [b"new"]


def test_a_store_without_index(store: SmallStore) -> None:
    store.put(KEYS="k")
    reader = Reader(
        store.config,
        store.log,
        store.queues,
        None,
        store.flags,
        ram_size=1,
        dispatched_until=lambda: store.log.max_offset,
    )
    assert found_bodies(reader.query("T", "k", 32)) == []
