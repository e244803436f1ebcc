"""The transient pool: who sees what when, and exactly how much a crash loses."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from skylark.store.allocator import Allocator
from skylark.store.config import FlushDiskType, StoreConfig
from skylark.store.errors import StoreFileError
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import PAGE_SIZE, FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.flush import FlushService
from skylark.store.mapped_file import RangeNotReadableError
from skylark.store.store_results import PutStatus
from skylark.store.transient_store_pool import CommitService, PoolEmptyError, TransientPool
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.unit.store.manual_owner import ManualOwner

SIZE = 16 * PAGE_SIZE
LOG = Path("/log")


class PooledLog:
    """A log with a pool, its commit service, and the reported offsets."""

    def __init__(
        self, files: FileSystem, directory: Path, *, buffers: int = 2, **settings: Any
    ) -> None:
        self.owner = ManualOwner()
        self.pool = TransientPool(buffers, SIZE)
        self.log = MappedFiles(
            directory, SIZE, files=files, allocator=Allocator(files), pool=self.pool
        )
        self.config = StoreConfig(store_path_root_dir=directory, **settings)
        self.reported: list[int] = []
        self.commit = CommitService(
            self.log,
            self.config,
            scheduler=self.owner,
            executor=self.owner,
            post=self.owner.post,
            on_committed=self.reported.append,
        )
        self.log.load()
        self.log.roll()
        self.commit.start()

    def append(self, data: bytes) -> int:
        file = self.log.last
        if file.wrote == SIZE:
            file = self.log.roll()
        end = file.wrote + len(data)
        if end > file.prepared:
            file.prepare(end)
        file.buffer[file.wrote : end] = data
        file.wrote = end
        return file.start_offset + end


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def pooled(files: FileSystem, tmp_path: Path) -> PooledLog:
    files.make_directories(tmp_path)
    return PooledLog(files, tmp_path / "log")


def test_buffers_are_lent_and_come_back() -> None:
    pool = TransientPool(2, SIZE)
    assert (pool.available, pool.is_empty) == (2, False)
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    assert (len(first), first.readonly, pool.is_empty) == (SIZE, False, True)
    assert pool.take() is None
    pool.give_back(first)
    assert pool.available == 1
    assert pool.take() is first


def test_an_empty_pool_may_fail_at_once() -> None:
    pool = TransientPool(1, SIZE, fast_fail=True)
    assert pool.take() is not None
    with pytest.raises(PoolEmptyError, match="all 1 buffers") as caught:
        pool.take()
    assert caught.value.retriable


def test_readers_see_what_is_committed(pooled: PooledLog) -> None:
    log, owner = pooled.log, pooled.owner
    pooled.append(b"hello")
    assert (log.wrote_end, log.max_offset, log.last.readable) == (5, 0, 0)
    with pytest.raises(RangeNotReadableError):
        log.last.lease(0, 5)
    assert log.unflushed() == []
    owner.advance(200)
    assert (log.max_offset, log.last.readable, pooled.reported) == (5, 5, [5])
    with log.last.lease(0, 5) as lease:
        assert bytes(lease.view) == b"hello"
    pooled.append(b"world")
    assert (log.wrote_end, log.max_offset) == (10, 5)
    log.sync()
    assert log.flushed_where == 5
    owner.advance(200)
    assert pooled.reported == [5, 10]


def test_an_append_goes_on_while_the_worker_writes(pooled: PooledLog) -> None:
    pooled.append(b"hello")
    pooled.owner.advance(200, worker=False)
    assert pooled.commit._round is not None
    pooled.append(b"world")
    pooled.owner.work()
    assert pooled.reported == []  # the owner has not run the callback yet
    pooled.owner.turn()
    assert pooled.reported == [5]
    assert pooled.log.last.committed == 5
    pooled.owner.advance(200)
    assert pooled.reported == [5, 10]


def test_few_pages_wait_for_the_thorough_round(files: FileSystem, tmp_path: Path) -> None:
    files.make_directories(tmp_path)
    pooled = PooledLog(files, tmp_path / "log", commit_commit_log_thorough_interval=1000)
    pooled.owner.advance(200)  # the first look is thorough, and finds nothing
    pooled.append(b"x" * 3 * PAGE_SIZE)
    pooled.owner.advance(200)
    assert pooled.reported == []
    pooled.append(b"x" * PAGE_SIZE)
    pooled.owner.advance(200)
    assert pooled.reported == [4 * PAGE_SIZE]
    pooled.append(b"x")
    pooled.owner.advance(400)
    assert pooled.reported == [4 * PAGE_SIZE]
    pooled.owner.advance(200)
    assert pooled.reported == [4 * PAGE_SIZE, 4 * PAGE_SIZE + 1]


def test_a_put_wakes_the_commit(pooled: PooledLog) -> None:
    pooled.append(b"hello")
    pooled.commit.wake()
    pooled.commit.wake()
    pooled.owner.turn()
    assert len(pooled.owner.jobs) == 1
    pooled.append(b"world" * PAGE_SIZE)
    pooled.commit.wake()  # while a commit runs: another one follows it
    pooled.owner.settle()
    assert pooled.reported == [5, 5 + 5 * PAGE_SIZE]


def test_a_file_that_is_committed_whole_gives_its_buffer_back(pooled: PooledLog) -> None:
    log, pool = pooled.log, pooled.pool
    assert pool.available == 1
    first = log.last
    pooled.append(b"1" * SIZE)
    pooled.append(b"2" * 10)
    assert (pool.available, first.pooled is None) == (0, False)
    pooled.owner.advance(200)
    assert (pool.available, first.pooled) == (1, None)
    assert pooled.reported == [SIZE + 10]
    assert bytes(first.lease(SIZE - 1, 1).view) == b"1"
    assert bytes(log.last.lease(0, 10).view) == b"2" * 10
    pooled.append(b"3" * (SIZE - 10))
    pooled.append(b"4")  # in the buffer of the first file, which holds its old bytes
    pooled.owner.advance(200)
    assert log.last.handle.read(0, 2) == b"4\0"
    assert bytes(first.buffer[:1]) == b"1"  # no longer the pool's


def test_without_a_buffer_the_file_is_written_directly(files: FileSystem, tmp_path: Path) -> None:
    files.make_directories(tmp_path)
    pooled = PooledLog(files, tmp_path / "log", buffers=1)
    log = pooled.log
    pooled.append(b"1" * SIZE)
    pooled.append(b"2" * 10)  # no buffer is left
    assert (log.last.pooled, log.last.readable) == (None, 10)
    assert log.max_offset == 0  # the file before it is not in place yet
    assert log.unflushed() == []
    pooled.owner.advance(200)
    assert pooled.reported == [SIZE + 10]
    assert [item.end for item in log.unflushed()] == [SIZE, 10]
    pooled.append(b"2" * 5)
    pooled.owner.advance(200)
    assert log.max_offset == SIZE + 15


def test_files_with_and_without_a_buffer_are_committed_in_order(
    files: FileSystem, tmp_path: Path
) -> None:
    files.make_directories(tmp_path)
    pooled = PooledLog(files, tmp_path / "log", buffers=1)
    pooled.append(b"1" * SIZE)
    pooled.append(b"2" * 10)  # no buffer is left
    pooled.owner.advance(200)
    pooled.append(b"2" * (SIZE - 10))
    pooled.append(b"3" * 10)  # the buffer of the first file
    assert pooled.log.last.pooled is not None
    pooled.owner.advance(200)
    assert pooled.reported == [SIZE + 10, 2 * SIZE + 10]
    assert bytes(pooled.log.last.lease(0, 10).view) == b"3" * 10


def test_a_roll_that_fails_keeps_no_buffer() -> None:
    disk = FaultyFileSystem()
    pooled = PooledLog(disk, LOG)
    pooled.append(b"1" * SIZE)
    disk.plan.at("files.create", error=errno.EIO)
    with pytest.raises(StoreFileError, match="EIO"):
        pooled.append(b"2")
    assert pooled.pool.available == 1
    assert pooled.append(b"2") == SIZE + 1
    assert pooled.pool.available == 0


def test_a_failed_write_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyFileSystem()
    pooled = PooledLog(disk, LOG)
    disk.plan.at("files.write", nth=(1, 2), error=errno.EIO)
    pooled.append(b"hello")
    pooled.owner.advance(200)
    assert (pooled.reported, pooled.log.max_offset) == ([], 0)
    assert "messages stay in memory" in caplog.text
    pooled.owner.advance(400)
    assert pooled.reported == [5]
    assert pooled.log.last.handle.read(0, 6) == b"hello\0"


def test_a_kill_loses_what_was_not_committed_and_nothing_else() -> None:
    disk = FaultyFileSystem()
    pooled = PooledLog(disk, LOG)
    pooled.append(b"committed")
    pooled.owner.advance(200)
    pooled.append(b"in memory")
    left = disk.kill().read_file(LOG / ("0" * 20))
    assert left == b"committed".ljust(SIZE, b"\0")


def test_stopping_commits_everything(pooled: PooledLog) -> None:
    pooled.append(b"1" * SIZE)
    pooled.append(b"2" * 10)
    pooled.owner.advance(200, worker=False)
    pooled.owner.work()  # done, but the owner has not heard of it
    pooled.append(b"3" * 10)
    pooled.commit.stop()
    assert pooled.log.max_offset == SIZE + 20
    assert pooled.reported == [SIZE + 10, SIZE + 20]
    pooled.owner.settle()
    assert pooled.owner.timer_count == 0
    assert pooled.reported == [SIZE + 10, SIZE + 20]


def test_stop_raises_if_it_cannot_finish() -> None:
    disk = FaultyFileSystem(FaultPlan(0).chance("files.write", 1.0, error=errno.EIO))
    pooled = PooledLog(disk, LOG)
    pooled.append(b"hello")
    with pytest.raises(StoreFileError, match="EIO"):
        pooled.commit.stop()
    assert pooled.log.max_offset == 0


def test_a_synchronous_put_waits_for_commit_and_disk(files: FileSystem, tmp_path: Path) -> None:
    files.make_directories(tmp_path)
    pooled = PooledLog(files, tmp_path / "log", flush_disk_type=FlushDiskType.SYNC_FLUSH)
    answers: list[PutStatus] = []
    flush = FlushService(
        pooled.log,
        pooled.config,
        scheduler=pooled.owner,
        executor=pooled.owner,
        post=pooled.owner.post,
        on_flushed=lambda offset: None,
    )
    pooled.commit._on_committed = lambda offset: flush.wake()  # as the store does
    flush.wait(pooled.append(b"hello"), answers.append)
    pooled.owner.settle()
    assert answers == []  # there is nothing to sync yet
    pooled.commit.wake()
    pooled.owner.settle()
    assert answers == [PutStatus.PUT_OK]
    assert pooled.log.flushed_where == 5


def test_deletion_and_truncation_give_buffers_back(pooled: PooledLog) -> None:
    pooled.append(b"1" * SIZE)
    pooled.append(b"2" * 10)
    assert pooled.pool.available == 0
    pooled.log.retire_oldest(0.0)
    assert pooled.pool.available == 1
    pooled.owner.advance(200)
    assert pooled.reported == [SIZE + 10]
    pooled.append(b"lost")
    pooled.log.truncate(SIZE + 5)
    assert pooled.pool.available == 2
    assert pooled.log.last.handle.read(0, 20) == b"22222" + bytes(15)
    pooled.append(b"!")
    pooled.owner.advance(200)
    assert (pooled.log.max_offset, pooled.log.last.handle.read(4, 3)) == (SIZE + 6, b"2!\0")
