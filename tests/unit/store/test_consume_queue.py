"""One consume queue: entries in memory and in files, replay, recovery, retention, time."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from skylark.core.hashing import java_hash
from skylark.store.consume_queue import (
    Boundary,
    ConsumeQueue,
    Dispatched,
    QueueEntry,
    Tails,
)
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.queue_files import QueueFiles, QueueHandles
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import CQ_ENTRY, CQ_PRE_BLANK, cq_dtype

SIZE = 200  # ten entries
DIRECTORY = Path("/consumequeue/T/0")


def open_queue(
    files: FileSystem,
    directory: Path = DIRECTORY,
    *,
    recent_size: int = 100,
    tail_size_max: int = 1 << 16,
    clean: bool = True,
    synced_until: int | None = None,
) -> ConsumeQueue:
    """A queue with files of ten entries that keeps five in memory, recovered if it exists."""
    handles = QueueHandles(files, DirtyRanges(files), open_files_max=2)
    tails = Tails(size_max=tail_size_max, recent_size=recent_size)
    queue = ConsumeQueue("T", 0, QueueFiles(handles, directory, SIZE), tails)
    if files.exists(directory):
        queue.load(clean=clean)
        queue.recover(synced_until)
    return queue


def fill(queue: ConsumeQueue, count: int, first: int = 0, *, flush: bool = True) -> None:
    """Messages of 100 bytes: number n stands at log offset 100 n."""
    for number in range(first, first + count):
        queue.append(number * 100, 100, number)
    queue.next_offset = queue.max_offset
    if flush:
        queue.flush_tail()


def entry(number: int) -> bytes:
    return CQ_ENTRY.pack(number * 100, 100, number)


def names(files: FileSystem, directory: Path = DIRECTORY) -> list[int]:
    return [int(found.name) for found in files.list_directory(directory)]


def numbers(queue: ConsumeQueue) -> list[int]:
    """The messages in a queue, each looked up by itself."""
    found = []
    for offset in range(queue.min_offset, queue.max_offset):
        item = queue.read_entry(offset)
        assert item is not None
        found.append(item.log_offset // 100)
    return found


# ---- entries -------------------------------------------------------------------------------------


@pytest.mark.spec("store.12.9")
def test_entry_bytes() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    queue.append(0, 0x73, java_hash("TagA"))
    assert queue.entries(0, 1).hex() == "000000000000000000000073000000000027a807"
    queue.append(0x73, 0x73, java_hash("TopicTest"))
    assert queue.entries(1, 1)[12:].hex() == "ffffffff8e987641"
    queue.flush_tail()
    content = disk.read_file(DIRECTORY / "00000000000000000000")
    assert content[:20].hex() == "000000000000000000000073000000000027a807"
    assert content[40:] == bytes(SIZE - 40)


def test_a_new_queue_is_empty_and_has_no_files() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 0, 0)
    assert queue.max_log_offset == -1
    assert queue.entries(0, 10) == b""
    assert queue.read_entry(0) is None
    queue.flush_tail()
    assert not disk.exists(DIRECTORY)


@pytest.mark.parametrize("recent_size", [0, 20, 30, 100, 10_000])
@pytest.mark.parametrize("flush_after", [0, 7, 10, 25])
def test_entries_are_read_the_same_from_memory_and_files(
    recent_size: int, flush_after: int
) -> None:
    queue = open_queue(FaultyFileSystem(), recent_size=recent_size)
    fill(queue, flush_after)
    fill(queue, 25 - flush_after, flush_after, flush=False)
    expected = b"".join(entry(number) for number in range(25))
    for start in range(25):
        for count in (1, 3, 10, 30):
            file_end = start - start % 10 + 10
            end = min(start + count, file_end, 25)
            assert queue.entries(start, count) == expected[start * 20 : end * 20]
    assert queue.read_entry(24) == QueueEntry(24, 2400, 100, 24, 1)
    assert queue.read_entry(25) is queue.read_entry(-1) is None
    assert queue.entries(25, 1) == queue.entries(-1, 1) == b""


def test_what_a_reader_got_is_a_copy() -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 3, flush=False)
    column = np.frombuffer(queue.entries(0, 3), queue.entry_dtype())
    fill(queue, 100, 3)  # must not fail because of a reader of the tail
    assert column["log_offset"].tolist() == [0, 100, 200]
    assert queue.entry_dtype() == cq_dtype()


def test_flush_writes_what_is_new_and_keeps_a_recent_part_in_memory() -> None:
    plan = FaultPlan(0)
    disk = FaultyFileSystem(plan)
    queue = open_queue(disk)
    fill(queue, 8)
    reads = plan.visits["files.read"]
    assert queue.entries(3, 5) == b"".join(entry(number) for number in range(3, 8))
    assert plan.visits["files.read"] == reads
    assert queue.entries(2, 1) == entry(2)
    assert plan.visits["files.read"] == reads + 1
    writes = plan.visits["files.write"]
    queue.flush_tail()
    assert plan.visits["files.write"] == writes


def test_readers_that_come_to_the_end_leave_nothing_behind() -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 30)
    assert queue.entries(0, 3) + queue.entries(3, 3) == b"".join(map(entry, range(6)))
    assert queue._files.ahead
    assert queue.entries(29, 3) == entry(29)
    assert queue._files.ahead == b""
    assert queue.entries(7, 3) + queue.entries(10, 3) == b"".join(map(entry, range(7, 13)))
    assert queue._files.ahead
    assert queue.entries(20, 10) == b"".join(map(entry, range(20, 30)))  # into the tail
    assert queue._files.ahead == b""


def test_reading_a_single_entry_keeps_nothing_in_memory() -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 30)
    for number in range(4):
        found = queue.read_entry(number)
        assert found is not None
        assert found.log_offset == 100 * number
    assert queue._files.ahead == b""


def test_a_long_tail_is_written_at_once() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk, recent_size=40, tail_size_max=100)
    fill(queue, 6, flush=False)
    assert not disk.exists(DIRECTORY)
    fill(queue, 1, 6, flush=False)  # 140 bytes
    assert disk.read_file(DIRECTORY / f"{0:020d}")[:140] == b"".join(map(entry, range(7)))
    assert numbers(queue) == list(range(7))


def test_a_full_disk_does_not_fail_an_append() -> None:
    disk = FaultyFileSystem(capacity=4096)
    queue = open_queue(disk, recent_size=0, tail_size_max=SIZE)
    tails = queue._tails
    fill(queue, 10, flush=False)  # the first file, and the disk is full
    assert str(tails.error) == "None"
    fill(queue, 25, 10, flush=False)
    assert "ENOSPC" in str(tails.error)
    assert numbers(queue) == list(range(35))
    with pytest.raises(StoreFileError):
        queue.flush_tail()
    disk.capacity = 1 << 20
    queue.flush_tail()
    assert not tails.dirty
    assert numbers(open_queue(disk)) == list(range(35))


def test_files_must_hold_whole_entries() -> None:
    disk = FaultyFileSystem()
    handles = QueueHandles(disk, DirtyRanges(disk))
    with pytest.raises(ValueError, match="not a multiple of the entry size 20"):
        ConsumeQueue("T", 0, QueueFiles(handles, DIRECTORY, 210), Tails())


# ---- replay --------------------------------------------------------------------------------------


def test_repeats_are_ignored() -> None:
    queue = open_queue(FaultyFileSystem())
    for _ in range(2):
        results = [queue.dispatch(n * 100, 100, n, n) for n in range(12)]
    assert set(results) == {Dispatched.REPEATED}
    assert numbers(queue) == list(range(12))
    assert queue.next_offset == 12
    assert queue.dispatch(1200, 100, 12, 5) is Dispatched.REPEATED  # an index that is taken
    assert queue.dispatch(1200, 100, 12, 12) is Dispatched.APPENDED


@pytest.mark.parametrize("first", [1, 9, 10, 25, 30])
def test_a_queue_begins_at_the_offset_of_its_first_message(first: int) -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    assert queue.dispatch(5000, 100, 1, first) is Dispatched.APPENDED
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (first, first + 1, first + 1)
    assert queue.read_entry(first - 1) is None
    queue.flush_tail()
    file_start = first - first % 10
    assert names(disk) == [file_start * 20]
    content = disk.read_file(DIRECTORY / f"{file_start * 20:020d}")
    assert content == (CQ_PRE_BLANK * (first - file_start) + CQ_ENTRY.pack(5000, 100, 1)).ljust(
        SIZE, b"\0"
    )
    reopened = open_queue(disk)
    assert (reopened.min_offset, reopened.max_offset) == (first, first + 1)
    assert reopened.max_log_offset == 5100
    reopened.correct_min(0)
    assert reopened.min_offset == first


def test_blank_entries_alone_are_no_messages() -> None:
    """Java takes the end of a blank entry, 2 GiB, for the end of what was dispatched."""
    disk = FaultyFileSystem()
    disk.install(DIRECTORY / f"{0:020d}", (CQ_PRE_BLANK * 4).ljust(SIZE, b"\0"))
    queue = open_queue(disk)
    assert (queue.min_offset, queue.max_offset, queue.max_log_offset) == (4, 4, -1)
    assert queue.dispatch(100, 100, 0, 4) is Dispatched.APPENDED
    assert (queue.min_offset, queue.max_offset) == (4, 5)


def test_a_gap_is_logged_and_the_message_kept(caplog: pytest.LogCaptureFixture) -> None:
    queue = open_queue(FaultyFileSystem())
    queue.dispatch(0, 100, 0, 0)
    assert queue.dispatch(100, 100, 1, 5) is Dispatched.MISPLACED
    assert (
        "<ConsumeQueue T-0 max=1>: the record at 100 has the unexpected queue offset 5"
        in caplog.text
    )
    assert queue.dispatch(200, 100, 2, 2) is Dispatched.APPENDED  # its successors are not shifted
    assert numbers(queue) == [0, 1, 2]


@pytest.mark.parametrize("queue_offset", [-1, 1 << 62])
def test_an_impossible_offset_is_refused(
    queue_offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue = open_queue(FaultyFileSystem())
    assert queue.dispatch(0, 100, 0, queue_offset) is Dispatched.MISPLACED
    assert queue.max_offset == 0
    assert f"has the unexpected queue offset {queue_offset}" in caplog.text


@pytest.mark.parametrize("flushed", [False, True])
def test_a_newer_message_with_offset_0_restarts_the_queue(flushed: bool) -> None:
    """The topic was deleted and created again; its old messages are still in the log."""
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    for number in range(30):
        queue.dispatch(number * 100, 100, number, number + 45)
    if flushed:
        queue.flush_tail()
    for number in range(30, 43):
        assert queue.dispatch(number * 100, 100, number, number - 30) is Dispatched.APPENDED
    assert (queue.min_offset, queue.max_offset) == (0, 13)
    queue.flush_tail()
    assert names(disk) == [0, SIZE]
    assert numbers(open_queue(disk)) == list(range(30, 43))


def test_a_run_of_messages_is_added_at_once() -> None:
    queue = open_queue(FaultyFileSystem(), tail_size_max=100)
    run = b"".join(map(entry, range(25)))
    assert queue.dispatch_run(run, 5)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (5, 30, 30)
    assert queue.max_log_offset == 2500
    assert not queue.dispatch_run(run, 30)  # older than the last one
    assert not queue.dispatch_run(entry(25), 29)  # its index is taken
    assert not queue.dispatch_run(entry(25), 31)  # a gap
    assert queue.dispatch_run(entry(25), 30)
    assert numbers(queue) == list(range(26))


# ---- recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 30, 31, 55])
def test_recovery_finds_the_last_entry(count: int) -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), count)
    queue = open_queue(disk)
    assert (queue.max_offset, queue.next_offset) == (count, count)
    assert queue.max_log_offset == (count * 100 if count else -1)
    fill(queue, 3, count)
    assert numbers(open_queue(disk)) == list(range(count + 3))


@pytest.mark.parametrize(
    "garbage",
    [
        CQ_ENTRY.pack(-1, 100, 0),
        CQ_ENTRY.pack(1500, 0, 7),
        CQ_ENTRY.pack(1500, -3, 7),
        CQ_ENTRY.pack(1400, 100, 7),  # not behind the entry before it
        CQ_ENTRY.pack((1 << 63) - 1, 100, 7),
        CQ_PRE_BLANK,
    ],
)
def test_recovery_stops_at_what_is_no_entry(garbage: bytes) -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    fill(queue, 15)
    handle = disk.open_file(DIRECTORY / f"{SIZE:020d}")
    handle.write(5 * 20, garbage + entry(16) + entry(17))
    handle.close()
    queue = open_queue(disk)
    assert queue.max_offset == 15
    assert disk.read_file(DIRECTORY / f"{SIZE:020d}")[100:] == bytes(100)
    fill(queue, 2, 15)
    assert numbers(open_queue(disk)) == list(range(17))


def test_recovery_scans_the_last_three_files_as_java_does() -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), 50)
    for start, index in ((SIZE, 3), (3 * SIZE, 4)):
        handle = disk.open_file(DIRECTORY / f"{start:020d}")
        handle.zero(index * 20, 20)
        handle.close()
    queue = open_queue(disk)
    assert queue.max_offset == 34  # the hole in the second file is too old to be seen
    assert names(disk) == [0, SIZE, 2 * SIZE, 3 * SIZE]


def test_an_all_zero_file_is_the_end() -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), 20)
    disk.create_file(DIRECTORY / f"{2 * SIZE:020d}", SIZE).close()
    queue = open_queue(disk)
    assert queue.max_offset == 20
    assert names(disk) == [0, SIZE]
    fill(queue, 1, 20)
    assert numbers(queue) == list(range(21))


def test_the_name_of_an_all_zero_first_file_keeps_the_numbering() -> None:
    disk = FaultyFileSystem()
    disk.install(DIRECTORY / f"{3 * SIZE:020d}", bytes(SIZE))
    queue = open_queue(disk)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (30, 30, 30)
    fill(queue, 2, 30)
    assert numbers(open_queue(disk)) == [30, 31]


@pytest.mark.parametrize("synced", [0, 3, 10, 14, 20, 25, 33, 40, 90])
def test_after_a_crash_only_synced_entries_are_trusted(synced: int) -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), 40)
    queue = open_queue(disk, clean=False, synced_until=synced * 100)
    kept = min(synced, 40)
    assert queue.max_offset == kept
    assert names(disk) == list(range(0, kept * 20, SIZE))
    for number in range(synced, 45):
        queue.dispatch(number * 100, 100, number, number)
    assert queue.max_offset == (45 if synced <= 40 else 40)


def test_recovery_may_be_repeated_with_less_trust() -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), 40)
    queue = open_queue(disk, clean=False, synced_until=3300)
    queue.correct_min(3000)
    assert (queue.min_offset, queue.max_offset) == (30, 33)
    queue.recover(1200)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (12, 12, 12)
    assert names(disk) == [0, SIZE]


def test_a_torn_entry_with_a_wrong_tags_code_does_not_survive() -> None:
    """Offset and size are in one sector, the tags code is in the next, which was lost."""
    disk = FaultyFileSystem()
    fill(open_queue(disk), 10)
    handle = disk.open_file(DIRECTORY / f"{0:020d}")
    handle.zero(6 * 20 + 12, 8)
    handle.close()
    careless = open_queue(disk)
    assert careless.read_entry(6) == QueueEntry(6, 600, 100, 0)
    queue = open_queue(disk, clean=False, synced_until=500)
    for number in range(5, 10):
        queue.dispatch(number * 100, 100, number, number)
    assert queue.read_entry(6) == QueueEntry(6, 600, 100, 6)


def test_a_file_missing_before_unsynced_ones_takes_them_along() -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), 50)
    disk.remove(DIRECTORY / f"{2 * SIZE:020d}")
    queue = open_queue(disk, clean=False, synced_until=1500)
    assert names(disk) == [0, SIZE]
    assert queue.max_offset == 15


def test_a_file_missing_before_synced_ones_was_expired() -> None:
    """Retention removed two files, and the power loss brought the first of them back."""
    disk = FaultyFileSystem()
    fill(open_queue(disk), 50)
    disk.remove(DIRECTORY / f"{SIZE:020d}")
    queue = open_queue(disk, clean=False, synced_until=4700)
    assert names(disk) == [2 * SIZE, 3 * SIZE, 4 * SIZE]
    assert (queue.min_offset, queue.max_offset) == (20, 47)


# ---- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 15, 20, 24, 25, 30])
@pytest.mark.parametrize("flushed", [0, 12, 25])
def test_truncate_drops_entries_beyond_the_log(keep: int, flushed: int) -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    fill(queue, flushed)
    fill(queue, 25 - flushed, flushed, flush=False)
    queue.truncate(keep * 100)
    left = min(keep, 25)
    assert (queue.max_offset, queue.next_offset) == (left, left)
    assert queue.max_log_offset == (left * 100 if left else -1)
    assert numbers(queue) == list(range(left))
    fill(queue, 4, left)
    assert numbers(queue) == list(range(left + 4))
    assert numbers(open_queue(disk)) == list(range(left + 4))


def test_truncate_clears_the_bytes_on_disk() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    fill(queue, 15)
    queue.truncate(1200)
    assert disk.read_file(DIRECTORY / f"{SIZE:020d}") == (entry(10) + entry(11)).ljust(SIZE, b"\0")


def test_a_queue_that_began_later_keeps_its_numbering_when_all_is_truncated() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    fill(queue, 45)
    queue.delete_before(4000)
    assert names(disk) == [4 * SIZE]
    queue.truncate(4000)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (40, 40, 40)
    reopened = open_queue(disk)
    assert (reopened.max_offset, reopened.max_log_offset) == (40, -1)


# ---- retention -----------------------------------------------------------------------------------


def test_the_first_offset_follows_the_log() -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 35)
    for log_min, expected in [(0, 0), (1, 1), (100, 1), (1450, 15), (3400, 34), (3401, 35)]:
        queue.correct_min(log_min)
        assert queue.min_offset == expected
    assert queue.max_offset == 35
    fill(queue, 2, 35)
    queue.correct_min(3401)
    assert numbers(queue) == [35, 36]


def test_expired_files_are_deleted_but_never_the_last() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    fill(queue, 35)
    assert queue.delete_before(900) == 0
    assert queue.min_offset == 9
    assert queue.delete_before(901) == 1
    assert names(disk) == [SIZE, 2 * SIZE, 3 * SIZE]
    assert queue.min_offset == 10
    assert queue.entries(10, 3) == entry(10) + entry(11) + entry(12)
    assert queue.delete_before(1 << 40) == 2
    assert names(disk) == [3 * SIZE]
    assert (queue.min_offset, queue.max_offset) == (35, 35)
    reopened = open_queue(disk)
    reopened.correct_min(1 << 40)
    assert (reopened.min_offset, reopened.max_offset, reopened.next_offset) == (35, 35, 35)


def test_destroy_leaves_nothing() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    fill(queue, 15)
    fill(queue, 5, 15, flush=False)
    queue.destroy()
    assert names(disk) == []
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 0, 0)
    fill(queue, 2)
    assert numbers(open_queue(disk)) == [0, 1]


# ---- time ----------------------------------------------------------------------------------------


def queue_of_times(times: list[int | None]) -> tuple[ConsumeQueue, dict[int, int]]:
    queue = open_queue(FaultyFileSystem())
    fill(queue, len(times))
    return queue, {n * 100: time for n, time in enumerate(times) if time is not None}


@pytest.mark.spec("store.12.31")
@pytest.mark.parametrize(
    ("timestamp", "lower", "upper"), [(20, 3, 2), (10, 0, 2), (30, 3, 4), (31, 5, 4), (9, 0, 0)]
)
def test_offset_by_time(timestamp: int, lower: int, upper: int) -> None:
    queue, times = queue_of_times([10, 10, 10, 30, 30])
    assert queue.offset_by_time(timestamp, Boundary.LOWER, times.get) == lower
    assert queue.offset_by_time(timestamp, Boundary.UPPER, times.get) == upper


def test_messages_whose_record_is_gone_count_as_too_old() -> None:
    queue, times = queue_of_times([None] * 12 + [50, 60, 70])
    assert queue.offset_by_time(0, Boundary.LOWER, times.get) == 12
    assert queue.offset_by_time(55, Boundary.LOWER, times.get) == 13
    assert queue.offset_by_time(55, Boundary.UPPER, times.get) == 12
    queue.correct_min(1200)
    for boundary in Boundary:
        assert queue.offset_by_time(0, boundary, times.get) == 12


def test_offset_by_time_of_an_empty_queue() -> None:
    queue, times = queue_of_times([])
    for boundary in Boundary:
        assert queue.offset_by_time(5, boundary, times.get) == 0
    queue, times = queue_of_times([1, 2, 3])
    queue.correct_min(1 << 40)
    for boundary in Boundary:
        assert queue.offset_by_time(2, boundary, times.get) == 3


def test_offset_by_time_reads_few_entries() -> None:
    queue, times = queue_of_times(list(range(1000)))
    asked = []

    def store_time_of(log_offset: int) -> int | None:
        asked.append(log_offset)
        return times.get(log_offset)

    assert queue.offset_by_time(777, Boundary.LOWER, store_time_of) == 777
    assert len(asked) <= 11


# ---- on the real thing ---------------------------------------------------------------------------


def test_a_queue_on_the_operating_system(tmp_path: Path) -> None:
    files, directory = OsFileSystem(), tmp_path / "consumequeue" / "T" / "0"
    queue = open_queue(files, directory)
    fill(queue, 45)
    queue.delete_before(1000)
    queue.truncate(4000)
    fill(queue, 5, 40)
    reopened = open_queue(files, directory, clean=False, synced_until=4400)
    assert numbers(reopened) == list(range(10, 44))
    assert names(files, directory) == [SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE]


def test_an_error_while_reading_names_the_file() -> None:
    plan = FaultPlan(0)
    disk = FaultyFileSystem(plan)
    queue = open_queue(disk, recent_size=0)
    fill(queue, 5)
    plan.at("files.read", nth=1, error=errno.EIO)
    with pytest.raises(StoreFileError, match="00000000000000000000: cannot read"):
        queue.entries(0, 5)
    assert queue.entries(0, 1) == entry(0)
