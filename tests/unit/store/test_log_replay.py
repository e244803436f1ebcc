"""Reading the log again in slices, and making derived entries from it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from skylark.core.errors import CorruptLogError
from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.errors import StoreFullError
from skylark.store.log_replay import IndexCatchUp, LogScan, Replay
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.batch import BatchMessage
from skylark.wire.layout import BLANK_RECORD, MAGIC_BLANK, MAGIC_V1
from skylark.wire.message import RecordFault, Verify, pack_record_into
from tests.unit.store.crash_store import HOST, LOG_FILE_SIZE, ROOT, START_MS, CrashStore

LOG = ROOT / "commitlog"


def filled(count: int, *, body_size: int = 100, **settings: Any) -> CrashStore:
    store = CrashStore(FaultyFileSystem(), **settings)
    store.open()
    for number in range(count):
        store.ticks.ms += 1
        store.put("T", number % 2, b"%d" % number * body_size, {"KEYS": f"k{number}"})
    return store


def new_store() -> CrashStore:
    store = CrashStore(FaultyFileSystem())
    store.open()
    return store


def offsets(scan: LogScan, limit: int | None = None) -> list[int]:
    found: list[int] = []
    while (columns := scan.next(limit)) is not None:
        assert len(columns) > 0
        found += columns.log_offset.tolist()
    return found


def all_offsets(store: CrashStore) -> list[int]:
    return sorted(
        entry.log_offset
        for queue in store.queues
        for offset in range(queue.min_offset, queue.max_offset)
        if (entry := queue.read_entry(offset)) is not None
    )


def damage(store: CrashStore, log_offset: int, content: bytes) -> None:
    file = store.log_files.find(log_offset)
    assert file is not None
    file.handle.write(log_offset - file.start_offset, content)


# ---- the scan ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_size", [1, 91, 200, 1000, 8192, 1 << 20])
@pytest.mark.parametrize("verify", [None, Verify.BODY])
def test_all_records_are_found_with_any_slice_size(slice_size: int, verify: Verify | None) -> None:
    store = filled(60)
    scan = LogScan(store.log_files, 0, verify=verify, slice_size=slice_size)
    assert offsets(scan) == all_offsets(store)
    assert (scan.position, scan.fault) == (store.log.max_offset, RecordFault.UNWRITTEN)
    assert scan.next() is None
    assert len(store.log_files.files) == 3


def test_a_record_longer_than_a_slice_is_read_whole() -> None:
    store = filled(2)
    store.put("T", 0, b"x" * 7_000)
    store.put("T", 0, b"y")
    scan = LogScan(store.log_files, 0, slice_size=500)
    assert len(offsets(scan)) == 4


def test_a_long_record_that_is_elsewhere_at_home_is_not_read() -> None:
    """Garbage with a magic code and a large size must not make us read a whole file."""
    store = filled(2)
    end = store.log.max_offset
    damage(store, end, BLANK_RECORD.pack(7_000, MAGIC_V1) + b"g" * 100)
    scan = LogScan(store.log_files, 0, slice_size=500)
    assert len(offsets(scan)) == 2
    assert (scan.position, scan.fault) == (end, RecordFault.BAD_LOG_OFFSET)


def test_a_scan_may_begin_at_any_record_and_stop_at_any() -> None:
    store = filled(60)
    everything = all_offsets(store)
    scan = LogScan(store.log_files, everything[10], slice_size=700)
    assert offsets(scan, everything[20]) == everything[10:20]
    assert (scan.position, scan.fault) == (everything[20], None)
    assert offsets(scan, LOG_FILE_SIZE) == [o for o in everything[20:] if o < LOG_FILE_SIZE]
    assert scan.position == LOG_FILE_SIZE
    assert offsets(scan) == [o for o in everything if o >= LOG_FILE_SIZE]


def test_a_limit_within_a_record_ends_the_scan() -> None:
    store = filled(3)
    scan = LogScan(store.log_files, 0, slice_size=500)
    assert len(offsets(scan, store.log.max_offset - 1)) == 2
    assert scan.fault is RecordFault.TORN


@pytest.mark.parametrize("size", [0, 7, 8, 300, LOG_FILE_SIZE, -1, 1 << 30])
def test_a_blank_is_known_by_its_magic(size: int) -> None:
    """Whatever its size says, the next file follows; its true size stands in the records."""
    store = filled(60)
    everything = all_offsets(store)
    first_file = [o for o in everything if o < LOG_FILE_SIZE]
    blank = BLANK_RECORD.pack(size, MAGIC_BLANK)
    file = store.log_files.files[0]
    record = store.record(first_file[-1], _size(store, first_file[-1]))
    damage(store, first_file[-1] + record.total_size, blank)
    assert file.wrote == LOG_FILE_SIZE
    for slice_size in (100, 1 << 20):
        assert offsets(LogScan(store.log_files, 0, slice_size=slice_size)) == everything


def test_behind_a_whole_blank_without_a_next_file_the_log_ends() -> None:
    store = filled(3)
    end = store.log.max_offset
    damage(store, end, BLANK_RECORD.pack(LOG_FILE_SIZE - end, MAGIC_BLANK))
    scan = LogScan(store.log_files, 0)
    assert len(offsets(scan)) == 3
    assert (scan.position, scan.fault) == (LOG_FILE_SIZE, None)


def test_before_a_damaged_blank_without_a_next_file_the_log_ends() -> None:
    store = filled(3)
    end = store.log.max_offset
    damage(store, end, BLANK_RECORD.pack(LOG_FILE_SIZE - end - 1, MAGIC_BLANK))
    scan = LogScan(store.log_files, 0)
    assert len(offsets(scan)) == 3
    assert (scan.position, scan.fault) == (end, RecordFault.BAD_SIZE)


@pytest.mark.parametrize("rest", [1, 7, 8, 9, 90])
def test_too_little_room_for_a_record_at_the_end_of_a_file(rest: int) -> None:
    store = filled(0)
    size = 91 + 1
    store.put("T", 0, b"x" * (LOG_FILE_SIZE - size - 8))
    file = store.log_files.files[0]
    buffer = bytearray(LOG_FILE_SIZE)
    body = b"x" * (LOG_FILE_SIZE - size - rest)
    common = {"born_timestamp": 1, "born_host": HOST, "store_timestamp": 1, "store_host": HOST}
    pack_record_into(buffer, 0, b"T", body, b"", queue_id=0, queue_offset=0, log_offset=0, **common)  # type: ignore[arg-type]
    buffer[LOG_FILE_SIZE - rest :] = b"\1" * rest
    file.handle.write(0, buffer)
    for slice_size in (100, 1 << 20):
        scan = LogScan(store.log_files, 0, slice_size=slice_size)
        assert offsets(scan) == [0]
        assert scan.position == LOG_FILE_SIZE - rest
        assert scan.fault is (RecordFault.TORN if rest < 8 else RecordFault.BAD_MAGIC)


@pytest.mark.parametrize(
    ("body_size", "properties", "start", "end", "lost"),
    [
        (10, b"KEYS\x01abc\x02", -1, 0, True),  # the copying of properties was cut short
        (10, b"KEYS\x01abc\x02", -9, 0, True),
        (10, b"", -3, -2, True),  # or that of the topic
        (10, b"", 0, 0, False),  # a record without properties ends with zeros
        (10, b"KEYS\x01a\0bc\x02", 0, 0, False),
        (300, b"KEYS\x01" + b"k" * 900 + b"\x02", -700, -200, False),
        (300, b"KEYS\x01" + b"k" * 900 + b"\x02", 512, 1024, True),  # a sector is missing
        (300, b"KEYS\x01" + b"k" * 900 + b"\x02", 1024, 1100, False),
    ],
)
def test_zeros_where_no_writer_puts_any(
    body_size: int, properties: bytes, start: int, end: int, lost: bool
) -> None:
    store = new_store()
    store.put("T", 0, b"b" * body_size, properties)
    size = store.log.max_offset
    second = store.put("T", 0, b"sound", b"KEYS\x01k\x02")
    first, last = (size + start, size + end) if start < 0 else (start, end)
    damage(store, first, bytes(last - first))
    assert offsets(LogScan(store.log_files, 0, verify=Verify.BODY)) == [0, second]
    scan = LogScan(store.log_files, 0, verify=Verify.BODY, unsynced_from=0)
    assert offsets(scan) == ([] if lost else [0, second])
    assert scan.position == (0 if lost else store.log.max_offset)
    assert scan.fault is RecordFault.UNWRITTEN
    # What was synced for certain is not suspected.
    assert offsets(LogScan(store.log_files, 0, unsynced_from=1)) == [0, second]


def test_sectors_are_counted_from_the_start_of_the_file() -> None:
    store = new_store()
    store.put("T", 0, b"b" * 100, b"KEYS\x01first\x02")
    log_offset = store.put("T", 0, b"b" * 300, b"KEYS\x01" + b"k" * 1_400 + b"\x02")
    damage(store, 1024, bytes(512))
    for slice_size in (100, 1 << 20):
        scan = LogScan(store.log_files, 0, unsynced_from=0, slice_size=slice_size)
        assert offsets(scan) == [0]
        assert scan.position == log_offset


def test_an_unreadable_file_is_named() -> None:
    plan = FaultPlan(1)
    store = CrashStore(FaultyFileSystem(plan))
    store.open()
    for number in range(60):
        store.put("T", 0, b"%d" % number * 100)
    scan = LogScan(store.log_files, 0)
    assert scan.next() is not None
    plan.at("files.read", nth=1, error=errno.EIO)
    with pytest.raises(CorruptLogError, match="nothing was deleted") as caught:
        scan.next()
    assert caught.value.file == str(LOG / f"{LOG_FILE_SIZE:020d}")
    assert caught.value.offset == LOG_FILE_SIZE
    assert "Input/output error" in str(caught.value)


# ---- derived entries -----------------------------------------------------------------------------


def _size(store: CrashStore, log_offset: int) -> int:
    file = store.log_files.find(log_offset)
    assert file is not None
    head = file.handle.read(log_offset - file.start_offset, 8)
    return int(BLANK_RECORD.unpack(head)[0])


def replayed(store: CrashStore, into: CrashStore, slice_size: int = 1_000) -> Replay:
    scan = LogScan(store.log_files, store.log_files.min_offset, slice_size=slice_size)
    replay = Replay(into.queues, into.index, into.tags_codes)
    while (columns := scan.next()) is not None:
        replay.add(columns)
    return replay


def append_raw(
    store: CrashStore, topic: bytes, queue_id: int, queue_offset: int, sys_flag: int = 0
) -> int:
    """Put a record into the log without asking any queue."""
    file = store.log_files.last if store.log_files.files else store.log_files.roll()
    file.prepare(file.wrote + 300)
    log_offset = file.start_offset + file.wrote
    size = pack_record_into(
        file.buffer,
        file.wrote,
        topic,
        b"body",
        b"KEYS\x01k\x02",
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        born_timestamp=START_MS,
        born_host=HOST,
        store_timestamp=START_MS,
        store_host=HOST,
        sys_flag=sys_flag,
    )
    file.wrote += size
    return log_offset


def test_counts_and_repetition() -> None:
    store = filled(60)
    other = new_store()
    replay = replayed(store, other)
    assert (replay.appended, replay.repeated, len(replay.grown)) == (60, 0, 2)
    again = replayed(store, other, 77_777)
    assert (again.appended, again.repeated, len(again.grown)) == (0, 60, 0)
    assert all_offsets(other) == all_offsets(store)


def test_half_known_runs_are_completed() -> None:
    store = filled(60)
    other = new_store()
    queue = other.queues.get_or_create("T", 1)
    source = store.queues.get("T", 1)
    assert source is not None
    for offset in range(20):
        entry = source.read_entry(offset)
        assert entry is not None
        queue.append(entry.log_offset, entry.size, entry.tags_code)
    replay = replayed(store, other)
    assert (replay.appended, replay.repeated) == (40, 20)
    assert [queue.read_entry(n) for n in range(30)] == [source.read_entry(n) for n in range(30)]


def test_a_queue_begins_at_the_offset_of_its_first_record() -> None:
    store = new_store()
    for number in range(5):
        append_raw(store, b"Late", 3, 100 + number)
    other = new_store()
    assert replayed(store, other).appended == 5
    queue = other.queues.get("Late", 3)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (100, 105, 105)


def test_gaps_repeats_and_a_topic_created_again() -> None:
    store = new_store()
    records = [append_raw(store, b"T", 0, offset) for offset in (0, 1, 5, 1, 0, 1)]
    other = new_store()
    replay = replayed(store, other)
    assert (replay.misplaced, replay.repeated, replay.appended) == (1, 1, 4)
    queue = other.queues.get("T", 0)
    assert isinstance(queue, ConsumeQueue)
    assert (queue.min_offset, queue.max_offset) == (0, 2)
    assert all_offsets(other) == records[4:]


@pytest.mark.parametrize(
    ("topic", "queue_id"), [(b"a/b", 0), (b"..", 0), (b"", 0), (b"T", -1), (b"T", -(1 << 31))]
)
def test_records_that_can_have_no_queue_do_not_stop_the_replay(
    topic: bytes, queue_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store()
    for number in range(20):
        append_raw(store, topic, queue_id, number)
        append_raw(store, b"T", 1, number)
    other = new_store()
    replay = replayed(store, other, 500)
    assert (replay.appended, replay.unqueued) == (20, 20)
    assert sum("cannot make queue entries" in line for line in caplog.messages) == 1


def test_queue_offsets_beyond_reason() -> None:
    store = new_store()
    for offset in (1 << 62, -1, (1 << 63) - 1, -(1 << 63)):
        append_raw(store, b"T", 0, offset)
    append_raw(store, b"T", 0, 0)
    other = new_store()
    replay = replayed(store, other)
    assert (replay.misplaced, replay.appended) == (4, 1)


def test_the_kind_of_a_new_queue() -> None:
    store = new_store()
    store.put_inner_batch("Batch", 0, [BatchMessage(b"a", b"")] * 3)
    store.put_single_in_batch_queue("Known", 0, b"alone")
    store.put_inner_batch("Known", 0, [BatchMessage(b"a", b"")] * 2)
    other = new_store()
    scan = LogScan(store.log_files, 0)
    replay = Replay(
        other.queues, None, other.tags_codes, is_batch_topic=lambda topic: topic == "Known"
    )
    columns = scan.next()
    assert columns is not None
    replay.add(columns)
    assert isinstance(other.queues.get("Batch", 0), BatchQueue)
    known = other.queues.get("Known", 0)
    assert isinstance(known, BatchQueue)
    assert (known.min_offset, known.max_offset) == (1, 3)
    assert (replay.appended, replay.unqueued) == (2, 1)


def test_an_inner_batch_in_a_plain_queue_is_one_message() -> None:
    store = new_store()
    append_raw(store, b"T", 0, 0)
    append_raw(store, b"T", 0, 1, sys_flag=0x80)
    other = new_store()
    assert replayed(store, other).appended == 2
    queue = other.queues.get("T", 0)
    assert isinstance(queue, ConsumeQueue)
    assert queue.max_offset == 2


def test_records_before_an_offset_get_no_entries() -> None:
    store = filled(10)
    offset = all_offsets(store)[4]
    other = new_store()
    replay = Replay(other.queues, None, other.tags_codes)
    columns = LogScan(store.log_files, 0).next()
    assert columns is not None
    replay.add(columns, offset)
    assert replay.appended == 6
    assert all_offsets(other) == all_offsets(store)[4:]


# ---- catching up ---------------------------------------------------------------------------------


def behind(count: int = 60, plan: FaultPlan | None = None) -> CrashStore:
    """A store whose index knows only the first ten messages."""
    store = CrashStore(FaultyFileSystem(plan), max_index_num=30)
    store.open()
    assert store.index is not None
    for number in range(count):
        if number == 10:
            store.index.mark_behind(store.log.max_offset)
        store.ticks.ms += 1
        store.put("T", 0, b"%d" % number * 100, {"KEYS": f"k{number}"})
    return store


def indexed(store: CrashStore) -> list[int]:
    """Numbers of the messages that are found by their key."""
    everything = all_offsets(store)
    return [n for n in range(len(everything)) if everything[n] in store.keys("T", f"k{n}")]


@pytest.mark.parametrize("byte_budget", [1, 500, 1 << 20])
def test_the_index_catches_up_in_steps(byte_budget: int) -> None:
    store = behind()
    index = store.index
    assert index is not None
    assert indexed(store) == list(range(10))
    catch_up = IndexCatchUp(store.log_files, index, lambda: store.dispatch.dispatched_until)
    steps = 1
    while not catch_up.step(byte_budget):
        steps += 1
    assert steps >= store.log.max_offset // max(byte_budget, LOG_FILE_SIZE)
    assert indexed(store) == list(range(60))
    assert index.behind_from is None
    assert catch_up.step(1)
    store.put("T", 0, b"new", {"KEYS": "k60"})
    assert indexed(store) == list(range(61))


def test_messages_that_come_meanwhile_are_caught_up_with() -> None:
    store = behind(30)
    assert store.index is not None
    catch_up = IndexCatchUp(store.log_files, store.index, lambda: store.dispatch.dispatched_until)
    number = 30
    while not catch_up.step(500):
        if number < 60:
            store.put("T", 0, b"%d" % number * 100, {"KEYS": f"k{number}"})
            number += 1
    assert number > 35
    assert indexed(store) == list(range(number))


def test_the_index_does_not_run_ahead_of_the_disk() -> None:
    store = CrashStore(FaultyFileSystem(), after_flush=True)
    store.open()
    assert store.index is not None
    store.index.mark_behind(0)
    for number in range(5):
        store.put("T", 0, b"x", {"KEYS": f"k{number}"})
    store.flush_log()
    log_offset = store.put("T", 0, b"x", {"KEYS": "waits"})
    store.catch_up(1 << 20)
    assert store.keys("T", "k4")
    assert store.keys("T", "waits") == []
    store.flush_log()
    assert store.keys("T", "waits") == [log_offset]


def test_a_full_disk_delays_the_index() -> None:
    plan = FaultPlan(1)
    store = behind(plan=plan)
    index = store.index
    assert index is not None
    catch_up = IndexCatchUp(store.log_files, index, lambda: store.dispatch.dispatched_until)
    plan.chance("files.create", 1.0, action=FaultAction.ERROR, error=errno.ENOSPC, limit=3)
    assert not any(catch_up.step(1 << 20) for _ in range(3))
    failure = index.error
    assert isinstance(failure, StoreFullError)
    assert plan.hits.total() == 3
    while not catch_up.step(1 << 20):
        pass
    assert (index.error, index.behind_from) == (None, None)
    assert indexed(store) == list(range(60))


def test_expired_and_unreadable_files_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    store = behind()
    index = store.index
    assert index is not None
    catch_up = IndexCatchUp(store.log_files, index, lambda: store.dispatch.dispatched_until)
    everything = all_offsets(store)
    store.log_files.retire_oldest(0.0)
    broken = next(o for o in everything if o > LOG_FILE_SIZE + 1_000)
    damage(store, broken, b"\xff" * 100)
    while not catch_up.step(700):
        pass
    found = indexed(store)
    assert [n for n in found if LOG_FILE_SIZE <= everything[n] < broken] == [
        n for n, o in enumerate(everything) if LOG_FILE_SIZE <= o < broken
    ]
    assert [n for n in found if everything[n] >= broken] == [
        n for n, o in enumerate(everything) if o >= 2 * LOG_FILE_SIZE
    ]
    assert any("is not indexed" in line for line in caplog.messages)


def test_there_is_nothing_to_do_for_a_complete_index() -> None:
    store = filled(3)
    assert store.index is not None
    catch_up = IndexCatchUp(store.log_files, store.index, lambda: store.log.max_offset)
    assert catch_up.step(1)
