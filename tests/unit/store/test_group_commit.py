"""Group commit: an unexpected error ends a round like a failed sync, and not the service."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from skylark.store.errors import StoreFileError
from skylark.store.file_sequence import file_name
from skylark.store.group_commit import run_in_order
from skylark.store.store_results import PutStatus
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.unit.store.manual_owner import ManualOwner
from tests.unit.store.test_flush import LOG, SIZE, SYNC, FlushedLog

OK, LATE = PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT


@pytest.fixture
def disk() -> FaultyFileSystem:
    return FaultyFileSystem()


def fail_once(target: object, method: str, error: Exception) -> None:
    """Have the next call of a method raise."""
    real = getattr(target, method)

    def fail(*_: Any) -> None:
        setattr(target, method, real)
        raise error

    setattr(target, method, fail)


@pytest.mark.parametrize("newcomer", [False, True], ids=["alone", "with a newcomer"])
def test_a_worker_without_memory_is_as_a_failed_sync(
    disk: FaultyFileSystem, caplog: pytest.LogCaptureFixture, newcomer: bool
) -> None:
    made = FlushedLog(disk, **SYNC)
    fail_once(made.log.last.handle, "sync", MemoryError())
    made.put("a")
    made.owner.turn()
    if newcomer:
        made.put("b")  # woken, while the round is running
    made.owner.settle()
    assert (made.said, made.log.flushed_where) == ([], 0)
    error = made.flush.last_error
    assert made.flush.error_count == 1
    assert error is not None
    assert isinstance(error.__cause__, MemoryError)
    assert file_name(0) in str(error)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        f"the sync of the log failed beyond 0: {error}"
    ]
    made.owner.advance(100)
    made.put("c")
    made.owner.settle()
    assert [said for said in made.said if isinstance(said, tuple)] == [
        (name, OK) for name in ("abc" if newcomer else "ac")
    ]


def test_only_what_came_before_the_failed_item_counts() -> None:
    """And its pages are written again: whether the disk has them is not known."""
    disk = FaultyFileSystem(FaultPlan(0), write_back_probability=0.0)
    made = FlushedLog(disk, **SYNC)
    made.put("a", SIZE)
    made.put("b", SIZE)
    handle = made.log.last.handle
    real = handle.sync

    def translate() -> None:
        """A failed sync, after which the kernel takes the pages for clean, and no memory."""
        handle.sync = real  # type: ignore[method-assign]
        try:
            real()
        except StoreFileError:
            raise MemoryError from None

    disk.plan.at("files.sync", nth=2, error=errno.EIO)
    handle.sync = translate  # type: ignore[method-assign]
    made.owner.settle()
    assert made.said == [SIZE, ("a", OK)]
    made.owner.advance(100)
    assert made.said == [SIZE, ("a", OK), 2 * SIZE, ("b", OK)]
    assert disk.power_loss().read_file(LOG / file_name(SIZE)) == b"x" * SIZE


def test_a_worker_that_may_not_begin_has_done_nothing(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a")
    made.owner.turn()
    future, _ = made.owner.jobs.popleft()
    future.cancel()
    future.set_running_or_notify_cancel()
    made.owner.settle()
    assert (made.said, made.flush.error_count) == ([], 1)
    made.owner.advance(100)
    assert made.said == [10, ("a", OK)]


def test_a_round_that_cannot_begin_is_tried_again(
    disk: FaultyFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    made = FlushedLog(disk, **SYNC)
    fail_once(made.owner, "submit", RuntimeError("can't start new thread"))
    made.put("a")
    made.owner.settle()
    assert made.said == []
    assert caplog.text.count("a round could not start") == 1
    made.owner.advance(100)
    assert made.said == [10, ("a", OK)]


def test_a_result_that_cannot_be_recorded_does_not_end_the_service(
    disk: FaultyFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    made = FlushedLog(disk, **SYNC)
    fail_once(made.log, "mark_flushed", MemoryError())
    made.put("a")
    made.owner.turn()
    made.put("b")
    made.owner.settle()
    assert made.said == []
    assert "a round could not be recorded completely" in caplog.text
    made.owner.advance(100)
    assert made.said == [20, ("a", OK), ("b", OK)]


def test_a_call_that_was_not_posted_can_be_made_again(disk: FaultyFileSystem) -> None:
    owner, failures = ManualOwner(), [MemoryError()]

    def post(callback: Callable[[], None]) -> None:
        if failures:
            raise failures.pop()
        owner.post(callback)

    made = FlushedLog(disk, scheduler=owner, executor=owner, post=post, **SYNC)
    with pytest.raises(MemoryError):
        made.put("a")
    made.put("b")
    owner.settle()
    assert made.said == [20, ("a", OK), ("b", OK)]


def test_stop_raises_an_unexpected_error(disk: FaultyFileSystem) -> None:
    made = FlushedLog(disk, **SYNC)

    def fail() -> None:
        raise MemoryError

    made.put("a")
    made.log.last.handle.sync = fail  # type: ignore[method-assign]
    with pytest.raises(StoreFileError, match="MemoryError"):
        made.flush.stop()
    assert made.said == [("a", LATE)]


def test_the_result_of_another_round_is_not_taken_for_that_of_this_one(
    disk: FaultyFileSystem,
) -> None:
    made = FlushedLog(disk, **SYNC)
    made.put("a")
    made.owner.turn()
    stray: Future[Any] = Future()
    stray.set_result(run_in_order([lambda: None]))
    made.flush._finish(stray)
    assert (made.said, made.flush._round is None) == ([], False)
    made.owner.settle()
    assert made.said == [10, ("a", OK)]
