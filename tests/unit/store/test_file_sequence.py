"""The files of a log: load rules, rolling, truncation, deletion; crashes in a file of their own."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from skylark.core.errors import CorruptLogError
from skylark.store.allocator import Allocator
from skylark.store.file_sequence import MappedFiles, file_name
from skylark.store.file_system import PAGE_SIZE, FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.mapped_file import RangeNotReadableError
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem

SIZE = 4 * PAGE_SIZE
LOG = Path("/store/commitlog")


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def directory(files: FileSystem, tmp_path: Path) -> Path:
    files.make_directories(tmp_path)
    return tmp_path / "log"


def open_log(files: FileSystem, directory: Path, **options: Any) -> MappedFiles:
    log = MappedFiles(directory, SIZE, files=files, allocator=Allocator(files), **options)
    log.load()
    return log


def make_log(files: FileSystem, directory: Path, count: int, last: int = SIZE) -> None:
    """A log on disk that is not open."""
    log = open_log(files, directory)
    fill(log, count, last)
    log.close()


def fill(log: MappedFiles, count: int, last: int = SIZE) -> None:
    """Append files full of their number, the last one up to ``last``."""
    for index in range(count):
        file = log.roll()
        end = last if index == count - 1 else SIZE
        number = file.start_offset // SIZE + 1
        file.prepare(end)
        file.buffer[:end] = bytes([number]) * end
        file.wrote = end


def names(files: FileSystem, directory: Path) -> list[int]:
    return [int(entry.name) // SIZE for entry in files.list_directory(directory)]


# Rolling and finding


def test_an_empty_log_has_a_last_file_into_which_nothing_fits(
    files: FileSystem, directory: Path
) -> None:
    log = open_log(files, directory)
    assert (log.min_offset, log.max_offset, log.flushed_where) == (0, 0, 0)
    assert (log.last.size, log.last.wrote, log.find(0)) == (0, 0, None)
    assert log.unflushed() == []
    file = log.roll()
    assert log.last is file
    assert (file.start_offset, file.wrote, file.path.name) == (0, 0, "0" * 20)
    assert files.list_directory(directory)[0].size == SIZE


def test_files_follow_each_other_and_are_found_by_offset(
    files: FileSystem, directory: Path
) -> None:
    log = open_log(files, directory)
    fill(log, 3, last=100)
    assert [file.start_offset for file in log.files] == [0, SIZE, 2 * SIZE]
    assert log.files[2].path.name == f"{2 * SIZE:020d}"
    assert (log.min_offset, log.max_offset, log.wrote_end) == (0, 2 * SIZE + 100, 2 * SIZE + 100)
    assert log.find(SIZE - 1) is log.files[0]
    assert log.find(SIZE) is log.files[1]
    assert log.find(3 * SIZE - 1) is log.files[2]
    assert log.find(3 * SIZE) is None
    assert log.find(-1) is None
    assert list(log.following(SIZE + 1)) == log.files[1:]
    assert list(log.following(-5)) == log.files
    assert list(log.following(9 * SIZE)) == []


def test_the_first_file_holds_the_offset_that_was_asked_for(
    files: FileSystem, directory: Path
) -> None:
    log = open_log(files, directory)
    file = log.roll(5 * SIZE + 17)
    assert file.start_offset == 5 * SIZE
    assert (log.min_offset, log.max_offset, log.flushed_where) == (5 * SIZE, 5 * SIZE, 5 * SIZE)
    assert names(files, directory) == [5]


# Loading


def test_loaded_files_count_as_full_until_recovery_speaks(
    files: FileSystem, directory: Path
) -> None:
    make_log(files, directory, 3, last=100)
    log = open_log(files, directory)
    assert [(file.wrote, file.committed, file.flushed) for file in log.files] == [(SIZE,) * 3] * 3
    assert (log.min_offset, log.max_offset, log.flushed_where) == (0, 3 * SIZE, 3 * SIZE)
    assert not any(file.is_open for file in log.files)  # opened when needed
    with log.files[1].lease(0, 3) as lease:
        assert bytes(lease.view) == b"\2\2\2"


@pytest.mark.spec("store.12.25")
def test_an_empty_last_file_is_removed(
    files: FileSystem, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_log(files, directory, 2)
    files.create_file(directory / file_name(2 * SIZE), 0).close()
    log = open_log(files, directory)
    assert names(files, directory) == [0, 1]
    assert log.max_offset == 2 * SIZE
    assert "removed" in caplog.text


@pytest.mark.spec("store.12.25")
@pytest.mark.parametrize(
    ("damage", "offset", "message", "hint"),
    [
        ({1: SIZE - 1}, SIZE, "has 16383 bytes, and mappedFileSizeCommitLog is 16384", "restore"),
        ({1: 0}, SIZE, "has 0 bytes", "restore"),
        ({2: 5}, 2 * SIZE, "has 5 bytes", "restore"),
        ({2: 2 * SIZE}, 2 * SIZE, "has 32768 bytes", "mappedFileSizeCommitLog"),
        ({1: None}, SIZE, "the files from 16384 to 32768 are missing", "gap"),
    ],
)
def test_a_file_that_cannot_be_stops_the_start_and_nothing_is_deleted(
    files: FileSystem,
    directory: Path,
    damage: dict[int, int | None],
    offset: int,
    message: str,
    hint: str,
) -> None:
    make_log(files, directory, 3)
    files.create_file(directory / file_name(3 * SIZE), 0).close()  # would go, were all else well
    for index, length in damage.items():
        files.remove(directory / file_name(index * SIZE))
        if length is not None:
            files.write_file(directory / file_name(index * SIZE), bytes(length))
    before = files.list_directory(directory)
    with pytest.raises(CorruptLogError, match=message) as caught:
        open_log(files, directory)
    assert caught.value.offset == offset
    assert caught.value.file == str(directory / file_name(offset))
    assert hint in (caught.value.hint or "")
    assert files.list_directory(directory) == before


def test_other_sizes_than_the_store_was_made_with_are_noticed(
    files: FileSystem, directory: Path
) -> None:
    make_log(files, directory, 2)
    for name in [entry.name for entry in files.list_directory(directory)]:
        files.truncate(directory / name, SIZE + PAGE_SIZE)
    log = MappedFiles(directory, SIZE + PAGE_SIZE, files=files, allocator=Allocator(files))
    with pytest.raises(CorruptLogError, match="not a multiple of mappedFileSizeCommitLog"):
        log.load()


def test_foreign_names_are_ignored_with_a_warning(
    files: FileSystem, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_log(files, directory, 1)
    for name in (".DS_Store", "12345", "\u0660" * 20, "9" * 20 + ".bak"):
        files.write_file(directory / name, b"?")
    files.create_directory(directory / ("9" * 20))
    log = open_log(files, directory)
    assert len(log.files) == 1
    assert caplog.text.count("is not a file of this log") == 4


def test_problems_are_listed_for_a_check_without_opening_anything(
    files: FileSystem, directory: Path
) -> None:
    make_log(files, directory, 4)
    files.remove(directory / file_name(SIZE))
    files.truncate(directory / file_name(3 * SIZE), 7)
    log = MappedFiles(directory, SIZE, files=files, allocator=Allocator(files))
    listing = log.examine()
    assert [(problem.offset, problem.path.name) for problem in listing.problems] == [
        (SIZE, file_name(SIZE)),
        (3 * SIZE, file_name(3 * SIZE)),
    ]
    assert listing.starts == [0, 2 * SIZE, 3 * SIZE]


def test_a_file_that_changes_its_length_later_is_noticed(
    files: FileSystem, directory: Path
) -> None:
    make_log(files, directory, 2)
    log = open_log(files, directory)
    files.truncate(directory / file_name(0), 10)
    with pytest.raises(CorruptLogError, match="has 10 bytes instead of 16384"):
        log.files[0].lease(0, 1)


# Truncation


def test_truncation_removes_later_files_and_clears_the_rest(
    files: FileSystem, directory: Path
) -> None:
    make_log(files, directory, 4)
    log = open_log(files, directory)
    log.truncate(SIZE + 5)
    assert names(files, directory) == [0, 1]
    content = files.read_file(directory / file_name(SIZE))
    assert content == b"\2" * 5 + bytes(SIZE - 5)
    assert files.read_file(directory / file_name(0)) == b"\1" * SIZE
    assert (log.last.wrote, log.last.committed, log.last.flushed) == (5, 5, 5)
    assert (log.max_offset, log.flushed_where, log.committed_where) == (SIZE + 5,) * 3
    assert log.generation == 1
    log.last.prepare(10)
    log.last.buffer[5:10] = b"again"
    log.last.wrote = 10
    assert files.read_file(directory / file_name(SIZE))[:12] == b"\2\2\2\2\2again\0\0"


def test_a_file_that_starts_at_the_new_end_stays_empty(files: FileSystem, directory: Path) -> None:
    make_log(files, directory, 3)
    log = open_log(files, directory)
    log.truncate(SIZE)
    assert names(files, directory) == [0, 1]
    assert files.read_file(directory / file_name(SIZE)) == bytes(SIZE)
    assert (log.last.start_offset, log.last.wrote, log.max_offset) == (SIZE, 0, SIZE)
    log.truncate(SIZE - 1)
    assert names(files, directory) == [0]


def test_truncation_at_the_ends(files: FileSystem, directory: Path) -> None:
    log = open_log(files, directory)
    log.roll(2 * SIZE).wrote = SIZE
    fill(log, 1, last=7)
    with pytest.raises(ValueError, match="is beyond the end"):
        log.truncate(3 * SIZE + 8)
    log.truncate(3 * SIZE + 7)
    assert log.max_offset == 3 * SIZE + 7
    log.truncate(3)  # before the first file
    assert (log.files, names(files, directory), log.max_offset) == ([], [], 0)
    assert log.last.size == 0


def test_a_leased_file_may_be_truncated_away(files: FileSystem, directory: Path) -> None:
    log = open_log(files, directory)
    fill(log, 2)
    lease = log.files[1].lease(0, 3)
    log.truncate(5)
    assert names(files, directory) == [0]
    assert bytes(lease.view) == b"\2\2\2"
    lease.release()
    log.close()


# Deletion


@pytest.mark.spec("store.12.34")
def test_a_file_being_read_goes_when_it_is_returned_or_by_force(
    files: FileSystem, directory: Path
) -> None:
    log = open_log(files, directory)
    fill(log, 3)
    first = log.files[0]
    lease, other = first.lease(0, 3), first.lease(5, 1)
    assert log.retire_oldest(1000.0) is first
    assert (log.min_offset, log.find(0), log.retired_count) == (SIZE, None, 1)
    with pytest.raises(RangeNotReadableError):
        first.lease(0, 1)
    log.sweep(1119.9)
    lease.release()
    assert names(files, directory) == [0, 1, 2]
    other.release()  # the last one
    assert names(files, directory) == [1, 2]
    assert not first.is_open

    second = log.files[0]
    lease = second.lease(0, 3)
    log.retire_oldest(2000.0)
    log.sweep(2119.9)
    assert names(files, directory) == [1, 2]
    log.sweep(2120.0)
    assert names(files, directory) == [2]
    assert bytes(lease.view) == b"\2\2\2"  # the mapping lives on
    assert second.is_open
    lease.release()
    assert not second.is_open


def test_the_last_file_is_never_retired(files: FileSystem, directory: Path) -> None:
    log = open_log(files, directory)
    assert log.retire_oldest(0.0) is None
    fill(log, 1)
    assert log.retire_oldest(0.0) is None
    fill(log, 1)
    assert log.retire_oldest(0.0) is not None
    assert names(files, directory) == [1]


def test_younger_files_wait_for_older_ones(files: FileSystem, directory: Path) -> None:
    log = open_log(files, directory)
    fill(log, 4)
    lease = log.files[0].lease(0, 1)
    for _ in range(3):
        log.retire_oldest(0.0)
    assert (log.min_offset, log.removed_until, log.retired_count) == (3 * SIZE, 0, 3)
    assert names(files, directory) == [0, 1, 2, 3]
    lease.release()
    assert names(files, directory) == [3]
    assert (log.removed_until, log.retired_count) == (3 * SIZE, 0)


def test_a_file_that_cannot_be_removed_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyFileSystem(FaultPlan(0).at("files.remove", error=errno.EIO))
    disk.make_directories(LOG.parent)
    log = open_log(disk, LOG)
    fill(log, 2)
    log.retire_oldest(0.0)
    assert (names(disk, LOG), log.retired_count) == ([0, 1], 1)
    assert "could not be removed yet" in caplog.text
    log.sweep(10.0)
    assert (names(disk, LOG), log.retired_count) == ([1], 0)


def test_a_file_is_gone_for_good_when_its_directory_is_synced() -> None:
    disk = FaultyFileSystem(FaultPlan(0))
    disk.make_directories(LOG.parent)
    log = open_log(disk, LOG)
    assert log.removed_until == 0
    fill(log, 2)
    disk.plan.at("files.sync_directory", error=errno.EIO)
    log.retire_oldest(0.0)
    assert (names(disk, LOG), log.min_offset, log.removed_until) == ([1], SIZE, 0)
    log.sweep(10.0)
    assert (names(disk, LOG), log.min_offset, log.removed_until) == ([1], SIZE, SIZE)


def test_a_file_that_another_program_removed(
    files: FileSystem, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(files, directory)
    fill(log, 2)
    files.remove(directory / file_name(0))
    log.retire_oldest(0.0)
    assert log.retired_count == 0
    assert "was already removed" in caplog.text


# Open files


def test_older_files_are_closed_when_too_many_are_open(directory: Path) -> None:
    def open_count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - listing opens one itself, always

    files = OsFileSystem()
    make_log(files, directory, 30)
    before = open_count()
    log = open_log(files, directory, open_files_max=4)
    pinned = log.files[0].lease(0, 1)
    for file in log.files:
        with file.lease(0, 1) as lease:
            assert bytes(lease.view) == bytes([file.start_offset // SIZE + 1])
    assert sum(file.is_open for file in log.files) <= 5
    assert open_count() - before <= 10
    assert log.files[0].is_open  # it is being read
    pinned.release()
    log.close()
    assert open_count() == before


def test_files_that_are_not_on_disk_yet_stay_open(files: FileSystem, directory: Path) -> None:
    log = open_log(files, directory, open_files_max=1)
    fill(log, 4)
    assert all(file.is_open for file in log.files)
    log.sync()
    fill(log, 3)
    assert [file.is_open for file in log.files].count(False) == 3
    with log.files[0].lease(0, 1) as lease:
        assert bytes(lease.view) == b"\1"


def test_close_leaves_files_that_are_read_to_their_readers(
    files: FileSystem, directory: Path
) -> None:
    log = open_log(files, directory)
    fill(log, 2)
    lease = log.files[0].lease(0, 2)
    log.close()
    assert [file.is_open for file in log.files] == [True, False]
    assert bytes(lease.view) == b"\1\1"
    lease.release()
    assert [file.is_open for file in log.files] == [False, False]


# Flushing


def test_unflushed_ranges_are_in_order_and_move_the_position(
    files: FileSystem, directory: Path
) -> None:
    log = open_log(files, directory)
    fill(log, 3, last=100)
    ranges = log.unflushed()
    assert [(item.file.start_offset, item.end) for item in ranges] == [
        (0, SIZE),
        (SIZE, SIZE),
        (2 * SIZE, 100),
    ]
    log.mark_flushed(ranges[0])
    assert log.flushed_where == SIZE
    assert len(log.unflushed()) == 2
    log.last.wrote = 200  # appended after the ranges were taken
    log.mark_flushed(ranges[1])
    log.mark_flushed(ranges[2])
    assert log.flushed_where == 2 * SIZE + 100
    assert [item.end for item in log.unflushed()] == [200]
    log.sync()
    assert (log.flushed_where, log.unflushed()) == (2 * SIZE + 200, [])


def test_a_warning_is_all_that_a_forced_deletion_leaves(
    files: FileSystem, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(files, directory)
    log.force_after_ms = 0
    fill(log, 2)
    lease = log.files[0].lease(0, 1)
    with caplog.at_level(logging.WARNING):
        log.retire_oldest(5.0)
    assert "was deleted although it is being read" in caplog.text
    assert names(files, directory) == [1]
    lease.release()
