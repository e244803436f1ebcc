"""What waits for the disk: nothing is forgotten, also when syncs fail or files go."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError, StoreSyncError
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem

A, B = Path("/derived/a"), Path("/derived/b")


def disk_with_files(plan: FaultPlan | None = None) -> FaultyFileSystem:
    disk = FaultyFileSystem(plan, write_back_probability=0.0)
    disk.install(A, bytes(8192))
    disk.install(B, bytes(8192))
    return disk


def write(
    disk: FaultyFileSystem, dirty_ranges: DirtyRanges, path: Path, offset: int, data: bytes
) -> None:
    handle = disk.open_file(path)
    handle.write(offset, data)
    handle.close()
    dirty_ranges.wrote(path, offset, offset + len(data))


@pytest.mark.parametrize("seed", range(10))  # each draws other odds for the power loss
def test_a_batch_makes_everything_recorded_durable(seed: int) -> None:
    disk = disk_with_files(FaultPlan(seed))
    dirty_ranges = DirtyRanges(disk)
    write(disk, dirty_ranges, A, 10, b"aaa")
    write(disk, dirty_ranges, A, 5000, b"aaa")
    disk.create_file(Path("/derived/c"), 100).close()
    dirty_ranges.wrote(Path("/derived/c"), 0, 0)
    dirty_ranges.directory_changed(Path("/derived"))
    batch = dirty_ranges.begin()
    assert batch.ranges == {A: (10, 5003), Path("/derived/c"): (0, 0)}
    batch.run()
    dirty_ranges.finish(batch)
    assert not dirty_ranges.pending
    survivor = disk.power_loss()
    assert survivor.read_file(A)[10:13] == survivor.read_file(A)[5000:5003] == b"aaa"
    assert survivor.read_file(Path("/derived/c")) == bytes(100)


def test_ranges_recorded_during_a_batch_wait_for_the_next() -> None:
    disk = disk_with_files()
    dirty_ranges = DirtyRanges(disk)
    write(disk, dirty_ranges, A, 0, b"1")
    batch = dirty_ranges.begin()
    write(disk, dirty_ranges, B, 0, b"2")
    batch.run()
    dirty_ranges.finish(batch)
    assert dirty_ranges.pending
    assert dirty_ranges.begin().ranges == {B: (0, 1)}


@pytest.mark.parametrize("seed", range(10))
def test_a_failed_sync_is_repeated_and_its_pages_written_again(seed: int) -> None:
    plan = FaultPlan(seed)
    plan.at("files.sync", nth=1, error=errno.EIO)
    disk = disk_with_files(plan)
    dirty_ranges = DirtyRanges(disk)
    write(disk, dirty_ranges, A, 7, b"lost")
    write(disk, dirty_ranges, B, 7, b"kept")
    dirty_ranges.directory_changed(Path("/derived"))
    batch = dirty_ranges.begin()
    with pytest.raises(StoreSyncError, match="EIO"):
        batch.run()
    dirty_ranges.finish(batch)
    again = dirty_ranges.begin()
    assert again.ranges == {A: (7, 11)}  # B was synced although A failed
    assert list(again.directories) == [Path("/derived")]  # names wait for all bytes
    again.run()
    dirty_ranges.finish(again)
    assert not dirty_ranges.pending
    assert disk.power_loss().read_file(A)[7:11] == b"lost"


def test_a_failed_directory_is_repeated() -> None:
    plan = FaultPlan(1)
    plan.at("files.sync_directory", nth=1, error=errno.EIO)
    disk = disk_with_files(plan)
    dirty_ranges = DirtyRanges(disk)
    dirty_ranges.directory_changed(Path("/derived"))
    dirty_ranges.directory_changed(Path("/"))
    batch = dirty_ranges.begin()
    with pytest.raises(StoreSyncError):
        batch.run()
    dirty_ranges.finish(batch)
    assert list(dirty_ranges.begin().directories) == [Path("/derived")]


def test_files_and_directories_that_went_are_no_failure() -> None:
    disk = disk_with_files()
    dirty_ranges = DirtyRanges(disk)
    write(disk, dirty_ranges, A, 0, b"1")
    write(disk, dirty_ranges, B, 0, b"1")
    dirty_ranges.directory_changed(Path("/gone"))
    disk.remove(A)  # behind our back
    disk.remove(B)
    dirty_ranges.removed(B)
    batch = dirty_ranges.begin()
    assert list(batch.ranges) == [A]
    batch.run()
    dirty_ranges.finish(batch)
    assert not dirty_ranges.pending


def test_a_file_that_fails_and_then_goes_is_forgotten() -> None:
    plan = FaultPlan(1)
    plan.at("files.sync", nth=1, error=errno.EIO)
    disk = disk_with_files(plan)
    dirty_ranges = DirtyRanges(disk)
    write(disk, dirty_ranges, A, 0, b"1")
    batch = dirty_ranges.begin()
    with pytest.raises(StoreSyncError):
        batch.run()
    disk.remove(A)
    dirty_ranges.finish(batch)
    assert dirty_ranges.begin().ranges == {}


def test_no_batch_begins_while_failed_pages_cannot_be_marked() -> None:
    """A batch without them would succeed, and the checkpoint would pass bytes that are lost."""
    plan = FaultPlan(1)
    plan.at("files.sync", nth=1, error=errno.EIO)
    plan.at("files.open", nth=3, error=errno.EMFILE)
    disk = disk_with_files(plan)
    dirty_ranges = DirtyRanges(disk)
    write(disk, dirty_ranges, A, 0, b"1")
    batch = dirty_ranges.begin()
    with pytest.raises(StoreSyncError):
        batch.run()
    dirty_ranges.finish(batch)
    with pytest.raises(StoreFileError, match="ulimit"):
        dirty_ranges.begin()
    assert dirty_ranges.begin().ranges == {A: (0, 1)}


def test_a_machine_that_stops_within_a_batch_leaves_it_unfinished() -> None:
    plan = FaultPlan(1)
    plan.at("files.sync", nth=2, action=FaultAction.CUT)
    disk = disk_with_files(plan)
    dirty_ranges = DirtyRanges(disk)
    write(disk, dirty_ranges, A, 0, b"1")
    write(disk, dirty_ranges, B, 0, b"1")
    batch = dirty_ranges.begin()
    with pytest.raises(StoreFileError, match="stopped"):
        batch.run()
    assert list(batch.ranges) == [B]
