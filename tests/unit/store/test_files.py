"""What only the operating system's files can show: blocks, locks, descriptors, missing calls.

The promises that the faulty twin shares are in ``test_file_system.py``.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import logging
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from skylark.store.errors import (
    StoreFileClosedError,
    StoreFileError,
    StoreFullError,
    StoreLockedError,
    StoreSyncError,
)
from skylark.store.file_system import PAGE_SIZE, Advice
from skylark.store.files import OsFileSystem
from skylark.store.platform_calls import Platform

SIZE = 4 * PAGE_SIZE + 100

HOLD_LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""

TRY_LOCK = """
import sys
from pathlib import Path
from skylark.store.errors import StoreLockedError
from skylark.store.files import OsFileSystem
try:
    OsFileSystem().lock(Path(sys.argv[1]))
except StoreLockedError as error:
    print(error)
else:
    print("obtained")
"""


def run_python(script: str, argument: Path) -> str:
    command = [sys.executable, "-c", script, str(argument)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_lock_keeps_other_processes_out_and_is_kept_out_by_them(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    files = OsFileSystem()
    lock = files.lock(path)
    # A second attempt here must not open and close the file: that would drop the POSIX lock.
    with pytest.raises(StoreLockedError):
        OsFileSystem().lock(path)
    assert run_python(TRY_LOCK, path).startswith(f"{path}: another process has the store open")
    lock.release()
    assert run_python(TRY_LOCK, path) == "obtained"

    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match="another process"):
            files.lock(path)
        holder.stdin.close()
    files.lock(path).release()


def test_lock_is_not_fooled_by_links_or_a_deleted_lock_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "alias").symlink_to(store)
    files = OsFileSystem()
    lock = files.lock(store / "lock")
    (store / "lock").unlink()
    with pytest.raises(StoreLockedError):
        files.lock(tmp_path / "alias" / "lock")
    lock.release()


def test_blocks_are_really_allocated(tmp_path: Path) -> None:
    files = OsFileSystem()
    handle = files.create_file(tmp_path / "log", 1 << 24)
    assert (tmp_path / "log").stat().st_blocks == 0
    handle.allocate(1 << 20, 1 << 20)
    allocated = (tmp_path / "log").stat().st_blocks * 512
    assert 1 << 20 <= allocated < 1 << 21
    handle.zero(0, 1 << 24)  # holes stay holes
    assert (tmp_path / "log").stat().st_blocks * 512 == allocated
    handle.close()


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or "tmpfs" not in Path("/proc/mounts").read_text(),
    reason="needs a tmpfs to fill without filling it",
)
def test_full_disk_is_an_error_and_not_a_signal() -> None:
    path = Path("/dev/shm") / f"skylark-full-{os.getpid()}"
    files = OsFileSystem()
    handle = files.create_file(path, 1 << 45)  # longer than any machine's memory, and all hole
    try:
        handle.allocate(0, PAGE_SIZE)
        with pytest.raises(StoreFullError, match="ENOSPC") as caught:
            handle.allocate(0, 1 << 45)
        assert caught.value.retriable
        assert handle.allocated_until == PAGE_SIZE
        assert handle.read(0, 3) == b"\0\0\0"
    finally:
        handle.close()
        path.unlink()


def test_mapping_is_made_on_first_use(tmp_path: Path) -> None:
    def mapped() -> bool:
        return str(tmp_path / "log") in Path("/proc/self/maps").read_text()

    handle = OsFileSystem().create_file(tmp_path / "log", SIZE)
    assert handle.read(0, 4) == b"\0\0\0\0"
    assert not mapped()
    assert len(handle.buffer) == SIZE
    assert mapped()
    handle.close()
    assert not mapped()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    files = OsFileSystem()

    def open_count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - listing opens one itself, always

    before = open_count()
    for index in range(5):
        handle = files.create_file(tmp_path / f"{index}", SIZE)
        handle.allocate(0, 10)
        _ = handle.buffer
        handle.close()
        files.write_atomic(tmp_path / "config", b"{}")
        files.lock(tmp_path / "lock").release()
        with pytest.raises(StoreFileError):
            files.create_file(tmp_path / "huge", 1 << 62)
        assert not files.exists(tmp_path / "huge")
    assert open_count() == before


def test_close_during_a_sync_leaves_the_descriptor_to_it(tmp_path: Path) -> None:
    started, finish = threading.Event(), threading.Event()
    synced: list[Path] = []

    def slow_sync(fd: int) -> None:
        started.set()
        assert finish.wait(10)
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    real = Platform.detect()
    files = OsFileSystem(Platform(real.allocate, slow_sync, real.lock_memory, real.unlock_memory))
    handle = files.create_file(tmp_path / "log", SIZE)
    _ = handle.buffer
    thread = threading.Thread(target=handle.sync)
    thread.start()
    assert started.wait(10)
    handle.close()
    files.create_file(tmp_path / "other", SIZE).close()  # would reuse the number of a closed one
    finish.set()
    thread.join(10)
    assert synced == [tmp_path / "log"]
    with pytest.raises(StoreFileClosedError):
        handle.sync()


def test_refused_memory_lock_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(address: int, length: int) -> None:
        raise OSError(errno.EPERM, f"{length} bytes at {address > 0}")

    real = Platform.detect()
    files = OsFileSystem(Platform(real.allocate, real.sync, refuse, real.unlock_memory))
    handle = files.create_file(tmp_path / "log", SIZE)
    with caplog.at_level(logging.DEBUG, "skylark.store.files"):
        assert handle.lock_memory(PAGE_SIZE + 1, 10) is False
    assert "refused mlock of 10 bytes" in caplog.text
    assert "11 bytes at True" in caplog.text  # from the start of the page on
    handle.close()


def test_pages_are_touched_and_nothing_changes(tmp_path: Path) -> None:
    handle = OsFileSystem().create_file(tmp_path / "log", SIZE)
    handle.allocate(0, SIZE)
    handle.buffer[5:10] = b"bytes"
    assert handle.advise(Advice.POPULATE_WRITE, 5, SIZE - 5) in (True, False)  # by the kernel
    assert bytes(handle.buffer) == bytes(5) + b"bytes" + bytes(SIZE - 10)
    handle.close()


@pytest.mark.parametrize("refuses", [True, False])
def test_pages_are_not_touched_where_the_system_cannot(tmp_path: Path, refuses: bool) -> None:
    def refuse(address: int, length: int) -> None:
        raise OSError(errno.EINVAL, f"{length} bytes at {address}")

    real = Platform.detect()
    populate = refuse if refuses else None
    platform = dataclasses.replace(real, populate=populate)
    handle = OsFileSystem(platform).create_file(tmp_path / "log", SIZE)
    assert handle.advise(Advice.POPULATE_WRITE, 0, SIZE) is False
    handle.close()


# Systems that lack calls: faked, because no test runs on macOS


def test_linux_uses_fallocate_and_fdatasync() -> None:
    calls: list[tuple[object, ...]] = []
    platform = Platform.detect(
        SimpleNamespace(
            posix_fallocate=lambda *args: calls.append(("fallocate", *args)),
            fdatasync=lambda fd: calls.append(("fdatasync", fd)),
            fsync=lambda fd: calls.append(("fsync", fd)),
        ),
        SimpleNamespace(),
    )
    platform.allocate(3, 0, 10)
    platform.sync(3)
    assert calls == [("fallocate", 3, 0, 10), ("fdatasync", 3)]


def test_macos_uses_full_fsync_and_falls_back_where_it_is_not_supported() -> None:
    calls: list[tuple[object, ...]] = []
    answers = [None, OSError(errno.ENOTSUP, "no"), OSError(errno.EIO, "broken")]

    def control(fd: int, command: int) -> None:
        calls.append(("fcntl", fd, command))
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    platform = Platform.detect(
        SimpleNamespace(fsync=lambda fd: calls.append(("fsync", fd))),
        SimpleNamespace(F_FULLFSYNC=51, fcntl=control),
    )
    platform.sync(3)
    platform.sync(4)
    assert calls == [("fcntl", 3, 51), ("fcntl", 4, 51), ("fsync", 4)]
    with pytest.raises(OSError, match="broken"):
        platform.sync(5)


def test_systems_without_fdatasync_use_fsync() -> None:
    calls: list[int] = []
    Platform.detect(SimpleNamespace(fsync=calls.append), SimpleNamespace()).sync(9)
    assert calls == [9]


def unsupported(fd: int, offset: int, length: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "not here")


@pytest.mark.parametrize(
    "os_module",
    [
        SimpleNamespace(fsync=os.fsync),
        SimpleNamespace(fsync=os.fsync, posix_fallocate=unsupported),
    ],
    ids=["missing", "unsupported"],
)
def test_allocation_by_zeros_makes_blocks_and_keeps_bytes(
    tmp_path: Path, os_module: SimpleNamespace
) -> None:
    files = OsFileSystem(Platform.detect(os_module, fcntl))
    size = (1 << 20) + 3 * PAGE_SIZE + 7
    path = tmp_path / "log"
    path.write_bytes(b"")
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.write(b"record")
        file.seek((1 << 20) + 2 * PAGE_SIZE + 1)
        file.write(b"tail")
    before = path.read_bytes()
    handle = files.open_file(path)
    handle.allocate(0, size)
    handle.sync()
    assert handle.allocated_until == size
    assert path.read_bytes() == before
    assert path.stat().st_blocks * 512 >= size
    handle.close()


def test_a_file_that_may_not_be_so_long_is_like_a_full_disk(tmp_path: Path) -> None:
    size_max, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE - 1, hard))
    try:
        with pytest.raises(StoreFullError, match=r"EFBIG.*ulimit -f"):
            OsFileSystem().create_file(tmp_path / "log", SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_max, hard))
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_finished_and_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite = os.pwrite

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if offset >= PAGE_SIZE:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_pwrite(fd, data[:3], offset)

    handle = OsFileSystem().create_file(tmp_path / "queue", SIZE)
    monkeypatch.setattr(os, "pwrite", pwrite)
    handle.write(5, b"0123456789")
    assert handle.read(4, 12) == b"\x000123456789\0"
    with pytest.raises(StoreFullError, match=r"cannot write 10 bytes: .*ENOSPC"):
        handle.write(PAGE_SIZE - 3, bytearray(b"0123456789"))
    handle.close()


def test_a_failed_sync_is_a_sync_error_with_any_cause(tmp_path: Path) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = Platform.detect()
    files = OsFileSystem(Platform(real.allocate, broken, real.lock_memory, real.unlock_memory))
    handle = files.create_file(tmp_path / "log", SIZE)
    with pytest.raises(StoreSyncError, match=r"cannot sync: .*ENOSPC") as caught:
        handle.sync()
    assert caught.value.errno == errno.ENOSPC
    assert not isinstance(caught.value, StoreFullError)
    handle.close()
    with pytest.raises(StoreSyncError):
        files.write_file(tmp_path / "small", b"x")
