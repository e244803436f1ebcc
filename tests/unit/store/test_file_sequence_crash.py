"""What crashes leave of a log: the machine stops at every line, and the files still make a log."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.core.errors import SkylarkError
from skylark.store.allocator import Allocator
from skylark.store.errors import StoreSyncError
from skylark.store.file_sequence import MappedFiles, file_name
from skylark.store.file_system import PAGE_SIZE, FileSystem
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem

SIZE = 4 * PAGE_SIZE
LOG = Path("/store/commitlog")


def open_log(files: FileSystem, directory: Path) -> MappedFiles:
    log = MappedFiles(directory, SIZE, files=files, allocator=Allocator(files))
    log.load()
    return log


def fill(log: MappedFiles, count: int, last: int = SIZE) -> None:
    """Append files full of their number, the last one up to ``last``."""
    for index in range(count):
        file = log.roll()
        end = last if index == count - 1 else SIZE
        number = file.start_offset // SIZE + 1
        file.prepare(end)
        file.buffer[:end] = bytes([number]) * end
        file.wrote = end


def recovered(disk: FaultyFileSystem) -> MappedFiles:
    """The log after a crash, as the next process finds it."""
    disk.plan.clear()
    return open_log(disk, LOG)


def cut_everywhere(work: Callable[[FaultyFileSystem], None], lines_min: int) -> None:
    """Crash at every line of ``work`` that touches the disk; the caller checks what is left."""
    for nth in range(1, 200):
        disk = FaultyFileSystem(FaultPlan(nth))
        disk.make_directories(LOG.parent, durable=True)
        log = open_log(disk, LOG)
        fill(log, 5)
        log.sync()
        disk.plan.at("files.*", nth=nth, action=FaultAction.CUT)
        with contextlib.suppress(SkylarkError):
            work(disk)
        if not disk.plan.hit_count:
            assert nth > lines_min
            return
    pytest.fail("the work never came to its end")


def test_power_loss_at_every_line_of_a_truncation_leaves_no_gap() -> None:
    left: set[int] = set()

    def work(disk: FaultyFileSystem) -> None:
        log = open_log(disk, LOG)
        try:
            log.truncate(SIZE + 10)
        finally:
            again = recovered(disk.power_loss())  # raises if there is a gap
            left.add(len(again.files))
            assert again.files[0].lease(0, SIZE).view == b"\1" * SIZE
            assert bytes(again.files[1].lease(0, 10).view) == b"\2" * 10
            again.truncate(SIZE + 10)  # what recovery does once more
            assert bytes(again.last.handle.read(10, SIZE)) == bytes(SIZE - 10)

    cut_everywhere(work, lines_min=8)
    assert left == {2, 3, 4, 5}


def test_power_loss_at_every_line_of_deletion_leaves_no_gap() -> None:
    left: set[int] = set()

    def work(disk: FaultyFileSystem) -> None:
        log = open_log(disk, LOG)
        try:
            lease = log.files[0].lease(0, 1)
            log.retire_oldest(0.0)
            log.retire_oldest(0.0)  # idle, but must not go before the first
            lease.release()
            log.retire_oldest(0.0)
        finally:
            again = recovered(disk.power_loss())
            left.add(again.min_offset // SIZE)
            assert again.max_offset == 5 * SIZE

    cut_everywhere(work, lines_min=6)
    assert left == {0, 1, 2, 3}


def test_recovered_bytes_are_on_disk_before_they_count_as_flushed() -> None:
    lost = 0
    for seed in range(40):
        for unsynced_from in (None, 0):
            disk = FaultyFileSystem(FaultPlan(seed))
            disk.make_directories(LOG.parent, durable=True)
            fill(open_log(disk, LOG), 3, last=100)
            disk = disk.kill()  # all is there, but only in the page cache
            log = open_log(disk, LOG)
            log.truncate(2 * SIZE + 100, unsynced_from=unsynced_from)
            assert log.flushed_where == 2 * SIZE + 100
            again = recovered(disk.power_loss())
            assert bytes(again.files[2].lease(0, 101).view) == b"\3" * 100 + b"\0"
            whole = [bytes(file.handle.read(0, SIZE)) for file in again.files[:2]]
            if whole != [b"\1" * SIZE, b"\2" * SIZE]:
                assert unsynced_from is None
                lost += 1
    assert lost > 0  # or the test shows nothing


def test_the_last_file_is_synced_also_when_it_is_full() -> None:
    for seed in range(20):
        disk = FaultyFileSystem(FaultPlan(seed))
        disk.make_directories(LOG.parent, durable=True)
        fill(open_log(disk, LOG), 1)
        disk = disk.kill()
        open_log(disk, LOG).truncate(SIZE)
        assert disk.power_loss().read_file(LOG / file_name(0)) == b"\1" * SIZE


def test_the_name_of_a_file_is_durable_before_anything_is_in_it() -> None:
    """The file was made by a process that was killed just before it synced the directory."""
    for seed in range(20):
        disk = FaultyFileSystem(FaultPlan(seed))
        disk.make_directories(LOG.parent, durable=True)
        log = open_log(disk, LOG)
        fill(log, 1)
        log.sync()
        disk.plan.at("files.sync_directory", action=FaultAction.CUT)
        with pytest.raises(SkylarkError):
            log.roll()
        disk = disk.kill()
        log = recovered(disk)
        log.truncate(SIZE)
        assert (len(log.files), log.wrote_end) == (2, SIZE)
        log.last.prepare(5)
        log.last.buffer[:5] = b"bytes"
        log.last.wrote = 5
        log.sync()
        again = recovered(disk.power_loss())
        assert again.files[1].handle.read(0, 6) == b"bytes\0"


def test_after_a_failed_sync_everything_is_written_again() -> None:
    for seed in range(20):
        plan = FaultPlan(seed)
        disk = FaultyFileSystem(plan, write_back_probability=0.0)
        disk.make_directories(LOG.parent, durable=True)
        log = open_log(disk, LOG)
        fill(log, 2, last=PAGE_SIZE + 10)
        plan.at("files.sync", error=errno.EIO)
        with pytest.raises(StoreSyncError):
            log.sync()
        assert log.flushed_where == 0
        log.sync()
        assert log.flushed_where == SIZE + PAGE_SIZE + 10
        again = recovered(disk.power_loss())
        assert bytes(again.files[0].lease(0, SIZE).view) == b"\1" * SIZE
        assert bytes(again.files[1].lease(0, PAGE_SIZE + 10).view) == b"\2" * (PAGE_SIZE + 10)


def test_pages_behind_a_blank_record_are_not_touched_after_a_failed_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was written there, so there may be no blocks: a store would be a SIGBUS."""
    touched: list[tuple[int, int]] = []
    disk = FaultyFileSystem(FaultPlan(0).at("files.sync", nth=2, error=errno.EIO))
    disk.make_directories(LOG.parent)
    allocator = Allocator(disk, ahead=PAGE_SIZE)
    log = MappedFiles(LOG, SIZE, files=disk, allocator=allocator)
    log.load()
    file = log.roll()
    file.buffer[:8] = b"blankrec"
    file.wrote = SIZE
    (item,) = log.unflushed()
    monkeypatch.setattr(item.handle, "mark_dirty", lambda *args: touched.append(args))
    with pytest.raises(StoreSyncError):
        log.sync()
    assert touched == [(0, PAGE_SIZE)]
