"""Space before it is needed: spare files, blocks ahead, full disks, and crashes in between."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skylark.store.allocator import (
    POPULATE_WITHIN_MS,
    Allocator,
    FileNotReadyError,
)
from skylark.store.errors import (
    StoreFileError,
    StoreFileExistsError,
    StoreFileMissingError,
    StoreFullError,
)
from skylark.store.file_sequence import MappedFiles, file_name
from skylark.store.file_system import PAGE_SIZE, FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.mapped_file import MappedFile
from skylark.testing.fault_plan import FaultAction, FaultPlan, Gate
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.unit.store.manual_owner import ManualOwner

SIZE = 16 * PAGE_SIZE
AHEAD = 4 * PAGE_SIZE
LOG = Path("/store/log")


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def owner() -> ManualOwner:
    return ManualOwner()


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def open_log(
    files: FileSystem, directory: Path, owner: ManualOwner, ahead: int = AHEAD
) -> MappedFiles:
    files.make_directories(directory.parent, durable=True)
    allocator = Allocator(files, ahead=ahead, executor=owner, post=owner.post)
    log = MappedFiles(directory, SIZE, files=files, allocator=allocator)
    log.load()
    return log


def roll(log: MappedFiles) -> MappedFile:
    log.last.wrote = log.last.size
    return log.roll()


def names(files: FileSystem, directory: Path) -> list[int]:
    return [int(entry.name) // SIZE for entry in files.list_directory(directory)]


def append(file: MappedFile, count: int) -> None:
    end = file.wrote + count
    if end > file.prepared:
        file.prepare(end)
    file.buffer[file.wrote : end] = b"x" * count
    file.wrote = end


# The next file


def test_the_next_file_is_made_by_the_worker_and_taken_by_the_roll(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    log = open_log(files, tmp_path / "log", owner)
    roll(log)
    assert names(files, tmp_path / "log") == [0]
    owner.settle()
    assert names(files, tmp_path / "log") == [0, 1]  # one more than needed, as in Java
    assert len(log.files) == 1
    second = roll(log)
    assert (second.start_offset, second.wrote, second.allocated) == (SIZE, 0, AHEAD)
    assert names(files, tmp_path / "log") == [0, 1]  # the roll itself made nothing
    owner.settle()
    assert names(files, tmp_path / "log") == [0, 1, 2]
    log.close()


def test_a_roll_makes_the_file_itself_when_the_worker_has_not_begun(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    log = open_log(files, tmp_path / "log", owner)
    roll(log)
    roll(log)
    assert names(files, tmp_path / "log") == [0, 1]
    owner.work()  # the request that was taken over does nothing any more
    assert names(files, tmp_path / "log") == [0, 1]
    owner.settle()
    assert names(files, tmp_path / "log") == [0, 1, 2]
    log.close()


def test_a_clean_stop_removes_the_spare_file(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    log = open_log(files, tmp_path / "log", owner)
    roll(log)
    owner.settle()
    log.close()
    assert names(files, tmp_path / "log") == [0]
    log.close()

    log = open_log(files, tmp_path / "log", owner)
    roll(log)
    log.close()  # a request that was not begun
    owner.settle()
    assert names(files, tmp_path / "log") == [0, 1]


def test_a_spare_file_that_stays_does_not_stop_the_stop(
    owner: ManualOwner, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyFileSystem()
    log = open_log(disk, LOG, owner)
    roll(log)
    owner.settle()
    disk.plan.at("files.remove", error=errno.EIO)
    log.close()
    assert "the spare file could not be removed" in caplog.text
    assert not log.last.is_open


@pytest.mark.spec("store.12.25")
def test_a_crash_leaves_the_spare_file_and_recovery_removes_it(owner: ManualOwner) -> None:
    disk = FaultyFileSystem()
    log = open_log(disk, LOG, owner)
    append(roll(log), 100)
    owner.settle()
    disk = disk.kill()
    assert names(disk, LOG) == [0, 1]
    assert disk.read_file(LOG / file_name(SIZE)) == bytes(SIZE)
    log = open_log(disk, LOG, owner)
    log.truncate(100)
    assert names(disk, LOG) == [0]
    assert log.max_offset == 100


def test_truncation_takes_the_spare_file_along(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    log = open_log(files, tmp_path / "log", owner)
    for _ in range(3):
        roll(log)
        owner.settle()
    assert names(files, tmp_path / "log") == [0, 1, 2, 3]
    log.truncate(SIZE + 3)
    assert names(files, tmp_path / "log") == [0, 1]
    assert roll(log).start_offset == 2 * SIZE
    log.close()


def test_a_roll_waits_for_a_file_that_is_being_made(workers: ThreadPoolExecutor) -> None:
    plan = FaultPlan(0)
    disk = FaultyFileSystem(plan)
    disk.make_directories(LOG, durable=True)
    owner, gate = ManualOwner(), Gate()
    allocator = Allocator(disk, executor=workers, post=owner.post, create_wait_s=0.01)
    log = MappedFiles(LOG, SIZE, files=disk, allocator=allocator)
    plan.at("files.sync_directory", nth=3, gate=gate)
    roll(log)
    assert gate.wait_reached()
    for _ in range(2):
        with pytest.raises(FileNotReadyError, match=r"not created within 0.01 s") as caught:
            roll(log)
        assert caught.value.retriable
    assert len(log.files) == 1
    gate.open()
    allocator._create_wait_s = 10.0
    assert roll(log).start_offset == SIZE
    log.close()


def test_a_spare_that_could_not_be_made_is_made_by_the_roll(
    owner: ManualOwner, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyFileSystem(FaultPlan(0).at("files.create", nth=4, error=errno.EIO))
    log = open_log(disk, LOG, owner)
    roll(log)
    owner.settle()
    assert names(disk, LOG) == [0]
    assert roll(log).start_offset == SIZE
    assert "could not create the next file" in caplog.text
    log.close()


def test_a_full_disk_fails_the_roll_until_space_is_back(owner: ManualOwner) -> None:
    disk = FaultyFileSystem(capacity=AHEAD + PAGE_SIZE)
    log = open_log(disk, LOG, owner)
    file = roll(log)
    owner.settle()
    for _ in range(2):
        with pytest.raises(StoreFullError, match="ENOSPC"):
            roll(log)
        assert names(disk, LOG) == [0]  # nothing half-made stays
        assert (log.last, len(log.files)) == (file, 1)
    disk.capacity = 1 << 20
    assert roll(log).start_offset == SIZE
    owner.settle()
    assert names(disk, LOG) == [0, 1, 2]
    log.close()


@pytest.mark.parametrize("point", ["allocate", "sync", "sync_directory"])
def test_a_file_that_cannot_be_finished_is_taken_back(point: str) -> None:
    disk = FaultyFileSystem()
    disk.make_directories(LOG)
    disk.plan.at(f"files.{point}", error=errno.EIO)
    allocator = Allocator(disk)
    with pytest.raises(StoreFileError, match="EIO"):
        allocator.take(LOG / file_name(0), SIZE)
    assert disk.list_directory(LOG) == []
    allocator.take(LOG / file_name(0), SIZE).close()


@pytest.mark.parametrize("by_worker", [False, True])
@pytest.mark.parametrize("point", ["allocate", "sync", "sync_directory"])
def test_a_file_that_can_be_neither_finished_nor_removed_is_no_obstacle(
    point: str, by_worker: bool, owner: ManualOwner
) -> None:
    """The next roll wants the same name, and finds the file there."""
    disk = FaultyFileSystem()
    log = open_log(disk, LOG, owner)
    roll(log)
    disk.plan.chance(f"files.{point}", 1.0, error=errno.EIO, action=FaultAction.ERROR)
    disk.plan.chance("files.remove", 1.0, error=errno.EIO, action=FaultAction.ERROR)
    if by_worker:
        owner.settle()
    for _ in range(2):
        with pytest.raises(StoreFileError, match="EIO"):
            roll(log)
        assert names(disk, LOG) == [0, 1]
    disk.plan.clear()
    assert roll(log).start_offset == SIZE
    log.close()


def test_a_foreign_file_is_not_removed() -> None:
    disk = FaultyFileSystem()
    disk.make_directories(LOG)
    disk.create_file(LOG / file_name(0), SIZE).close()
    for _ in range(2):
        with pytest.raises(StoreFileExistsError):
            Allocator(disk).take(LOG / file_name(0), SIZE)
    assert names(disk, LOG) == [0]


def test_power_loss_at_every_line_of_a_creation_leaves_a_log_that_loads() -> None:
    lengths: set[int | None] = set()
    for nth in range(1, 8):  # more lines than a creation has
        for seed in range(12):
            disk = FaultyFileSystem(FaultPlan(seed))
            owner = ManualOwner()
            log = open_log(disk, LOG, owner)
            append(roll(log), 10)
            log.sync()
            disk.plan.at("files.*", nth=nth, action=FaultAction.CUT)
            owner.settle()
            cut = disk.plan.hit_count > 0
            disk.plan.clear()
            disk = disk.power_loss()
            sizes = {int(entry.name): entry.size for entry in disk.list_directory(LOG)}
            lengths.add(sizes.get(SIZE))
            assert cut or sizes.get(SIZE) == SIZE
            again = open_log(disk, LOG, ManualOwner())
            assert bytes(again.files[0].lease(0, 10).view) == b"x" * 10
            again.truncate(10)
            assert names(disk, LOG) == [0]
    assert lengths == {None, 0, SIZE}


# Blocks ahead


def test_the_worker_allocates_while_there_is_still_room(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    log = open_log(files, tmp_path / "log", owner)
    file = roll(log)
    owner.settle()
    assert (file.allocated, file.prepared) == (AHEAD, AHEAD // 2)
    append(file, AHEAD // 2)
    assert not owner.jobs
    append(file, 1)  # half of the piece is used up: the worker makes the next one
    assert (len(owner.jobs), file.allocated, file.prepared) == (1, AHEAD, AHEAD)
    append(file, 10)  # not asked for twice
    assert len(owner.jobs) == 1
    owner.settle()
    assert (file.allocated, file.prepared) == (2 * AHEAD, 2 * AHEAD - AHEAD // 2)
    while file.wrote < SIZE:
        allocated = file.allocated
        append(file, min(100, SIZE - file.wrote))
        assert file.allocated == allocated  # never in place
        owner.settle()
    assert (file.allocated, file.prepared) == (SIZE, SIZE)
    log.sync()
    log.close()


def test_an_append_that_overtakes_the_worker_allocates_in_place(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    log = open_log(files, tmp_path / "log", owner)
    file = roll(log)
    owner.settle()
    append(file, AHEAD // 2 + 1)
    assert len(owner.jobs) == 1
    append(file, AHEAD)
    assert file.allocated == AHEAD // 2 + 1 + AHEAD + AHEAD
    allocated = file.allocated
    owner.settle()  # late, and of no use any more
    assert file.allocated == allocated
    log.sync()
    log.close()


def test_a_full_disk_ahead_is_only_logged(
    owner: ManualOwner, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyFileSystem(capacity=3 * AHEAD + PAGE_SIZE)
    log = open_log(disk, LOG, owner)
    file = roll(log)
    owner.settle()  # the spare takes one piece as well
    append(file, AHEAD + PAGE_SIZE)  # and this one the last
    assert file.allocated == 2 * AHEAD + PAGE_SIZE
    with caplog.at_level(logging.WARNING):
        while file.wrote < file.allocated:
            append(file, PAGE_SIZE)
            owner.settle()
    assert "could not allocate space before the write position" in caplog.text
    for _ in range(2):
        with pytest.raises(StoreFullError):
            append(file, PAGE_SIZE)
        owner.settle()
        assert file.wrote == file.allocated == 2 * AHEAD + PAGE_SIZE
    disk.capacity = 1 << 20
    append(file, PAGE_SIZE)
    append(file, SIZE - file.wrote)
    log.sync()


def test_the_worker_may_finish_after_the_file_has_gone(owner: ManualOwner) -> None:
    disk = FaultyFileSystem()
    log = open_log(disk, LOG, owner)
    file = roll(log)
    owner.settle()
    append(file, AHEAD // 2 + 1)
    assert len(owner.jobs) == 1
    log.truncate(5)
    owner.settle()
    assert (file.wrote, file.prepared, file.allocated) == (5, 5, 5)
    append(file, SIZE - 5)
    log.sync()


# Pages ahead

TOUCHED = 4 * PAGE_SIZE


def open_populating_log(files: FileSystem, directory: Path, owner: ManualOwner) -> MappedFiles:
    files.make_directories(directory.parent, durable=True)
    allocator = Allocator(
        files, ahead=2 * SIZE, executor=owner, post=owner.post, populate_ahead=TOUCHED
    )
    log = MappedFiles(directory, SIZE, files=files, allocator=allocator)
    log.load()
    return log


def test_the_worker_touches_pages_before_they_are_written(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    log = open_populating_log(files, tmp_path / "log", owner)
    file = roll(log)
    owner.settle()
    assert (file.populated, file.prepared) == (TOUCHED, TOUCHED // 2)
    append(file, TOUCHED // 2)
    assert not owner.jobs
    append(file, 1)
    assert (len(owner.jobs), file.populated) == (1, 2 * TOUCHED)
    assert file.prepared == 2 * TOUCHED - TOUCHED // 2
    owner.settle()
    assert bytes(file.buffer[file.wrote :]) == bytes(SIZE - file.wrote)
    calls = 0
    while file.wrote < SIZE:
        append(file, min(100, SIZE - file.wrote))
        calls += len(owner.jobs)
        owner.settle()
    assert (calls, file.populated, file.prepared) == (2, SIZE, SIZE)
    assert bytes(file.buffer) == b"x" * SIZE
    log.close()


def test_pages_are_not_touched_where_messages_come_in_slowly(owner: ManualOwner) -> None:
    log = open_populating_log(FaultyFileSystem(), LOG, owner)
    file = roll(log)
    owner.settle()
    file.last_store_timestamp = POPULATE_WITHIN_MS + 1
    append(file, TOUCHED // 2 + 1)
    assert (len(owner.jobs), file.prepared) == (0, 2 * TOUCHED - TOUCHED // 2)
    file.last_store_timestamp += POPULATE_WITHIN_MS
    append(file, TOUCHED)
    assert len(owner.jobs) == 1
    log.close()


def test_a_worker_that_is_behind_is_not_asked_again(owner: ManualOwner) -> None:
    log = open_populating_log(FaultyFileSystem(), LOG, owner)
    file = roll(log)
    owner.settle()
    append(file, TOUCHED // 2 + 1)
    append(file, TOUCHED)
    assert (len(owner.jobs), file.populated) == (1, 3 * TOUCHED)
    owner.settle()
    append(file, TOUCHED)
    assert len(owner.jobs) == 1
    log.close()


def test_a_log_can_be_cut_and_closed_while_its_pages_are_touched(
    tmp_path: Path, workers: ThreadPoolExecutor, owner: ManualOwner
) -> None:
    files = OsFileSystem()
    allocator = Allocator(
        files, ahead=2 * SIZE, executor=workers, post=owner.post, populate_ahead=TOUCHED
    )
    files.make_directories(tmp_path)
    log = MappedFiles(tmp_path / "log", SIZE, files=files, allocator=allocator)
    log.load()
    for _ in range(20):
        file = roll(log)
        append(file, TOUCHED // 2 + 1)
        log.truncate(file.start_offset + 5)
        append(file, SIZE - 5)
        assert not file.leases
    log.truncate(0)
    log.close()
    assert [file.is_open for file in log.files] == [False]


# Warm-up


@pytest.mark.parametrize(("sync_pages", "syncs"), [(0, 1), (4, 5), (5, 4)])
def test_warm_up_fills_the_file_and_leaves_it_zero(
    owner: ManualOwner, sync_pages: int, syncs: int
) -> None:
    disk = FaultyFileSystem()
    disk.make_directories(LOG)
    allocator = Allocator(
        disk, ahead=PAGE_SIZE, executor=owner, post=owner.post, warm_up_pages=sync_pages
    )
    allocator.request(LOG / file_name(0), SIZE)
    owner.settle()
    assert disk.plan.visits["files.sync"] == syncs
    handle = allocator.take(LOG / file_name(0), SIZE)
    assert handle.allocated_until == SIZE
    assert handle.read(0, SIZE) == bytes(SIZE)
    assert disk.disk_usage(LOG).free == disk.capacity - SIZE


def test_a_warm_file_is_used_and_let_cool_like_any_other(
    files: FileSystem, tmp_path: Path, owner: ManualOwner
) -> None:
    files.make_directories(tmp_path)
    allocator = Allocator(files, executor=owner, post=owner.post, warm_up_pages=0)
    log = MappedFiles(tmp_path / "log", SIZE, files=files, allocator=allocator)
    for _ in range(3):
        append(roll(log), 10)
        owner.settle()
    assert log.max_offset == 2 * SIZE + 10
    log.close()


def test_an_executor_needs_a_way_back() -> None:
    with pytest.raises(ValueError, match="must be given together"):
        Allocator(FaultyFileSystem(), executor=ManualOwner())


def test_nothing_is_made_in_a_directory_that_is_not_there() -> None:
    with pytest.raises(StoreFileMissingError):
        Allocator(FaultyFileSystem()).take(LOG / file_name(0), SIZE)
