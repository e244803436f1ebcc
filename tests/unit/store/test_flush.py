"""Flush: when it syncs, and which status waiting puts get."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVarTuple

import pytest

from skylark.store.allocator import Allocator
from skylark.store.config import FlushDiskType, StoreConfig
from skylark.store.errors import StoreSyncError
from skylark.store.file_sequence import MappedFiles, file_name
from skylark.store.file_system import PAGE_SIZE, FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.flush import FlushService
from skylark.store.kernel_sync import KernelSyncs
from skylark.store.owner_thread import Scheduler
from skylark.store.platform_calls import Platform
from skylark.store.store_results import PutStatus
from skylark.testing.fault_plan import FaultPlan, Gate
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.virtual_clock import VirtualClock
from tests.unit.store.manual_owner import ManualOwner, Timer

Ts = TypeVarTuple("Ts")

SIZE = 16 * PAGE_SIZE
LOG = Path("/log")
SYNC: dict[str, Any] = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}

OK, LATE = PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT


class FlushedLog:
    """A log with its flush service, and a note of everything it says."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path = LOG,
        *,
        scheduler: Scheduler | None = None,
        executor: Executor | None = None,
        post: Callable[[Callable[[], None]], object] | None = None,
        kernel_syncs: KernelSyncs | None = None,
        **settings: Any,
    ) -> None:
        self.owner = ManualOwner()
        self.synchronous = "flush_disk_type" in settings
        self.said: list[object] = []  # offsets from on_flushed, (name, status) of waiters
        files.make_directories(directory, durable=True)
        self.log = MappedFiles(directory, SIZE, files=files, allocator=Allocator(files))
        self.log.load()
        self.log.roll()
        self.flush = FlushService(
            self.log,
            StoreConfig(store_path_root_dir=directory, **settings),
            scheduler=scheduler or self.owner,
            executor=executor or self.owner,
            post=post or self.owner.post,
            on_flushed=self.said.append,
            kernel_syncs=kernel_syncs,
        )
        self.flush.start()

    def append(self, size: int, fill: bytes = b"x") -> int:
        """Append bytes within one file, as a record is; returns the end offset."""
        file = self.log.last
        while file.wrote + size > SIZE:
            with contextlib.suppress(StoreSyncError):  # a bad disk fails this one now and then
                file.wrote = SIZE
                file = self.log.roll()
        end = file.wrote + size
        if end > file.prepared:
            file.prepare(end)
        file.buffer[file.wrote : end] = fill * size
        file.wrote = end
        return file.start_offset + end

    def put(self, name: str, size: int = 10) -> int:
        """Append and wait for the disk."""
        end = self.append(size)
        self.flush.wait(end, partial(self.note, name))
        return end

    def note(self, who: object, status: PutStatus) -> None:
        self.said.append((who, status))


def sync_count(disk: FaultyFileSystem) -> int:
    return disk.plan.visits["files.sync"]


@pytest.fixture
def disk() -> FaultyFileSystem:
    return FaultyFileSystem()


# ASYNC_FLUSH


def test_the_first_round_is_thorough_and_later_ones_count_pages(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk)
    syncs = sync_count(disk)
    made.append(10)
    made.owner.advance(499)
    assert made.said == []
    made.owner.advance(1)
    assert (made.said, sync_count(disk)) == ([10], syncs + 1)
    made.append(4 * PAGE_SIZE - 11)
    made.owner.advance(500)
    assert made.said == [10]
    made.append(1)  # the fourth page is full
    made.owner.advance(500)
    assert made.said == [10, 4 * PAGE_SIZE]
    made.owner.advance(5_000)
    assert sync_count(disk) == syncs + 2  # nothing to do, nothing done


def test_a_few_bytes_reach_the_disk_by_the_thorough_interval(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk)
    made.owner.advance(500)
    made.append(10)
    made.owner.advance(9_999)
    assert made.said == []
    made.owner.advance(1)
    assert made.said == [10]


def test_a_full_file_is_flushed_in_the_next_round(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk)
    made.append(SIZE - PAGE_SIZE)
    made.owner.advance(500)
    assert made.said == [SIZE - PAGE_SIZE]
    made.append(PAGE_SIZE)
    made.owner.advance(500)
    assert made.said == [SIZE - PAGE_SIZE, SIZE]
    made.append(10)
    made.owner.advance(500)
    assert made.log.flushed_where == SIZE


def test_several_files_are_synced_in_order(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk)
    for _ in range(3):
        made.append(SIZE)
    made.append(5)
    synced: list[Path] = []
    for file in made.log.files:
        file.handle.sync = lambda path=file.path: synced.append(path)  # type: ignore[method-assign,misc]
    made.owner.advance(500)
    assert synced == [LOG / file_name(index * SIZE) for index in range(4)]
    assert made.said == [3 * SIZE + 5]
    assert [file.flushed for file in made.log.files] == [SIZE, SIZE, SIZE, 5]


def test_a_timed_flush_is_not_woken_and_another_one_is(disk: FaultyFileSystem) -> None:
    timed = FlushedLog(disk, LOG / "timed")
    timed.append(PAGE_SIZE * 4)
    timed.flush.wake()
    timed.owner.settle()
    assert timed.said == []
    woken = FlushedLog(disk, LOG / "woken", flush_commit_log_timed=False)
    woken.append(PAGE_SIZE * 4)
    woken.flush.wake()
    woken.owner.settle()
    assert woken.said == [PAGE_SIZE * 4]
    woken.append(10)
    woken.flush.wake()
    woken.owner.settle()
    assert woken.said == [PAGE_SIZE * 4]  # too little


def test_a_tick_while_a_sync_runs_does_not_lose_the_thorough_round(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk)
    made.append(10)
    made.owner.advance(500, worker=False)
    assert made.flush._round is not None
    made.append(10)
    made.owner.advance(20_000, worker=False)
    assert len(made.owner.jobs) == 1
    made.owner.settle()
    assert made.said == [10]
    made.owner.advance(500)
    assert made.said == [10, 20]


# SYNC_FLUSH


def test_one_sync_answers_all_that_wait_in_order_of_offset(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    syncs = sync_count(disk)
    for name in "abc":
        made.put(name)
    assert made.said == []
    made.owner.settle()
    assert made.said == [30, ("a", OK), ("b", OK), ("c", OK)]  # visible first, then answered
    assert sync_count(disk) == syncs + 1
    assert made.flush.waiting_count == 0


def test_those_who_come_during_a_sync_wait_for_the_next(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a")
    made.owner.turn()
    made.put("b")
    made.put("c")
    made.owner.turn()
    assert (len(made.owner.jobs), made.said) == (1, [])
    made.owner.work()
    made.owner.turn()
    assert made.said == [10, ("a", OK)]
    assert len(made.owner.jobs) == 1
    made.owner.settle()
    assert made.said == [10, ("a", OK), 30, ("b", OK), ("c", OK)]


def test_the_next_sync_starts_before_waiters_are_answered(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    jobs: list[int] = []
    made.flush.wait(made.append(10), lambda status: jobs.append(len(made.owner.jobs)))
    made.owner.turn()
    made.put("b")
    made.owner.work()
    made.owner.turn()
    assert jobs == [1]


def test_what_is_on_disk_is_answered_at_once(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    end = made.put("a")
    made.owner.settle()
    made.flush.wait(end, partial(made.note, "again"))
    assert made.said == [10, ("a", OK), ("again", OK)]


def test_a_put_that_does_not_wait_is_flushed_all_the_same(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.append(10)
    made.flush.wake()
    made.flush.wake()
    made.owner.settle()
    assert made.said == [10]


def test_a_waiter_across_files_needs_all_of_them(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a", SIZE)
    made.put("b", SIZE)
    made.put("c", 10)
    made.owner.settle()
    assert made.said == [2 * SIZE + 10, ("a", OK), ("b", OK), ("c", OK)]


@pytest.mark.spec("store.12.20")
def test_100_producers_share_few_syncs(tmp_path: Path) -> None:
    """Each sends its next message when the last one is on disk; on real files, with a thread."""
    syncs = 0
    real = Platform.detect()

    def counted(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        real.sync(fd)

    platform = Platform(real.allocate, counted, real.lock_memory, real.unlock_memory)
    producers, rounds = 100, 20
    with ThreadPoolExecutor(1) as executor:
        made = FlushedLog(OsFileSystem(platform), tmp_path / "log", executor=executor, **SYNC)
        answered = [0] * producers
        ends: list[int] = []

        def send(producer: int) -> None:
            end = made.append(100)

            def answer(status: PutStatus) -> None:
                assert status is OK
                assert made.log.flushed_where >= end
                ends.append(end)
                answered[producer] += 1
                if answered[producer] < rounds:
                    send(producer)

            made.flush.wait(end, answer)

        syncs = 0
        for producer in range(producers):
            send(producer)
        made.owner.turn_until(lambda: sum(answered) == producers * rounds)
        made.flush.stop()
        made.log.close()
    assert ends == sorted(ends)
    assert len(ends) == producers * rounds
    assert syncs <= producers * rounds / 20


# Time


def test_a_waiter_is_answered_after_the_timeout_and_the_message_stays(
    disk: FaultyFileSystem,
) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a")
    made.owner.advance(1_000, worker=False)
    made.put("b")
    made.owner.advance(3_999, worker=False)
    assert made.said == []
    made.owner.advance(1, worker=False)
    assert made.said == [("a", LATE)]
    made.owner.advance(1_000, worker=False)
    assert made.said == [("a", LATE), ("b", LATE)]
    made.put("c")
    made.owner.settle()  # the disk is back
    assert made.said == [("a", LATE), ("b", LATE), 10, 30, ("c", OK)]


def test_a_timer_that_fires_a_little_early_counts(disk: FaultyFileSystem) -> None:
    class Early(ManualOwner):
        def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts) -> Timer:
            return super().call_at(when - 0.0004, callback, *args)

    owner = Early()
    made = FlushedLog(disk, scheduler=owner, executor=owner, post=owner.post, **SYNC)
    made.put("a")
    owner.advance(4_999.6, worker=False)
    assert made.said == [("a", LATE)]
    assert owner.timer_count == 0


def test_answered_waiters_leave_no_timers_behind(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    for _ in range(50):
        made.put("a")
        made.owner.settle()
        made.owner.advance(10)
    assert made.owner.timer_count == 1  # one for all, and none once it has fired
    made.owner.advance(5_000)
    assert made.owner.timer_count == 0


async def test_a_hanging_disk_is_answered_by_the_clock() -> None:
    """The same on an event loop with a real worker thread, as in the broker."""
    plan = FaultPlan(0)
    disk = FaultyFileSystem(plan)
    clock, gate = VirtualClock(), Gate()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        made = FlushedLog(
            disk, scheduler=clock, executor=executor, post=loop.call_soon_threadsafe, **SYNC
        )
        plan.at("files.sync", gate=gate)
        made.put("a")
        await clock.drain()
        assert gate.wait_reached()
        await clock.advance(ms=4_999)
        assert made.said == []
        await clock.advance(ms=1)
        assert made.said == [("a", LATE)]
        clock.hold_while(lambda: made.flush._round is not None)
        gate.open()
        await clock.drain()
        assert made.said == [("a", LATE), 10]
        made.flush.stop()


# Errors


def test_a_failed_sync_is_repeated_before_waiters_get_put_ok(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    disk.plan.at("files.sync", nth=(1, 2), error=errno.EIO)
    made.put("a")
    made.owner.settle()
    assert made.said == []
    assert made.flush.error_count == 1
    assert isinstance(made.flush.last_error, StoreSyncError)
    made.put("b")  # does not hammer the disk
    made.owner.settle()
    assert made.flush.error_count == 1
    made.owner.advance(99)
    assert made.flush.error_count == 1
    made.owner.advance(1)
    assert (made.flush.error_count, made.said) == (2, [])
    made.owner.advance(100)
    assert made.said == [20, ("a", OK), ("b", OK)]


def test_waiters_time_out_while_the_disk_keeps_failing(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    disk.plan.chance("files.sync", 1.0, error=errno.EIO)
    made.put("a")
    made.owner.advance(4_999)
    assert made.said == []
    assert made.log.flushed_where == 0
    made.owner.advance(1)
    assert made.said == [("a", LATE)]
    assert made.flush.error_count == pytest.approx(50, abs=2)
    disk.plan.clear()
    made.owner.advance(100)
    assert made.said == [("a", LATE), 10]


def test_files_before_the_failed_one_count(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a", SIZE)
    made.put("b", SIZE)
    disk.plan.at("files.sync", nth=2, error=errno.EIO)
    made.owner.settle()
    assert made.said == [SIZE, ("a", OK)]
    made.owner.advance(100)
    assert made.said == [SIZE, ("a", OK), 2 * SIZE, ("b", OK)]


def test_after_a_failed_sync_the_bytes_really_get_to_the_disk() -> None:
    for seed in range(30):
        plan = FaultPlan(seed)
        disk = FaultyFileSystem(plan, write_back_probability=0.0)
        made = FlushedLog(disk, **SYNC)
        plan.at("files.sync", error=errno.EIO)
        made.put("a", 3 * PAGE_SIZE)
        made.owner.settle()
        made.owner.advance(100)
        assert made.said == [3 * PAGE_SIZE, ("a", OK)]
        left = disk.power_loss().read_file(LOG / file_name(0))
        assert left[: 3 * PAGE_SIZE] == b"x" * (3 * PAGE_SIZE), plan


def test_async_flush_tries_again_after_an_error(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk)
    disk.plan.at("files.sync", error=errno.EIO)
    made.append(10)
    made.owner.advance(500)
    assert (made.said, made.flush.error_count) == ([], 1)
    made.owner.advance(100)
    assert made.said == [10]


def test_a_waiter_that_fails_does_not_keep_the_others_waiting(
    disk: FaultyFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(status: PutStatus) -> None:
        raise RuntimeError("a bug")

    made = FlushedLog(disk, **SYNC)
    made.flush.wait(made.append(10), fail)
    made.put("b")
    made.owner.settle()
    assert made.said == [20, ("b", OK)]
    assert "the callback of a put failed with status PUT_OK" in caplog.text


# Files that change meanwhile


def test_a_file_deleted_during_its_sync_does_not_delay_others(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a", SIZE)
    made.put("b")
    made.owner.turn()
    made.log.retire_oldest(0.0)
    made.owner.settle()
    assert made.said == [SIZE, ("a", OK), SIZE + 10, ("b", OK)]
    assert made.flush.error_count == 0


def test_a_sync_from_before_a_truncation_counts_for_nothing(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.append(100)
    made.flush.wake()
    made.owner.turn()
    made.log.truncate(50)
    made.put("a")
    made.owner.work()
    made.owner.turn()
    assert (made.said, made.log.flushed_where) == ([50], 50)
    made.owner.settle()
    assert made.said == [50, 60, ("a", OK)]


def test_offsets_are_reported_again_after_a_truncation(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a", 100)
    made.owner.settle()
    made.log.truncate(50)
    made.put("b", 10)
    made.owner.settle()
    assert made.said == [100, ("a", OK), 60, ("b", OK)]


# Stopping


@pytest.mark.parametrize("settings", [SYNC, {}], ids=["sync", "async"])
def test_stopping_syncs_everything_and_answers_everybody(
    disk: FaultyFileSystem, settings: dict[str, Any]
) -> None:
    made = FlushedLog(disk, **settings)
    made.put("a", SIZE)
    made.owner.turn()
    made.put("b")
    made.owner.work()  # done, but the owner has not heard of it
    made.flush.stop()
    assert made.said == [SIZE, ("a", OK), SIZE + 10, ("b", OK)]
    assert made.log.unflushed() == []
    assert made.owner.timer_count == 0
    made.owner.settle()
    made.put("too late")
    assert made.said[4:] == [("too late", LATE)]


def test_stop_raises_on_a_broken_disk(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a")
    disk.plan.chance("files.sync", 1.0, error=errno.EIO)
    with pytest.raises(StoreSyncError):
        made.flush.stop()
    assert made.said == [("a", LATE)]
    assert made.log.flushed_where == 0


# Power loss


def append_at_random(made: FlushedLog, stream: random.Random) -> bytes:
    """Append, wait and let time pass; returns what the log should hold."""
    written = bytearray()
    for _ in range(stream.randint(1, 60)):
        size = stream.randint(1, 3 * PAGE_SIZE)
        if len(written) % SIZE + size > SIZE:
            written.extend(bytes(-len(written) % SIZE))
        fill = bytes([stream.randint(1, 255)])
        written.extend(fill * size)
        end = made.append(size, fill)
        assert end == len(written)
        if made.synchronous:
            made.flush.wait(end, partial(made.note, end))
        made.owner.advance(stream.choice([0, 1, 50, 600]), worker=stream.random() < 0.8)
    return bytes(written)


@pytest.mark.parametrize("settings", [SYNC, {}], ids=["sync", "async"])
def test_power_loss_leaves_all_that_was_flushed(settings: dict[str, Any]) -> None:
    answered_total = flushed_total = 0
    for seed in range(60):
        plan = FaultPlan(seed)
        disk = FaultyFileSystem(plan)
        made = FlushedLog(disk, **settings)
        plan.chance("files.sync", 0.1, error=errno.EIO)
        written = append_at_random(made, random.Random(seed))
        answered = [item[0] for item in made.said if isinstance(item, tuple) and item[1] is OK]
        flushed = made.log.flushed_where
        assert max(answered, default=0) <= flushed
        answered_total += len(answered)
        flushed_total += flushed > 0
        plan.clear()
        after = disk.power_loss()
        names = [entry.name for entry in after.list_directory(LOG) if entry.size]
        left = b"".join(after.read_file(LOG / name) for name in names)
        assert left[:flushed] == written[:flushed], plan
    assert flushed_total > 30
    assert (answered_total > 100) == made.synchronous
