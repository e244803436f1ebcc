"""The file seam: one suite of promises for the real file system and its faulty twin.

A test of the store on the twin proves something only as far as the twin behaves like the real
thing; so every promise in ``skylark.store.file_system`` that needs no crash is shown on both.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import StoreError
from skylark.store.errors import (
    StoreFileBusyError,
    StoreFileClosedError,
    StoreFileError,
    StoreFileExistsError,
    StoreFileMissingError,
    StoreLockedError,
    StoreSyncError,
)
from skylark.store.file_system import PAGE_SIZE, Advice, DirectoryEntry, DiskUsage, FileSystem
from skylark.store.files import OsFileSystem
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem

SIZE = 4 * PAGE_SIZE + 100  # RocketMQ's index files end within a page, too


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def root(files: FileSystem, tmp_path: Path) -> Path:
    if isinstance(files, FaultyFileSystem):
        files.make_directories(tmp_path)
    return tmp_path


# Handles


def test_new_file_has_its_full_length_and_is_zero(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    assert (handle.path, handle.size, handle.allocated_until) == (root / "log", SIZE, 0)
    assert files.list_directory(root) == [DirectoryEntry("log", False, SIZE)]
    assert handle.buffer.nbytes == SIZE
    assert handle.buffer.format == "B"
    assert not handle.buffer.readonly
    assert handle.read(0, SIZE) == bytes(SIZE)
    handle.close()


def test_creating_an_existing_file_is_refused(files: FileSystem, root: Path) -> None:
    files.create_file(root / "log", SIZE).close()
    with pytest.raises(StoreFileExistsError) as caught:
        files.create_file(root / "log", SIZE)
    assert caught.value.path == root / "log"
    assert caught.value.errno == errno.EEXIST


def test_opening_a_missing_file_names_it(files: FileSystem, root: Path) -> None:
    with pytest.raises(StoreFileMissingError, match="cannot open") as caught:
        files.open_file(root / "gone")
    assert str(root / "gone") in str(caught.value)
    assert isinstance(caught.value, StoreError)


def test_mapped_writes_are_seen_by_every_way_of_reading(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.allocate(0, SIZE)
    handle.buffer[4090:4100] = b"0123456789"
    assert handle.read(4090, 10) == b"0123456789"
    assert files.read_file(root / "log")[4090:4100] == b"0123456789"
    second = files.open_file(root / "log", writable=False)
    assert bytes(second.buffer[4090:4100]) == b"0123456789"
    assert second.buffer.readonly
    into = bytearray(20)
    assert second.read_into(SIZE - 5, into) == 5
    assert second.read_into(4095, memoryview(into)[10:]) == 10
    assert bytes(into) == bytes(10) + b"56789" + bytes(5)
    assert second.read(SIZE, 1) == b""
    second.close()
    handle.sync()
    handle.close()
    reopened = files.open_file(root / "log")
    assert bytes(reopened.buffer[4090:4100]) == b"0123456789"
    assert reopened.size == SIZE
    reopened.close()


def test_allocated_range_is_one_growing_interval(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.allocate(PAGE_SIZE, 10)
    assert handle.allocated_until == PAGE_SIZE + 10
    handle.allocate(3 * PAGE_SIZE, 8)  # the gap between is covered as well
    assert handle.allocated_until == 3 * PAGE_SIZE + 8
    handle.buffer[2 * PAGE_SIZE] = 7
    handle.allocate(0, PAGE_SIZE)  # extends to the left, keeps bytes and end
    assert handle.allocated_until == 3 * PAGE_SIZE + 8
    assert handle.buffer[2 * PAGE_SIZE] == 7
    handle.sync()
    handle.close()
    reopened = files.open_file(root / "log")
    assert reopened.allocated_until == 0
    reopened.allocate(0, SIZE)
    assert reopened.buffer[2 * PAGE_SIZE] == 7
    reopened.close()


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, SIZE + 1), (SIZE, 1), (0, -1)])
def test_ranges_outside_the_file_are_a_bug(
    files: FileSystem, root: Path, offset: int, length: int
) -> None:
    handle = files.create_file(root / "log", SIZE)
    for call in (handle.allocate, handle.zero, handle.mark_dirty, handle.lock_memory):
        with pytest.raises(ValueError, match="is not within"):
            call(offset, length)
    handle.close()


def test_read_only_handles_do_not_allocate(files: FileSystem, root: Path) -> None:
    files.create_file(root / "log", SIZE).close()
    handle = files.open_file(root / "log", writable=False)
    with pytest.raises(StoreFileError) as caught:
        handle.allocate(0, 10)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(TypeError):
        handle.buffer[0] = 1
    handle.close()


def test_zero_clears_a_range_and_nothing_else(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.allocate(0, 3 * PAGE_SIZE)
    handle.buffer[: 3 * PAGE_SIZE] = b"x" * (3 * PAGE_SIZE)
    handle.zero(PAGE_SIZE + 5, SIZE - PAGE_SIZE - 5)
    assert bytes(handle.buffer) == (b"x" * (PAGE_SIZE + 5)).ljust(SIZE, b"\0")
    handle.zero(0, 0)
    assert handle.buffer[0] == ord("x")
    handle.close()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_positional_writes_need_no_allocation_and_show_in_views(
    files: FileSystem, root: Path, kind: type[bytes]
) -> None:
    handle = files.create_file(root / "queue", SIZE)
    view = handle.buffer
    handle.write(PAGE_SIZE - 3, kind(b"abcdef"))
    handle.write(SIZE - 2, kind(b"yz"))
    handle.write(SIZE, kind(b""))
    assert bytes(view[PAGE_SIZE - 4 : PAGE_SIZE + 4]) == b"\0abcdef\0"
    assert handle.read(SIZE - 3, 3) == b"\0yz"
    assert handle.allocated_until == 0
    assert len(files.read_file(root / "queue")) == SIZE
    handle.sync()
    del view
    handle.close()
    with pytest.raises(StoreFileClosedError, match="was closed"):
        handle.write(0, kind(b"x"))


def test_positional_writes_never_change_the_length(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "queue", SIZE)
    for offset, data in ((SIZE - 1, b"ab"), (-1, b"a"), (SIZE + 1, b"")):
        with pytest.raises(ValueError, match="is not within"):
            handle.write(offset, data)
    assert files.read_file(root / "queue") == bytes(SIZE)
    handle.close()
    reader = files.open_file(root / "queue", writable=False)
    with pytest.raises(StoreFileError, match="cannot write 1 bytes") as caught:
        reader.write(0, b"x")
    assert caught.value.errno == errno.EBADF
    reader.close()


def test_mark_dirty_changes_no_byte(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.allocate(0, SIZE)
    content = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)
    handle.buffer[:] = content
    handle.mark_dirty(100, 3 * PAGE_SIZE)
    assert bytes(handle.buffer) == content
    handle.sync()
    handle.close()


def test_advice_and_locking_are_best_effort(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.allocate(0, SIZE)
    for advice in set(Advice) - {Advice.POPULATE_WRITE}:
        assert handle.advise(advice) is True
    assert handle.advise(Advice.POPULATE_WRITE) in (True, False)  # by the kernel
    assert handle.advise(Advice.RANDOM, PAGE_SIZE + 1, 10) is True
    assert handle.lock_memory(0, PAGE_SIZE) in (True, False)  # by the user's memlock limit
    assert handle.unlock_memory(0, PAGE_SIZE) in (True, False)
    handle.close()


@pytest.mark.parametrize(
    "pin", [lambda view: view[1:9], lambda view: np.frombuffer(view, "u1")[1:]], ids=["view", "np"]
)
def test_close_waits_for_views(
    files: FileSystem, root: Path, pin: Callable[[memoryview], Any]
) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.allocate(0, SIZE)
    lease = pin(handle.buffer)
    with pytest.raises(StoreFileBusyError, match="still in use"):
        handle.close()
    handle.buffer[1] = 5  # a refused close leaves a working handle
    handle.sync()
    assert bytes(lease).startswith(b"\x05")
    assert handle.read(1, 1) == b"\x05"
    del lease
    handle.close()
    handle.close()


def test_closed_handles_say_so(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.close()
    for call in (
        lambda: handle.buffer,
        handle.sync,
        lambda: handle.read(0, 1),
        lambda: handle.allocate(0, 1),
        lambda: handle.zero(0, 1),
    ):
        with pytest.raises(StoreFileClosedError, match="was closed"):
            call()


def test_empty_file_can_be_opened_but_not_mapped(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", 0)
    assert handle.read(0, 10) == b""
    with pytest.raises(StoreFileError, match="length 0"):
        _ = handle.buffer
    handle.close()


def test_removed_file_stays_readable_through_its_handle(files: FileSystem, root: Path) -> None:
    handle = files.create_file(root / "log", SIZE)
    handle.allocate(0, 10)
    handle.buffer[0:3] = b"abc"
    files.remove(root / "log")
    assert not files.exists(root / "log")
    assert bytes(handle.buffer[0:3]) == b"abc"
    handle.close()
    with pytest.raises(StoreFileMissingError):
        files.remove(root / "log")


# Small files and names


def test_small_files_round_trip(files: FileSystem, root: Path) -> None:
    files.write_file(root / "checkpoint", b"long content")
    files.write_file(root / "checkpoint", b"short")
    assert files.read_file(root / "checkpoint") == b"short"
    assert files.read_file(root / "checkpoint", size_max=5) == b"short"
    with pytest.raises(StoreFileError, match="limit of 4 bytes"):
        files.read_file(root / "checkpoint", size_max=4)
    with pytest.raises(StoreFileMissingError):
        files.read_file(root / "nothing")
    with pytest.raises(StoreFileMissingError):
        files.write_file(root / "no" / "such", b"")


def test_write_atomic_keeps_the_previous_version(files: FileSystem, root: Path) -> None:
    path = root / "topics.json"
    files.write_atomic(path, b"one")
    assert [entry.name for entry in files.list_directory(root)] == ["topics.json"]
    files.write_atomic(path, b"two")
    files.write_atomic(path, b"three")
    assert files.read_file(path) == b"three"
    assert files.read_file(root / "topics.json.bak") == b"two"
    files.write_atomic(path, b"four", backup=False)
    assert files.read_file(path) == b"four"
    assert files.read_file(root / "topics.json.bak") == b"two"
    names = [entry.name for entry in files.list_directory(root)]
    assert names == ["topics.json", "topics.json.bak"]


def test_rename_replaces_and_stays_in_its_directory(files: FileSystem, root: Path) -> None:
    files.write_file(root / "a", b"A")
    files.write_file(root / "b", b"B")
    files.rename(root / "a", root / "b")
    assert files.read_file(root / "b") == b"A"
    assert not files.exists(root / "a")
    files.create_directory(root / "sub")
    with pytest.raises(ValueError, match="not in one directory"):
        files.rename(root / "b", root / "sub" / "b")
    with pytest.raises(StoreFileMissingError):
        files.rename(root / "gone", root / "x")
    with pytest.raises(StoreFileError):
        files.rename(root / "b", root / "sub")


def test_truncate_cuts_extends_and_spares_mapped_files(files: FileSystem, root: Path) -> None:
    files.write_file(root / "epoch", b"0123456789")
    files.truncate(root / "epoch", 4)
    files.truncate(root / "epoch", 6)
    assert files.read_file(root / "epoch") == b"0123\0\0"
    handle = files.open_file(root / "epoch")
    files.truncate(root / "epoch", 5)  # open, but not mapped
    handle.close()
    handle = files.open_file(root / "epoch")
    assert len(handle.buffer) == 5
    with pytest.raises(StoreFileBusyError, match="is mapped"):
        files.truncate(root / "epoch", 1)
    with pytest.raises(StoreFileBusyError, match="is mapped"):
        files.write_file(root / "epoch", b"")
    assert files.read_file(root / "epoch") == b"0123\0"
    handle.close()
    files.truncate(root / "epoch", 1)
    assert files.read_file(root / "epoch") == b"0"


def test_directories(files: FileSystem, root: Path) -> None:
    queue = root / "consumequeue" / "TopicTest" / "0"
    files.make_directories(queue, durable=True)
    files.make_directories(queue)
    files.write_file(queue / "00000000000000000000", b"entry")
    assert files.exists(queue)
    assert files.list_directory(root / "consumequeue" / "TopicTest") == [
        DirectoryEntry("0", True, 0)
    ]
    assert files.list_directory(queue) == [DirectoryEntry("00000000000000000000", False, 5)]
    with pytest.raises(StoreFileError) as caught:
        files.remove_directory(queue)
    assert caught.value.errno == errno.ENOTEMPTY
    with pytest.raises(StoreFileExistsError):
        files.create_directory(queue)
    files.remove(queue / "00000000000000000000")
    files.remove_directory(queue)
    assert not files.exists(queue)
    with pytest.raises(StoreFileMissingError):
        files.list_directory(queue)
    with pytest.raises(StoreSyncError):
        files.sync_directory(queue)
    with pytest.raises(StoreFileMissingError):
        files.create_directory(queue / "deeper")


def test_another_thread_may_create_the_same_directories(tmp_path: Path) -> None:
    class Raced(OsFileSystem):
        """Another thread is always a moment faster."""

        def create_directory(self, path: Path) -> None:
            super().create_directory(path)
            super().create_directory(path)

    wanted = tmp_path / "store" / "config"
    Raced().make_directories(wanted, durable=True)
    assert wanted.is_dir()
    with pytest.raises(StoreFileExistsError):
        Raced().create_directory(tmp_path / "other")


def test_directories_of_a_killed_process_are_made_durable() -> None:
    path = Path("/store/commitlog")
    for nth, missing in ((1, path.parent), (2, path)):
        plan = FaultPlan(0).at("files.sync_directory", nth=1 + nth, action=FaultAction.CUT)
        disk = FaultyFileSystem(plan)
        with pytest.raises(StoreError):
            disk.make_directories(path, durable=True)
        assert disk.power_loss().exists(missing.parent)
        disk = disk.kill()
        assert disk.exists(missing)  # but it was not synced
        plan.clear()
        disk.make_directories(path, durable=True)
        assert disk.power_loss().exists(path)


@pytest.mark.parametrize("path", [Path("/store"), Path("/store/commitlog")])
def test_a_parent_that_is_not_ours_need_not_be_synced(path: Path) -> None:
    for code in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENOTSUP, errno.EIO):
        disk = FaultyFileSystem(FaultPlan(0))
        disk.make_directories(Path("/store"), durable=True)
        disk.plan.at("files.sync_directory", error=code)
        if code == errno.EIO:
            with pytest.raises(StoreSyncError):
                disk.make_directories(path, durable=True)
        else:
            disk.make_directories(path, durable=True)
            assert disk.power_loss().exists(path)


def test_a_new_directory_must_be_synced() -> None:
    disk = FaultyFileSystem(FaultPlan(0).at("files.sync_directory", nth=2, error=errno.EPERM))
    with pytest.raises(StoreSyncError):
        disk.make_directories(Path("/store"), durable=True)


def test_listing_is_sorted(files: FileSystem, root: Path) -> None:
    for name in ("00000000000000002048", "00000000000000000000", "00000000000000001024"):
        files.write_file(root / name, b"")
    assert [entry.name for entry in files.list_directory(root)] == [
        "00000000000000000000",
        "00000000000000001024",
        "00000000000000002048",
    ]


def test_disk_usage_counts_what_is_allocated(files: FileSystem, root: Path) -> None:
    usage = files.disk_usage(root)
    assert 0 < usage.available <= usage.free <= usage.total
    assert 0.0 <= usage.used_ratio < 1.0


def test_used_ratio_leaves_out_reserved_blocks() -> None:
    assert DiskUsage(total=1000, free=250, available=150).used_ratio == 750 / 900
    assert DiskUsage(total=0, free=0, available=0).used_ratio == 1.0


def test_second_lock_in_one_process_is_refused(files: FileSystem, root: Path) -> None:
    lock = files.lock(root / "lock")
    for _ in range(2):
        with pytest.raises(StoreLockedError, match=r"this process .* storePathRootDir") as caught:
            files.lock(root / "lock")
        assert caught.value.path == root / "lock"
    lock.release()
    lock.release()
    again = files.lock(root / "lock")
    again.release()
    assert files.read_file(root / "lock") == b"lock"


# Any sequence of operations gives the same answers on both

NAMES = st.sampled_from(["a", "b", "sub", "sub/c"])
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.sampled_from([0, 1, SIZE])),
    st.tuples(st.just("append"), NAMES, st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("zero"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("write"), NAMES, st.binary(max_size=9)),
    st.tuples(st.just("replace"), NAMES, st.binary(max_size=9)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 2 * PAGE_SIZE)),
    st.tuples(st.just("rename"), NAMES, st.sampled_from(["a", "b", "d"])),
    st.tuples(st.sampled_from(["remove", "mkdir", "rmdir", "list", "sync"]), NAMES, st.none()),
)


def take_step(files: FileSystem, root: Path, step: tuple[str, str, Any]) -> object:
    """Do one step and describe its outcome."""
    kind, name, argument = step
    path = root / name
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: files.create_file(path, argument).close(),
        "append": lambda: change_file(files, path, argument),
        "zero": lambda: change_file(files, path, argument),
        "write": lambda: files.write_file(path, argument),
        "replace": lambda: files.write_atomic(path, argument),
        "truncate": lambda: files.truncate(path, argument),
        "rename": lambda: files.rename(path, path.with_name(argument)),
        "remove": lambda: files.remove(path),
        "mkdir": lambda: files.make_directories(path),
        "rmdir": lambda: files.remove_directory(path),
        "list": lambda: files.list_directory(path),
        "sync": lambda: files.sync_directory(path),
    }
    try:
        return calls[kind]()
    except StoreFileError as error:
        return type(error), error.errno


def change_file(files: FileSystem, path: Path, change: bytes | int) -> bytes:
    """Write the bytes near the end of the file, or clear its first bytes."""
    handle = files.open_file(path)
    try:
        if isinstance(change, bytes):
            start = max(0, handle.size - 20)
            length = min(len(change), handle.size - start)
            handle.allocate(start, length)
            handle.buffer[start : start + length] = change[:length]
            handle.sync()
        else:
            handle.zero(0, min(change, handle.size))
        return handle.read(0, handle.size)
    finally:
        handle.close()


def tree(files: FileSystem, path: Path) -> dict[str, object]:
    return {
        entry.name: tree(files, path / entry.name)
        if entry.is_directory
        else files.read_file(path / entry.name)
        for entry in files.list_directory(path)
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_the_twin_answers_like_the_operating_system(steps: list[tuple[str, str, Any]]) -> None:
    twin = FaultyFileSystem()
    twin.create_directory(Path("/root"))
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            expected = take_step(OsFileSystem(), Path(folder), step)
            assert take_step(twin, Path("/root"), step) == expected, step
        assert tree(twin, Path("/root")) == tree(OsFileSystem(), Path(folder))
