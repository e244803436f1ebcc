"""Units: written, read, ended by blanks, cut, expired."""

from __future__ import annotations

import pytest

from skylark.core.errors import CorruptLogError
from skylark.store.errors import StoreFullError
from skylark.store.timer.timer_layout import (
    BLANK,
    BLANK_MAGIC,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    UNIT_SIZE,
    last_unit_position,
)
from skylark.store.timer.timer_log import TimerLog, Unit
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.unit.store.timer.topics import DISK, new_disk

FILE_SIZE = 300  # five units and a blank of 40 bytes


def new_log(files: FaultyFileSystem, file_size: int = FILE_SIZE) -> TimerLog:
    log = TimerLog(DISK / "timerlog", file_size, files)
    log.files.load()
    return log


def fill(log: TimerLog, count: int) -> list[int]:
    return [log.append(-1, MAGIC_DEFAULT, 7_000, 2_000, 100 * n, 50, n) for n in range(count)]


def test_a_unit_is_read_as_it_was_written() -> None:
    log = new_log(new_disk())
    position = log.append(-1, MAGIC_DEFAULT | MAGIC_ROLL, 7_000, 2_000, 123, 456, -789)
    unit = log.read(position)
    assert unit == Unit(-1, 3, 7_000, 9_000, 123, 456, -789)
    assert unit is not None
    assert (unit.is_rolled, unit.is_delete) == (True, False)
    assert log.read(position + UNIT_SIZE) is None
    assert log.read(1 << 40) is None


def test_files_are_ended_by_a_blank() -> None:
    files = new_disk()
    log = new_log(files)
    assert log.end == 0
    assert not files.exists(DISK / "timerlog")  # made by the first unit
    assert fill(log, 7) == [0, 52, 104, 156, 208, 300, 352]
    first = files.open_file(DISK / "timerlog" / f"{0:020d}")
    assert BLANK.unpack(first.read(260, 16)) == (40, 0, BLANK_MAGIC)
    assert BLANK_MAGIC & 0xFFFF_FFFF == 0xCBD43194
    assert (log.end, log.following(260), log.following(104)) == (404, 300, 104)
    assert last_unit_position(FILE_SIZE) == 208
    assert last_unit_position(100 << 20) == 104_857_532  # as Java's getOffsetForLastUnit


def test_java_rule_for_the_last_unit() -> None:
    for size in (68, 100, 119, 120, 1_000, 100 << 20):
        java = size - (size - 16) % 52 - 16 - 52
        assert last_unit_position(size) == java


def test_a_scan_sees_each_unit_once() -> None:
    log = new_log(new_disk())
    positions = fill(log, 17)
    found = []
    for first, units in log.scan(0, log.end):
        found += [first + UNIT_SIZE * n for n in range(len(units))]
        assert set(units["size"].tolist()) == {UNIT_SIZE}
    assert found == positions
    some = [first for first, _ in log.scan(positions[7], positions[9])]
    assert some == [positions[7]]
    assert log.unit_at(positions[7] + 51) == positions[7]


def test_a_log_goes_on_where_it_was_truncated() -> None:
    files = new_disk()
    log = new_log(files)
    fill(log, 8)
    log.files.close()
    log = new_log(files)
    assert log.end == 600  # until recovery finds the end
    log.truncate(352)
    assert (log.end, log.read(352)) == (352, None)
    assert log.append(-1, 1, 0, 0, 0, 0, 0) == 352


def test_a_full_disk_changes_nothing() -> None:
    files = new_disk()
    log = new_log(files, file_size=1 << 22)
    fill(log, 3)
    files.capacity = 0
    log.files.last.prepared = log.files.last.allocated = log.files.last.wrote
    with pytest.raises(StoreFullError):
        fill(log, 1)
    assert log.end == 156
    files.capacity = 1 << 30
    assert fill(log, 1) == [156]


def test_files_whose_messages_expired_go() -> None:
    files = new_disk()
    log = new_log(files)
    fill(log, 12)  # log offsets 0, 100, ...: the last of each file is at 400 and 900
    assert log.has_old_files
    assert log.delete_before(400, 0.0) == 0
    assert log.delete_before(401, 0.0) == 1
    assert (log.min_position, log.read(0)) == (300, None)
    assert log.delete_before(1 << 40, 0.0) == 1  # the last one stays
    assert [entry.name for entry in files.list_directory(DISK / "timerlog")] == [f"{600:020d}"]
    assert not log.has_old_files


def test_a_wrong_file_size_is_named() -> None:
    files = new_disk()
    fill(new_log(files), 1)
    with pytest.raises(CorruptLogError, match="mappedFileSizeTimerLog"):
        new_log(files, file_size=400)


def test_marks_are_distinguished() -> None:
    unit = Unit(-1, MAGIC_DEFAULT | MAGIC_DELETE, 0, 0, 0, 0, 0)
    assert (unit.is_rolled, unit.is_delete) == (False, True)
