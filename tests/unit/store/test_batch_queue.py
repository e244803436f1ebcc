"""The queue of inner batches: entries hold several messages, offsets count messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import Boundary, Dispatched, QueueEntry, Tails
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.queue_files import QueueFiles, QueueHandles
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import BATCH_CQ_ENTRY

SIZE = 460  # ten entries
DIRECTORY = Path("/batchconsumequeue/T/0")
T0 = 1_700_000_000_000


def open_queue(
    disk: FaultyFileSystem, *, clean: bool = True, synced_until: int | None = None
) -> BatchQueue:
    handles = QueueHandles(disk, DirtyRanges(disk), open_files_max=2)
    queue = BatchQueue("T", 0, QueueFiles(handles, DIRECTORY, SIZE), Tails(recent_size=140))
    if disk.exists(DIRECTORY):
        queue.load(clean=clean)
        queue.recover(synced_until)
    return queue


def fill(queue: BatchQueue, count: int, first: int = 0) -> None:
    """Records of 100 bytes; number n was stored n seconds after T0 and holds three messages."""
    for number in range(first, first + count):
        queue.append(number * 100, 100, number, T0 + number * 1000, 3)
    queue.next_offset = queue.max_offset
    queue.flush_tail()


def no_time(_: int) -> None:
    raise AssertionError("entries carry their time")


def test_entry_bytes() -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    queue.append(13885, 827, 0, 1794710097096, 4)
    queue.append(14712, 547, 0, 1794710097222, 2)
    queue.flush_tail()
    content = disk.read_file(DIRECTORY / f"{0:020d}")
    assert content[:46].hex() == (
        "000000000000363d" "0000033b" "0000000000000000" "000001a1dd0eccc8" "0000000000000000"
        "0004" "ffffffff" "00000000"
    )  # fmt: skip
    assert BATCH_CQ_ENTRY.unpack_from(content, 46)[4:] == (4, 2, -1, 0)
    assert content[92:] == bytes(SIZE - 92)
    assert (queue.min_offset, queue.max_offset) == (0, 6)


def test_the_entry_of_each_message_is_found() -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 25)
    assert (queue.max_offset, queue.max_log_offset) == (75, 2500)
    for offset in range(75):
        number = offset // 3
        assert queue.read_entry(offset) == QueueEntry(number * 3, number * 100, 100, number, 3)
    assert queue.read_entry(75) is queue.read_entry(-1) is None


def test_entries_begin_with_the_one_that_holds_the_message() -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 25)
    columns = np.frombuffer(queue.entries(28, 5), queue.entry_dtype())
    assert columns["queue_offset"].tolist() == [27]  # the last of its file
    columns = np.frombuffer(queue.entries(32, 5), queue.entry_dtype())
    assert columns["queue_offset"].tolist() == [30, 33, 36, 39, 42]
    assert columns["log_offset"].tolist() == [1000, 1100, 1200, 1300, 1400]
    assert columns["count"].tolist() == [3] * 5
    assert queue.entries(75, 1) == b""


@pytest.mark.parametrize("count", [0, 1, 10, 25, 45])
def test_recovery_counts_messages(count: int) -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), count)
    queue = open_queue(disk)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, count * 3, count * 3)
    assert queue.max_log_offset == (count * 100 if count else -1)


@pytest.mark.parametrize(("field", "value"), [(4, -1), (5, 0), (5, -2), (1, 0)])
def test_recovery_stops_at_what_is_no_entry(field: int, value: int) -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), 7)
    entry = [700, 100, 7, T0, 21, 3, -1, 0]
    entry[field] = value
    handle = disk.open_file(DIRECTORY / f"{0:020d}")
    handle.write(7 * 46, BATCH_CQ_ENTRY.pack(*entry))
    handle.close()
    assert open_queue(disk).max_offset == 21
    assert disk.read_file(DIRECTORY / f"{0:020d}")[7 * 46 :] == bytes(3 * 46)


def test_after_a_crash_only_synced_entries_are_trusted() -> None:
    disk = FaultyFileSystem()
    fill(open_queue(disk), 25)
    queue = open_queue(disk, clean=False, synced_until=1200)
    assert queue.max_offset == 36
    assert queue.dispatch(1200, 100, 12, T0, 36, 3) is Dispatched.APPENDED
    assert queue.next_offset == 39


def test_replay() -> None:
    queue = open_queue(FaultyFileSystem())
    assert queue.dispatch(0, 100, 0, T0, 7, 2) is Dispatched.APPENDED  # begins at 7
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (7, 9, 9)
    assert queue.dispatch(0, 100, 0, T0, 7, 2) is Dispatched.REPEATED
    assert queue.dispatch(100, 100, 0, T0, 8, 2) is Dispatched.REPEATED
    assert queue.dispatch(100, 100, 0, T0, 9, 1) is Dispatched.APPENDED
    assert queue.dispatch(200, 100, 0, T0, 20, 5) is Dispatched.MISPLACED  # a gap does no harm
    assert (queue.min_offset, queue.max_offset) == (7, 25)
    assert queue.read_entry(22) == QueueEntry(20, 200, 100, 0, 5)
    assert queue.read_entry(15) == QueueEntry(20, 200, 100, 0, 5)  # the next one there is
    for count in (0, -1, 40_000):
        assert queue.dispatch(300, 100, 0, T0, 25, count) is Dispatched.MISPLACED
    assert queue.max_offset == 25
    assert queue.dispatch(300, 100, 0, T0, 0, 3) is Dispatched.APPENDED  # the topic is new again
    assert (queue.min_offset, queue.max_offset) == (0, 3)


@pytest.mark.parametrize("keep", [0, 5, 10, 17, 25])
def test_truncate(keep: int) -> None:
    disk = FaultyFileSystem()
    queue = open_queue(disk)
    fill(queue, 25)
    queue.truncate(keep * 100)
    assert (queue.max_offset, queue.next_offset) == (keep * 3, keep * 3)
    assert open_queue(disk).max_offset == keep * 3


def test_retention() -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 35)
    queue.correct_min(450)
    assert queue.min_offset == 15
    assert queue.delete_before(2000) == 2
    assert (queue.min_offset, queue.max_offset) == (60, 105)
    assert queue.read_entry(59) is None
    assert queue.read_entry(60) == QueueEntry(60, 2000, 100, 20, 3)
    assert queue.delete_before(1 << 40) == 1
    assert (queue.min_offset, queue.max_offset) == (105, 105)


@pytest.mark.parametrize(
    ("second", "lower", "upper"), [(-1, 0, 0), (0, 0, 2), (3.5, 12, 11), (24, 72, 74), (99, 75, 74)]
)
def test_offset_by_time(second: float, lower: int, upper: int) -> None:
    queue = open_queue(FaultyFileSystem())
    fill(queue, 25)
    timestamp = T0 + int(second * 1000)
    assert queue.offset_by_time(timestamp, Boundary.LOWER, no_time) == lower
    assert queue.offset_by_time(timestamp, Boundary.UPPER, no_time) == upper
