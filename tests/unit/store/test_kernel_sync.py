"""Syncs by the kernel: begun, reaped, refused; and a flush that uses them where it can."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from skylark.store.errors import StoreSyncError
from skylark.store.files import OsFileSystem
from skylark.store.kernel_sync import IN_FLIGHT_MAX, Done, KernelSyncs, open_kernel_syncs
from skylark.store.platform_calls import Platform
from skylark.store.store_results import PutStatus
from tests.unit.store.test_flush import SIZE, SYNC, FlushedLog

OK = PutStatus.PUT_OK

needs_kernel = pytest.mark.skipif(
    (probe := open_kernel_syncs()) is None, reason="this kernel does not sync by itself"
)
if probe is not None:
    probe.close()


@pytest.fixture
def syncs() -> Iterator[KernelSyncs]:
    found = open_kernel_syncs()
    assert found is not None
    yield found
    found.close()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(number, b"x" * 10_000)
    yield number
    os.close(number)


# ---- the kernel ----------------------------------------------------------------------------------


@needs_kernel
def test_the_callback_of_a_sync_is_called_at_its_end(syncs: KernelSyncs, fd: int) -> None:
    said: list[OSError | None] = []
    syncs.submit(fd, said.append)
    assert (syncs.is_busy, said) == (True, [])
    assert select.select([syncs], [], [], 30)[0]
    syncs.reap()
    assert (syncs.is_busy, said) == (False, [None])
    assert select.select([syncs], [], [], 0)[0] == []
    syncs.reap()  # nothing is under way
    syncs.reap(wait=True)
    assert said == [None]


@needs_kernel
def test_a_loop_that_watches_comes_to_rest(syncs: KernelSyncs, fd: int) -> None:
    """The callback may run before the event loop sees the descriptor."""
    said: list[OSError | None] = []
    syncs.submit(fd, said.append)
    assert select.select([syncs], [], [], 30)[0]
    os.eventfd_write(syncs.fileno(), 1)
    syncs.reap(wait=True)
    os.eventfd_write(syncs.fileno(), 1)
    syncs.reap()
    assert said == [None]
    assert select.select([syncs], [], [], 0)[0] == []


@needs_kernel
def test_many_at_once_and_a_file_that_is_closed_meanwhile(
    syncs: KernelSyncs, tmp_path: Path
) -> None:
    said: list[int] = []
    for number in range(IN_FLIGHT_MAX):
        fd = os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT)
        os.write(fd, b"x" * 5000)
        syncs.submit(fd, lambda error, number=number: said.append(number))  # type: ignore[misc]
        os.close(fd)
    while syncs.is_busy:
        syncs.reap(wait=True)
    assert sorted(said) == list(range(IN_FLIGHT_MAX))


@needs_kernel
def test_what_cannot_be_synced_is_refused(syncs: KernelSyncs) -> None:
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        syncs.submit(writing, print)
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        syncs.submit(writing, print)
    assert not syncs.is_busy


@needs_kernel
def test_close_waits_and_calls_no_callback(fd: int) -> None:
    syncs = open_kernel_syncs()
    assert syncs is not None
    said: list[OSError | None] = []
    syncs.submit(fd, said.append)
    syncs.close()
    syncs.close()
    assert said == []


@needs_kernel
@pytest.mark.parametrize(
    "error", [OSError(errno.EPERM, "Operation not permitted"), MemoryError("none")]
)
def test_a_kernel_that_gives_no_account_is_given_up(
    syncs: KernelSyncs, fd: int, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The descriptor has been read by then: nothing would make the loop look again."""
    said: list[OSError | None] = []
    syncs.submit(fd, said.append)
    assert select.select([syncs], [], [], 30)[0]

    def fail(*_: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(syncs, "_call", fail)
        syncs.reap()
    (reported,) = said
    assert str(error) in str(reported)
    assert not syncs.is_busy
    with pytest.raises(OSError, match=str(error.args[-1])):
        syncs.submit(fd, said.append)
    syncs.reap()
    syncs.reap(wait=True)
    assert said == [reported]


@pytest.mark.parametrize(("platform", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_other_systems_have_none(
    monkeypatch: pytest.MonkeyPatch, platform: str, machine: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert open_kernel_syncs() is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not even tried")
def test_a_sandbox_may_forbid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidding:
        def __init__(self, *_: object, **__: object) -> None:
            self.syscall = lambda *_: self._fail()

        def _fail(self) -> int:
            ctypes.set_errno(errno.EPERM)
            return -1

    monkeypatch.setattr("ctypes.CDLL", Forbidding)
    assert open_kernel_syncs() is None


# ---- a flush that uses it ------------------------------------------------------------------------


class Scripted:
    """A kernel that is done when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Done] = []
        self.refuses: OSError | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self.begun)

    def submit(self, fd: int, done: Done) -> None:
        os.fstat(fd)
        if self.refuses is not None:
            raise self.refuses
        self.begun.append(done)

    def reap(self, *, wait: bool = False, error: OSError | None = None) -> None:
        assert wait or self.begun
        self.begun.pop(0)(error)


@pytest.fixture
def kernel() -> Scripted:
    return Scripted()


@pytest.fixture
def made(tmp_path: Path, kernel: Scripted) -> FlushedLog:
    return flushed_log(tmp_path, kernel)


def flushed_log(root: Path, kernel: Scripted, platform: Platform | None = None) -> FlushedLog:
    files = OsFileSystem(platform)
    return FlushedLog(files, root / "log", kernel_syncs=cast("KernelSyncs", kernel), **SYNC)


def test_waiters_are_answered_after_the_kernel_is_done(made: FlushedLog, kernel: Scripted) -> None:
    for name in "ab":
        made.put(name)
    made.owner.settle()
    assert (len(kernel.begun), made.said, made.owner.jobs) == (1, [], type(made.owner.jobs)())
    made.put("c")
    made.owner.settle()
    assert len(kernel.begun) == 1  # the next one begins after it
    kernel.reap()
    assert made.said == [20, ("a", OK), ("b", OK)]
    assert len(kernel.begun) == 1
    kernel.reap()
    assert made.said[3:] == [30, ("c", OK)]


def test_a_sync_that_fails_is_an_error_and_is_tried_again(
    made: FlushedLog, kernel: Scripted
) -> None:
    made.put("a")
    made.owner.settle()
    kernel.reap(error=OSError(errno.EIO, "Input/output error"))
    assert made.said == []
    error = made.flush.last_error
    assert made.flush.error_count == 1
    assert isinstance(error, StoreSyncError)
    assert "Input/output error" in str(error)
    made.owner.advance(100)
    kernel.reap()
    assert made.said == [10, ("a", OK)]


def test_a_kernel_that_refuses_is_not_asked_again(made: FlushedLog, kernel: Scripted) -> None:
    kernel.refuses = OSError(errno.EINVAL, "Invalid argument")
    made.put("a")
    made.owner.settle()
    kernel.refuses = None
    made.put("b")
    made.owner.settle()
    assert made.said == [10, ("a", OK), 20, ("b", OK)]
    assert made.flush.error_count == 0


def test_two_files_are_for_the_worker(made: FlushedLog, kernel: Scripted) -> None:
    made.append(SIZE)
    made.put("a")
    made.owner.settle()
    assert made.said == [SIZE + 10, ("a", OK)]
    made.put("b")
    made.owner.settle()
    kernel.reap()
    assert made.said[2:] == [SIZE + 20, ("b", OK)]


def test_a_platform_with_another_sync_keeps_it(tmp_path: Path, kernel: Scripted) -> None:
    synced: list[int] = []
    real = Platform.detect()
    own = Platform(real.allocate, synced.append, real.lock_memory, real.unlock_memory)
    made = flushed_log(tmp_path, kernel, own)
    made.put("a")
    made.owner.settle()
    assert made.said == [10, ("a", OK)]
    assert synced


def test_stopping_waits_for_what_is_under_way(made: FlushedLog, kernel: Scripted) -> None:
    made.put("a")
    made.owner.settle()
    made.put("b")
    made.flush.stop()
    assert made.said == [10, ("a", OK), 20, ("b", OK)]
    assert kernel.begun == []


@needs_kernel
def test_with_the_real_one(tmp_path: Path, syncs: KernelSyncs) -> None:
    made = FlushedLog(OsFileSystem(), tmp_path / "log", kernel_syncs=syncs, **SYNC)
    for name in "abc":
        made.put(name)
        made.owner.settle()
    while syncs.is_busy:
        syncs.reap(wait=True)
    assert made.said == [10, ("a", OK), 30, ("b", OK), ("c", OK)]
    assert not made.owner.jobs
    made.put("d")
    made.owner.settle()
    made.flush.stop()
    assert made.said[-1] == ("d", OK)


@needs_kernel
@pytest.mark.parametrize("stops", [False, True], ids=["running", "stopping"])
def test_a_flush_goes_on_without_a_kernel_that_gives_no_account(
    tmp_path: Path, syncs: KernelSyncs, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    made = FlushedLog(OsFileSystem(), tmp_path / "log", kernel_syncs=syncs, **SYNC)
    made.put("a")
    made.owner.settle()
    made.put("b")  # woken, while the sync is under way
    assert select.select([syncs], [], [], 30)[0]
    with monkeypatch.context() as patch:
        patch.setattr(syncs, "_syscall", _not_permitted)
        if stops:
            made.flush.stop()
        else:
            syncs.reap()
            assert made.said == []
    error = made.flush.last_error
    assert made.flush.error_count == 1
    assert "EPERM" in str(error)
    made.owner.advance(100)
    assert made.said == [20, ("a", OK), ("b", OK)]


def _not_permitted(*_: object) -> int:
    ctypes.set_errno(errno.EPERM)
    return -1
