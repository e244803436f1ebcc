"""The disk that loses power: what must survive does, and what may be lost sometimes is.

Both halves matter. A model that loses too little proves nothing about the store; one that loses
what real disks keep sends people hunting for bugs that are not there.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.store.errors import (
    StoreFileClosedError,
    StoreFileError,
    StoreFullError,
    StoreLockedError,
    StoreSyncError,
)
from skylark.store.file_system import PAGE_SIZE, FileHandle
from skylark.testing.fault_plan import FaultAction, FaultPlan, Gate
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_disk import SECTOR_SIZE, UnallocatedWriteError, changed_pages

LOG = Path("/log")
PAGES = 16
SIZE = PAGES * PAGE_SIZE
SEEDS = range(120)


def new_log(disk: FaultyFileSystem, size: int = SIZE) -> FileHandle:
    """A log of zeros that survives anything."""
    handle = disk.create_file(LOG, size)
    handle.allocate(0, size)
    handle.sync()
    disk.sync_directory(LOG.parent)
    return handle


def pages_of(content: bytes) -> Iterator[bytes]:
    return (content[start : start + PAGE_SIZE] for start in range(0, len(content), PAGE_SIZE))


# Bytes


def test_synced_bytes_always_survive_and_the_rest_in_every_shape() -> None:
    seen: set[str] = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed), write_back_probability=0.0)
        handle = new_log(disk)
        handle.buffer[: SIZE // 2] = b"A" * (SIZE // 2)
        handle.sync()
        handle.buffer[SIZE // 2 :] = b"B" * (SIZE // 2)
        content = disk.power_loss().read_file(LOG)
        assert len(content) == SIZE
        assert content[: SIZE // 2] == b"A" * (SIZE // 2), disk.plan
        shapes = ""
        for page in pages_of(content[SIZE // 2 :]):
            sectors = {
                page[start : start + SECTOR_SIZE] for start in range(0, PAGE_SIZE, SECTOR_SIZE)
            }
            assert sectors <= {bytes(SECTOR_SIZE), b"B" * SECTOR_SIZE}
            shapes += "torn" if len(sectors) == 2 else "new" if b"B" in page else "old"
        seen |= {shape for shape in ("old", "new", "torn", "oldnew", "newold") if shape in shapes}
        seen |= {"all old"} if set(shapes) == set("old") else set()
        seen |= {"all new"} if set(shapes) == set("new") else set()
    assert seen == {"old", "new", "torn", "oldnew", "newold", "all old", "all new"}


def test_the_last_page_of_a_file_may_be_short() -> None:
    size = 2 * PAGE_SIZE + 700
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed))
        handle = new_log(disk, size)
        handle.buffer[2 * PAGE_SIZE :] = b"Z" * 700
        content = disk.power_loss().read_file(LOG)
        assert content[: 2 * PAGE_SIZE] == bytes(2 * PAGE_SIZE)
        found.add(content[2 * PAGE_SIZE :])
    head, tail = b"Z" * SECTOR_SIZE, b"Z" * (700 - SECTOR_SIZE)
    no_head, no_tail = bytes(SECTOR_SIZE), bytes(700 - SECTOR_SIZE)
    assert found == {head + tail, no_head + tail, head + no_tail, no_head + no_tail}


def test_early_write_back_can_leave_a_version_in_between() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed), write_back_probability=0.5)
        handle = new_log(disk)
        other = disk.create_file(Path("/other"), 10)
        handle.buffer[:1] = b"1"
        other.sync()  # while this waits, the kernel may write any dirty page
        handle.buffer[:1] = b"2"
        found.add(disk.power_loss().read_file(LOG)[:1])
    assert found == {b"\0", b"1", b"2"}


def test_a_page_that_was_written_back_has_its_block() -> None:
    """Else what survives would look like bytes in a hole, which no disk can have."""
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed), write_back_probability=1.0)
        handle = disk.create_file(LOG, SIZE)
        handle.sync()
        disk.sync_directory(LOG.parent)
        handle.allocate(0, PAGE_SIZE)
        handle.buffer[:1] = b"1"
        disk.create_file(Path("/other"), 10).sync()
        survivor = disk.power_loss()
        found.add(survivor.read_file(LOG)[:1])
        survivor.stop()  # finds bytes in holes
    assert found == {b"\0", b"1"}


def test_unsynced_length_is_the_old_or_the_new_one() -> None:
    lengths: set[int] = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed))
        disk.create_file(LOG, SIZE)
        disk.sync_directory(LOG.parent)
        lengths.add(disk.power_loss().list_directory(LOG.parent)[0].size)
    assert lengths == {0, SIZE}


def test_sync_covers_what_was_written_before_the_call_only() -> None:
    gate = Gate()
    plan = FaultPlan(1)
    disk = FaultyFileSystem(plan, write_back_probability=0.0)
    handle = new_log(disk)
    handle.buffer[:1] = b"1"
    plan.at("files.sync", gate=gate)
    thread = threading.Thread(target=handle.sync)
    thread.start()
    assert gate.wait_reached()
    handle.buffer[PAGE_SIZE : PAGE_SIZE + 1] = b"2"
    gate.open()
    thread.join(10)
    found = {disk_after(disk.kill(), seed)[PAGE_SIZE : PAGE_SIZE + 1] for seed in SEEDS}
    assert found == {b"\0", b"2"}
    assert {disk_after(disk.kill(), seed)[:1] for seed in SEEDS} == {b"1"}
    assert plan.hits == {"files.sync/hang": 1}


def disk_after(disk: FaultyFileSystem, seed: int) -> bytes:
    """The log after a power loss drawn by ``seed``."""
    disk.plan = FaultPlan(seed)
    return disk.power_loss().read_file(LOG)


@pytest.mark.parametrize("repair", ["nothing", "mark_dirty", "new bytes"])
def test_failed_sync_makes_the_next_one_lie(repair: str) -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed), write_back_probability=0.0)
        handle = new_log(disk)
        handle.buffer[:3] = b"one"
        disk.plan.at("files.sync", error=errno.EIO)
        with pytest.raises(StoreSyncError, match="EIO"):
            handle.sync()
        if repair == "mark_dirty":
            handle.mark_dirty(0, 3)
        elif repair == "new bytes":
            handle.buffer[3:6] = b"two"
        handle.sync()
        found.add(disk.power_loss().read_file(LOG)[:3])
    assert found == ({b"one", b"\0\0\0"} if repair == "nothing" else {b"one"})


def test_lying_drive_reports_success() -> None:
    plan = FaultPlan(0).at("files.sync", nth=2, action=FaultAction.DROP)
    disk = FaultyFileSystem(plan, write_back_probability=0.0)
    handle = new_log(disk)
    handle.buffer[:3] = b"one"
    handle.sync()
    assert {disk_after(disk.kill(), seed)[:3] for seed in SEEDS} == {b"one", b"\0\0\0"}


# Names


def test_names_need_a_directory_sync() -> None:
    for synced in (True, False):
        found = set()
        for seed in SEEDS:
            disk = FaultyFileSystem(FaultPlan(seed))
            disk.write_file(LOG, b"content")
            if synced:
                disk.sync_directory(LOG.parent)
            found.add(disk.power_loss().exists(LOG))
        assert found == ({True} if synced else {True, False})


def test_directories_take_their_files_with_them() -> None:
    found = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed))
        disk.make_directories(Path("/store/commitlog"), durable=seed % 2 == 0)
        disk.write_file(Path("/store/commitlog/0"), b"x")
        disk.sync_directory(Path("/store/commitlog"))
        found.add((seed % 2 == 0, disk.power_loss().exists(Path("/store/commitlog/0"))))
    assert found == {(True, True), (False, True), (False, False)}


def test_removal_can_be_undone_and_the_file_then_has_its_bytes() -> None:
    found = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed))
        handle = new_log(disk)
        handle.buffer[:3] = b"abc"
        handle.sync()
        disk.remove(LOG)
        after = disk.power_loss()
        handle.buffer[:3] = b"xyz"  # the dead process still holds the removed file
        found.add(after.read_file(LOG)[:3] if after.exists(LOG) else None)
    assert found == {b"abc", None}


def test_renames_are_atomic_and_independent_of_each_other() -> None:
    found = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed))
        for name in ("a", "b"):
            disk.write_file(Path("/") / name, name.encode())
        disk.sync_directory(Path("/"))
        disk.rename(Path("/a"), Path("/a2"))
        disk.rename(Path("/b"), Path("/b2"))
        after = disk.power_loss()
        names = frozenset(entry.name for entry in after.list_directory(Path("/")))
        for name in names:
            assert after.read_file(Path("/") / name) == name[:1].encode()
        found.add(names)
    assert found == {
        frozenset({"a", "b"}),
        frozenset({"a2", "b"}),
        frozenset({"a", "b2"}),  # without a journal the later one may survive alone
        frozenset({"a2", "b2"}),
    }


def test_file_never_has_two_names() -> None:
    found = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed))
        disk.write_file(Path("/a"), b"")
        disk.sync_directory(Path("/"))
        disk.rename(Path("/a"), Path("/b"))
        disk.rename(Path("/b"), Path("/c"))
        found.add(tuple(entry.name for entry in disk.power_loss().list_directory(Path("/"))))
    assert found == {("a",), ("b",), ("c",)}


def test_write_atomic_survives_a_power_loss_at_every_line() -> None:
    path = Path("/topics.json")
    backup = Path("/topics.json.bak")
    old, new = b"old" * 3000, b"new" * 4000
    found = set()
    for seed in range(40):
        for line in range(1, 20):
            disk = FaultyFileSystem(FaultPlan(seed))
            disk.write_atomic(path, b"oldest")
            disk.write_atomic(path, old)
            disk.plan.at("files.*", nth=line, action=FaultAction.CUT)
            try:
                disk.write_atomic(path, new)
            except StoreFileClosedError:
                finished = False
            else:
                finished = True
            disk.plan.clear()
            after = disk.power_loss()
            current = after.read_file(path if after.exists(path) else backup)
            assert current in ((new,) if finished else (old, new)), (disk.plan, line)
            found.add((line, current == new))
            if finished:
                break
        else:
            pytest.fail("write_atomic never came to its end")
    lines = {line for line, _ in found}
    assert lines == {1, 2, 3, 4, 5, 6}  # write, sync, rename, rename, sync_directory, end
    assert {line for line, is_new in found if is_new} == {5, 6}


# The machine


def test_nothing_works_after_the_machine_stopped() -> None:
    disk = FaultyFileSystem()
    handle = new_log(disk)
    lock = disk.lock(Path("/lock"))
    handle.buffer[:3] = b"abc"
    after = disk.kill()
    handle.buffer[:3] = b"xyz"
    for call in (handle.sync, lambda: disk.read_file(LOG), lambda: disk.exists(LOG)):
        with pytest.raises(StoreFileClosedError, match="the machine has stopped"):
            call()
    handle.close()
    lock.release()
    assert after.read_file(LOG)[:3] == b"abc"
    after.lock(Path("/lock")).release()


def test_kill_keeps_everything_and_a_later_power_loss_does_not() -> None:
    found = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed), write_back_probability=0.0)
        new_log(disk).buffer[:3] = b"abc"
        disk.write_file(Path("/name"), b"")
        disk = disk.kill()
        assert disk.read_file(LOG)[:3] == b"abc"
        assert disk.exists(Path("/name"))
        disk = disk.power_loss()
        found.add((disk.read_file(LOG)[:1], disk.exists(Path("/name"))))
    assert found == {(b"a", True), (b"a", False), (b"\0", True), (b"\0", False)}


def test_stopping_frees_hanging_calls() -> None:
    plan = FaultPlan(0)
    gate = Gate()
    disk = FaultyFileSystem(plan)
    handle = new_log(disk)
    plan.at("files.sync", gate=gate)
    errors: list[Exception] = []

    def sync() -> None:
        try:
            handle.sync()
        except StoreFileError as error:
            errors.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    assert gate.wait_reached()
    disk.power_loss()
    thread.join(10)
    assert [type(error) for error in errors] == [StoreFileClosedError]


def test_same_seed_same_ruin() -> None:
    def ruin(seed: int) -> bytes:
        disk = FaultyFileSystem(FaultPlan(seed))
        handle = new_log(disk)
        for round_index in range(1, 5):
            handle.buffer[:] = bytes([round_index]) * SIZE
            if round_index == 2:
                handle.sync()
        return disk.power_loss().read_file(LOG)

    assert [ruin(seed) for seed in range(20)] == [ruin(seed) for seed in range(20)]
    assert len({ruin(seed) for seed in range(20)}) > 5


# Space and errors


def test_full_disk_and_its_recovery() -> None:
    disk = FaultyFileSystem(capacity=8 * PAGE_SIZE)
    handle = disk.create_file(LOG, SIZE)  # length costs nothing
    handle.allocate(0, 6 * PAGE_SIZE)
    assert disk.disk_usage(LOG).free == 2 * PAGE_SIZE
    with pytest.raises(StoreFullError, match="ENOSPC"):
        handle.allocate(0, 9 * PAGE_SIZE)
    assert handle.allocated_until == 6 * PAGE_SIZE
    with pytest.raises(StoreFullError):
        disk.write_file(Path("/config"), bytes(2 * PAGE_SIZE + 1))
    disk.write_file(Path("/config"), bytes(2 * PAGE_SIZE))
    with pytest.raises(StoreFullError):
        handle.allocate(6 * PAGE_SIZE, 1)
    disk.remove(Path("/config"))
    handle.allocate(6 * PAGE_SIZE, 1)
    disk.capacity = 32 * PAGE_SIZE
    handle.allocate(0, SIZE)
    assert disk.disk_usage(LOG) == (32 * PAGE_SIZE, 16 * PAGE_SIZE, 16 * PAGE_SIZE)


def test_write_to_a_hole_is_found() -> None:
    disk = FaultyFileSystem()
    handle = disk.create_file(LOG, SIZE)
    handle.allocate(0, PAGE_SIZE + 1)
    handle.buffer[2 * PAGE_SIZE - 1] = 1  # the block reaches to the end of the page
    handle.sync()
    handle.buffer[2 * PAGE_SIZE] = 1
    with pytest.raises(UnallocatedWriteError, match=r"/log: .*8192\.\.65536"):
        handle.sync()
    with pytest.raises(UnallocatedWriteError):
        handle.close()
    with pytest.raises(UnallocatedWriteError):
        disk.power_loss()


def test_sparse_file_from_elsewhere_must_be_allocated_first() -> None:
    disk = FaultyFileSystem()
    disk.install(LOG, b"record".ljust(SIZE, b"\0"), sparse=True)
    handle = disk.open_file(LOG)
    handle.buffer[6] = 1  # the first page is there
    handle.sync()
    handle.buffer[PAGE_SIZE] = 1
    with pytest.raises(UnallocatedWriteError):
        handle.sync()
    handle.allocate(6, SIZE - 6)
    handle.sync()
    assert disk.power_loss().read_file(LOG)[PAGE_SIZE] == 1


@pytest.mark.parametrize(
    "point",
    ["create", "open", "read", "write", "rename", "remove", "list", "lock", "allocate"],
)
def test_every_point_can_fail_once(point: str) -> None:
    def work(disk: FaultyFileSystem) -> None:
        handle = disk.create_file(LOG, SIZE)
        handle.allocate(0, 10)
        handle.close()
        handle = disk.open_file(LOG)
        handle.read(0, 1)
        handle.close()
        disk.write_file(Path("/small"), b"content")
        disk.rename(Path("/small"), Path("/other"))
        disk.list_directory(Path("/"))
        disk.lock(Path("/lock")).release()
        disk.remove(LOG)

    plan = FaultPlan(0).at(f"files.{point}", error=errno.EIO)
    with pytest.raises(StoreFileError, match="EIO"):
        work(FaultyFileSystem(plan))
    assert plan.hits == {f"files.{point}/error": 1}
    work(FaultyFileSystem(plan))  # position 1 is past


def test_failed_write_leaves_half_and_the_lock_free() -> None:
    disk = FaultyFileSystem(FaultPlan(0).at("files.write", error=errno.EIO))
    with pytest.raises(StoreFileError):
        disk.lock(Path("/lock"))
    assert disk.read_file(Path("/lock")) == b"lo"
    lock = disk.lock(Path("/lock"))
    with pytest.raises(StoreLockedError):
        disk.lock(Path("/lock"))
    lock.release()


def test_positional_write_is_durable_only_when_synced_and_needs_room() -> None:
    found: set[bytes] = set()
    for seed in SEEDS:
        disk = FaultyFileSystem(FaultPlan(seed), capacity=PAGES * PAGE_SIZE)
        handle = disk.create_file(LOG, 2 * SIZE)
        handle.write(10, b"1")
        handle.sync()
        disk.sync_directory(LOG.parent)
        handle.write(10, b"2")
        with pytest.raises(StoreFullError, match=r"cannot write .* bytes: .*ENOSPC"):
            handle.write(PAGE_SIZE, bytes(SIZE))
        found.add(disk.power_loss().read_file(LOG)[10:11])
    assert found == {b"1", b"2"}


def test_failed_positional_write_leaves_half() -> None:
    disk = FaultyFileSystem(FaultPlan(0).at("files.write", error=errno.EIO))
    handle = disk.create_file(LOG, SIZE)
    with pytest.raises(StoreFileError, match="EIO"):
        handle.write(0, b"abcdef")
    assert handle.read(0, 6) == b"abc\0\0\0"
    handle.write(0, b"abcdef")
    assert handle.read(0, 6) == b"abcdef"


def test_writing_the_same_bytes_again_makes_a_page_dirty() -> None:
    plan = FaultPlan(1)
    disk = FaultyFileSystem(plan, write_back_probability=0.0)
    handle = new_log(disk)
    plan.at("files.sync", error=errno.EIO)
    handle.write(0, b"record")
    with pytest.raises(StoreSyncError):
        handle.sync()
    handle.write(0, b"record")
    handle.sync()
    assert {disk_after(disk.kill(), seed)[:6] for seed in SEEDS} == {b"record"}


def test_action_that_a_point_cannot_do_is_a_mistake_of_the_test() -> None:
    disk = FaultyFileSystem(FaultPlan(0).at("files.open", action=FaultAction.DROP))
    disk.install(LOG, b"x")
    with pytest.raises(ValueError, match=r"files\.open knows nothing of drop"):
        disk.open_file(LOG)


def test_trees_are_copied_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "in" / "commitlog").mkdir(parents=True)
    (tmp_path / "in" / "commitlog" / "0").write_bytes(b"record".ljust(SIZE, b"\0"))
    (tmp_path / "in" / "abort").write_bytes(b"123")
    disk = FaultyFileSystem()
    disk.copy_in(tmp_path / "in", Path("/store"))
    assert disk.disk_usage(Path("/store")).free == disk.capacity - 2 * PAGE_SIZE
    disk = disk.power_loss()
    disk.copy_out(Path("/store"), tmp_path / "out")
    assert (tmp_path / "out" / "abort").read_bytes() == b"123"
    assert (tmp_path / "out" / "commitlog" / "0").read_bytes() == b"record".ljust(SIZE, b"\0")


def test_changed_pages_finds_every_differing_page() -> None:
    old = bytes(3 * PAGE_SIZE + 10)
    new = bytearray(old)
    assert changed_pages(old, bytes(new)) == []
    new[PAGE_SIZE] = 1
    new[3 * PAGE_SIZE + 9] = 1
    assert changed_pages(old, bytes(new)) == [1, 3]
    assert changed_pages(b"a", b"b") == [0]
