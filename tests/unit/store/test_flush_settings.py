"""Changed settings of a flush take effect from its next round on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skylark.store.allocator import Allocator
from skylark.store.config import FlushDiskType, StoreConfig
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import PAGE_SIZE
from skylark.store.flush import FlushService
from skylark.store.store_results import PutStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.unit.store.manual_owner import ManualOwner

LOG = Path("/log")
SIZE = 64 * PAGE_SIZE


class Flushed:
    """A log with a flush, and the flushed offsets that it reports."""

    def __init__(self, **settings: Any) -> None:
        self.owner = ManualOwner()
        self.said: list[int] = []
        self._settings = settings
        disk = FaultyFileSystem()
        disk.make_directories(LOG, durable=True)
        self.log = MappedFiles(LOG, SIZE, files=disk, allocator=Allocator(disk))
        self.log.load()
        self.log.roll()
        self.flush = FlushService(
            self.log,
            StoreConfig(store_path_root_dir=LOG, **settings),
            scheduler=self.owner,
            executor=self.owner,
            post=self.owner.post,
            on_flushed=self.said.append,
        )
        self.flush.start()
        self.owner.advance(500)  # the first round, which is thorough

    def apply(self, **changes: Any) -> None:
        self.flush.apply_settings(
            StoreConfig(store_path_root_dir=LOG, **{**self._settings, **changes})
        )

    def append(self, size: int) -> int:
        file = self.log.last
        file.prepare(file.wrote + size)
        file.wrote += size
        return file.wrote


def test_intervals() -> None:
    made = Flushed(flush_commit_log_least_pages=0)
    made.apply(flush_interval_commit_log=2_000)
    made.append(10)
    made.owner.advance(500)  # the wait that was under way
    assert made.said == [10]
    made.append(10)
    made.owner.advance(1_999)
    assert made.said == [10]
    made.owner.advance(1)
    assert made.said == [10, 20]


def test_pages_and_the_thorough_interval() -> None:
    made = Flushed()
    made.apply(flush_commit_log_least_pages=1, flush_commit_log_thorough_interval=1_000)
    made.append(PAGE_SIZE)
    made.owner.advance(500)
    assert made.said == [PAGE_SIZE]
    made.append(10)
    made.owner.advance(9_000)  # the thorough look that was due by the old interval
    assert made.said == [PAGE_SIZE]
    made.owner.advance(500)
    assert made.said == [PAGE_SIZE, PAGE_SIZE + 10]
    made.append(10)
    made.owner.advance(1_000)
    assert made.said[2:] == [PAGE_SIZE + 20]


def test_whether_a_put_wakes_it() -> None:
    made = Flushed(flush_commit_log_least_pages=0)
    made.append(10)
    made.flush.wake()
    made.owner.settle()
    assert made.said == []
    made.apply(flush_commit_log_timed=False)
    made.flush.wake()
    made.owner.settle()
    assert made.said == [10]


def test_how_long_a_put_waits_and_that_the_flush_type_stays() -> None:
    made = Flushed(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    answers: list[PutStatus] = []
    made.apply(sync_flush_timeout=100, flush_interval_commit_log=50)
    assert made.owner.timer_count == 0  # no look at intervals
    made.flush.wait(made.append(10), answers.append)
    made.owner.advance(99, worker=False)
    assert answers == []
    made.owner.advance(1, worker=False)
    assert answers == [PutStatus.FLUSH_DISK_TIMEOUT]
    made.flush.wait(made.append(10), answers.append)
    made.owner.settle()
    assert answers[1:] == [PutStatus.PUT_OK]
