"""One file of a log: appends, leases, and room on the disk."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from skylark.store.allocator import Allocator
from skylark.store.errors import StoreFileBusyError, StoreFullError
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import PAGE_SIZE, FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.mapped_file import MappedFile, RangeNotReadableError
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_disk import UnallocatedWriteError

SIZE = 16 * PAGE_SIZE
LOG = Path("/log")


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


def new_log(files: FileSystem, directory: Path, *, ahead: int = SIZE) -> MappedFiles:
    return MappedFiles(directory, SIZE, files=files, allocator=Allocator(files, ahead=ahead))


@pytest.fixture
def log(files: FileSystem, tmp_path: Path) -> MappedFiles:
    return new_log(files, tmp_path / "log")


def append(file: MappedFile, data: bytes) -> None:
    """What the commit log does, to the letter."""
    end = file.wrote + len(data)
    if end > file.prepared:
        file.prepare(end)
    struct.pack_into(f"{len(data)}s", file.buffer, file.wrote, data)
    file.wrote = end


def test_appended_bytes_are_readable_and_nothing_else(log: MappedFiles) -> None:
    file = log.roll()
    assert (file.wrote, file.flushed, file.readable, file.leases) == (0, 0, 0, 0)
    assert (len(file.buffer), file.prepared) == (SIZE, SIZE)
    append(file, b"hello")
    append(file, b"world")
    assert (file.wrote, file.readable, file.flushed) == (10, 10, 0)
    with file.lease(5, 5) as lease:
        assert bytes(lease.view) == b"world"
        assert file.leases == 1
    assert file.leases == 0
    assert bytes(file.lease(10, 0).view) == b""
    for position, size in ((5, 6), (11, 0), (-1, 2), (0, -1), (0, SIZE)):
        with pytest.raises(RangeNotReadableError, match=f"{size} bytes at {position} are not"):
            file.lease(position, size)
    into = bytearray(10)
    assert file.read_into(0, into) == 10
    assert into == b"helloworld"


def test_a_lease_is_returned_once(log: MappedFiles) -> None:
    file = log.roll()
    append(file, b"hello")
    first, second = file.lease(0, 5), file.lease(0, 5)
    first.release()
    first.release()
    assert file.leases == 1
    with pytest.raises(ValueError, match="released memoryview"):
        bytes(first.view)
    assert bytes(second.view) == b"hello"
    second.release()
    assert file.leases == 0


def test_close_waits_for_leases_and_the_file_opens_again(log: MappedFiles) -> None:
    file = log.roll()
    append(file, b"hello")
    lease = file.lease(0, 5)
    with pytest.raises(StoreFileBusyError, match="1 leases are out"):
        file.close()
    append(file, b"!")
    lease.release()
    file.close()
    assert not file.is_open
    file.close()
    with file.lease(0, 6) as again:
        assert bytes(again.view) == b"hello!"
    assert file.is_open


def test_an_array_over_a_lease_keeps_the_mapping(log: MappedFiles) -> None:
    file = log.roll()
    append(file, bytes(range(10)))
    lease = file.lease(0, 10)
    array = np.frombuffer(lease.view, np.uint8)
    lease.release()
    assert file.leases == 0
    with pytest.raises(StoreFileBusyError, match="still in use"):
        file.close()
    assert array.sum() == 45
    append(file, b"x")  # a refused close leaves a working file
    del array
    file.close()
    assert not file.is_open


def test_a_leaving_file_gives_out_no_leases(log: MappedFiles) -> None:
    file = log.roll()
    append(file, b"hello")
    log.close()
    with pytest.raises(RangeNotReadableError):
        file.lease(0, 5)


@pytest.mark.parametrize(
    ("done", "end", "least_pages", "expected"),
    [
        (0, 0, 0, False),
        (7, 7, 0, False),
        (0, 1, 0, True),
        (0, 4 * PAGE_SIZE - 1, 4, False),
        (0, 4 * PAGE_SIZE, 4, True),
        (PAGE_SIZE - 1, 4 * PAGE_SIZE, 4, True),  # pages are counted by their boundaries
        (PAGE_SIZE, 4 * PAGE_SIZE, 4, False),
        (SIZE - 1, SIZE, 4, True),  # a full file is always worth it
        (SIZE, SIZE, 4, False),
    ],
)
def test_pages_that_make_a_flush_worth_while(
    log: MappedFiles, done: int, end: int, least_pages: int, expected: bool
) -> None:
    assert log.roll().is_due(done, end, least_pages) is expected


def test_blocks_come_in_pieces_ahead_of_the_appends() -> None:
    disk = FaultyFileSystem()
    log = new_log(disk, LOG, ahead=4 * PAGE_SIZE)
    file = log.roll()
    assert (file.allocated, file.prepared) == (4 * PAGE_SIZE, 4 * PAGE_SIZE)
    append(file, bytes(4 * PAGE_SIZE))
    assert file.allocated == 4 * PAGE_SIZE
    append(file, b"x")
    assert file.allocated == 8 * PAGE_SIZE + 1
    append(file, b"y" * (SIZE - file.wrote))
    assert (file.wrote, file.allocated, file.prepared) == (SIZE, SIZE, SIZE)
    file.handle.sync()  # the twin would complain about bytes without blocks


def test_a_write_that_was_not_prepared_is_what_the_twin_reports() -> None:
    file = new_log(FaultyFileSystem(), LOG, ahead=4 * PAGE_SIZE).roll()
    file.buffer[5 * PAGE_SIZE] = 1
    with pytest.raises(UnallocatedWriteError):
        file.handle.sync()


def test_a_full_disk_fails_the_append_until_space_is_back() -> None:
    disk = FaultyFileSystem(capacity=5 * PAGE_SIZE)
    log = new_log(disk, LOG, ahead=4 * PAGE_SIZE)
    file = log.roll()
    append(file, bytes(4 * PAGE_SIZE))
    append(file, b"a" * PAGE_SIZE)  # the last page of the disk
    assert file.prepared == 5 * PAGE_SIZE
    for _ in range(2):
        with pytest.raises(StoreFullError, match="ENOSPC"):
            append(file, b"b")
        assert (file.wrote, file.prepared, file.allocated) == (5 * PAGE_SIZE,) * 3
    with file.lease(4 * PAGE_SIZE, 1) as lease:  # reading goes on
        assert bytes(lease.view) == b"a"
    disk.capacity = 1 << 20
    append(file, b"b")
    with file.lease(5 * PAGE_SIZE, 1) as lease:
        assert bytes(lease.view) == b"b"
    file.handle.sync()
