"""The files of a queue directory: names, lengths, the shared handles, loading and cutting."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skylark.store import queue_files
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError, StoreFullError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.queue_files import QueueFiles, QueueHandles
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem

SIZE = 100


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def root(files: FileSystem, tmp_path: Path) -> Path:
    if isinstance(files, FaultyFileSystem):
        files.make_directories(tmp_path)
    return tmp_path


def open_queue(
    files: FileSystem, directory: Path, *, clean: bool = True, open_files_max: int = 4
) -> QueueFiles:
    handles = QueueHandles(files, DirtyRanges(files), open_files_max=open_files_max)
    queue = QueueFiles(handles, directory, SIZE)
    if files.exists(directory):
        queue.load(clean=clean)
    return queue


def write(queue: QueueFiles, position: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        count = queue.write(position, view)
        position, view = position + count, view[count:]


def make(files: FileSystem, directory: Path, sizes: dict[str, int]) -> None:
    files.make_directories(directory)
    for name, size in sizes.items():
        files.create_file(directory / name, size).close()


def names(files: FileSystem, directory: Path) -> list[str]:
    return [entry.name for entry in files.list_directory(directory)]


def test_writing_makes_directories_and_files_of_full_length(files: FileSystem, root: Path) -> None:
    directory = root / "consumequeue" / "T" / "0"
    queue = open_queue(files, directory)
    assert queue.read(0, 10) == b""
    assert not files.exists(directory)
    write(queue, 0, bytes(range(1, 251)))
    assert [(entry.name, entry.size) for entry in files.list_directory(directory)] == [
        ("00000000000000000000", SIZE),
        ("00000000000000000100", SIZE),
        ("00000000000000000200", SIZE),
    ]
    assert queue.starts == [0, 100, 200]
    assert queue.size_total == 300
    assert queue.read(0, 5) == bytes([1, 2, 3, 4, 5])
    assert queue.read(95, 10) == bytes([96, 97, 98, 99, 100])  # to the end of the file
    assert queue.read(240, 20) == bytes(
        [241, 242, 243, 244, 245, 246, 247, 248, 249, 250, *[0] * 10]
    )
    assert queue.read(300, 5) == b""


def test_a_queue_may_begin_anywhere(files: FileSystem, root: Path) -> None:
    queue = open_queue(files, root / "q")
    write(queue, 730, b"abc")
    assert names(files, root / "q") == ["00000000000000000700"]
    assert queue.read(730, 3) == b"abc"
    assert queue.read(0, 3) == b""


def test_load_takes_what_is_a_queue_file_and_leaves_the_rest(
    files: FileSystem, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(files, root / "q", {"00000000000000000200": SIZE, "00000000000000000300": SIZE})
    make(files, root / "q", {"notes.txt": 3, "300": SIZE})
    files.create_directory(root / "q" / "00000000000000000400")
    queue = open_queue(files, root / "q")
    assert queue.starts == [200, 300]
    assert "notes.txt is not a queue file" in caplog.text
    assert len(names(files, root / "q")) == 5


def test_an_empty_last_file_is_deleted(files: FileSystem, root: Path) -> None:
    make(files, root / "q", {"00000000000000000000": SIZE, "00000000000000000100": 0})
    assert open_queue(files, root / "q").starts == [0]
    assert names(files, root / "q") == ["00000000000000000000"]


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"00000000000000000000": 99}, "a queue file of 99 bytes where files have 100"),
        ({"00000000000000000000": 200}, "a queue file of 200 bytes"),
        ({"00000000000000000050": SIZE}, "a queue file of 100 bytes where files have 100"),
        ({"00000000000000000000": 0, "00000000000000000100": SIZE}, "a queue file of 0 bytes"),
        (
            {"00000000000000000000": SIZE, "00000000000000000200": SIZE},
            "the file 00000000000000000100 before this one is missing",
        ),
    ],
)
def test_files_that_cannot_be_of_this_queue_stop_the_start(
    files: FileSystem, root: Path, sizes: dict[str, int], problem: str
) -> None:
    make(files, root / "q", sizes)
    with pytest.raises(StoreFileError, match=problem) as caught:
        open_queue(files, root / "q")
    assert caught.value.hint is not None
    assert names(files, root / "q") == sorted(sizes)  # nothing was deleted


def test_after_a_crash_empty_files_go_and_gaps_are_left_to_the_queue(
    files: FileSystem, root: Path
) -> None:
    make(files, root / "q", {f"{start:020d}": SIZE for start in (0, 100, 300, 400)})
    make(files, root / "q", {"00000000000000000200": 0})
    assert open_queue(files, root / "q", clean=False).starts == [0, 100, 300, 400]
    assert "00000000000000000200" not in names(files, root / "q")
    make(files, root / "q", {"00000000000000000500": 99})
    with pytest.raises(StoreFileError, match="99 bytes"):
        open_queue(files, root / "q", clean=False)


@pytest.mark.parametrize("position", [0, 1, 99, 100, 101, 150, 200, 250, 299, 300])
def test_cut_drops_later_files_and_clears_the_rest(
    files: FileSystem, root: Path, position: int
) -> None:
    queue = open_queue(files, root / "q")
    write(queue, 0, b"x" * 300)
    queue.cut(position)
    assert queue.starts == list(range(0, position, SIZE))
    assert names(files, root / "q") == [f"{start:020d}" for start in queue.starts]
    content = b"".join(queue.read(start, SIZE) for start in queue.starts)
    assert content == b"x" * position + bytes(-position % SIZE)
    write(queue, position, b"y" * 10)  # and it goes on there
    assert queue.read(position, 10) == b"y" * min(10, SIZE - position % SIZE)


def test_the_first_file_of_a_queue_that_began_later_keeps_its_place(
    files: FileSystem, root: Path
) -> None:
    queue = open_queue(files, root / "q")
    write(queue, 700, b"x" * 150)
    queue.cut(700)
    assert queue.starts == [700]
    assert queue.read(700, SIZE) == bytes(SIZE)
    queue.destroy()
    assert queue.starts == []
    assert names(files, root / "q") == []


def test_cut_without_clearing_leaves_the_bytes_alone(files: FileSystem, root: Path) -> None:
    queue = open_queue(files, root / "q")
    write(queue, 0, b"x" * 10)
    queue.cut(5, clear=False)
    assert queue.read(0, 12) == b"x" * 10 + bytes(2)


def test_only_so_many_files_are_open_and_the_least_recently_used_is_closed() -> None:
    disk = FaultyFileSystem()
    handles = QueueHandles(disk, DirtyRanges(disk), open_files_max=3)
    queues = [QueueFiles(handles, Path(f"/q/{number}"), SIZE) for number in range(5)]
    for queue in queues:
        write(queue, 0, b"abc")
        assert len(handles) <= 3
    second = handles.get(queues[2], 0)
    third = handles.get(queues[3], 0)
    assert handles.get(queues[2], 0) is second
    handles.get(queues[0], 0)  # closes the file of queue 4
    handles.get(queues[1], 0)  # and that of queue 3
    with pytest.raises(StoreFileError, match="closed"):
        third.read(0, 3)
    assert second.read(0, 3) == b"abc"
    assert [queue.read(0, 3) for queue in queues] == [b"abc"] * 5
    assert len(handles) == 3
    handles.close()
    assert len(handles) == 0


def test_a_queue_file_takes_only_the_space_it_needs(tmp_path: Path) -> None:
    files = OsFileSystem()
    handles = QueueHandles(files, DirtyRanges(files))
    queue = QueueFiles(handles, tmp_path / "q", 6_000_000)
    write(queue, 0, b"x" * 20)
    queue.cut(10)
    status = (tmp_path / "q" / "00000000000000000000").stat()
    assert (status.st_size, status.st_blocks * 512 <= 8192) == (6_000_000, True)
    handles.close()


def test_a_full_disk_is_an_error_of_the_write_and_nothing_else_changes() -> None:
    disk = FaultyFileSystem(capacity=4096)
    queue = open_queue(disk, Path("/q"))
    write(queue, 0, b"x" * 100)
    with pytest.raises(StoreFullError):
        write(queue, 100, b"y" * 10)
    disk.capacity = 1 << 20
    write(queue, 100, b"y" * 10)
    assert queue.read(0, 3) + queue.read(100, 3) == b"xxxyyy"


def test_a_file_that_cannot_be_made_is_made_by_the_next_write() -> None:
    plan = FaultPlan(0)
    disk = FaultyFileSystem(plan)
    queue = open_queue(disk, Path("/q"))
    plan.at("files.create", nth=2, error=errno.EIO)
    with pytest.raises(StoreFileError, match="EIO"):
        write(queue, 0, b"x")
    assert queue.starts == []
    write(queue, 0, b"x")
    assert queue.starts == [0]


def test_a_file_truncated_by_another_program_is_an_error(tmp_path: Path) -> None:
    files = OsFileSystem()
    queue = open_queue(files, tmp_path / "q")
    write(queue, 0, b"x" * 100)
    files.truncate(tmp_path / "q" / "00000000000000000000", 30)
    with pytest.raises(StoreFileError, match="was truncated while the store was open"):
        queue.read(20, 20)


def test_what_was_written_waits_for_a_sync() -> None:
    disk = FaultyFileSystem()
    dirty_ranges = DirtyRanges(disk)
    queue = QueueFiles(QueueHandles(disk, dirty_ranges), Path("/consumequeue/T/0"), SIZE)
    write(queue, 40, b"x" * 80)
    batch = dirty_ranges.begin()
    assert batch.ranges == {
        Path("/consumequeue/T/0/00000000000000000000"): (0, 100),
        Path("/consumequeue/T/0/00000000000000000100"): (0, 20),
    }
    # The name of every file and directory that is new is synced with its parent.
    assert [str(path) for path in batch.directories] == [
        "/",
        "/consumequeue",
        "/consumequeue/T",
        "/consumequeue/T/0",
    ]
    queue.cut(10)
    batch = dirty_ranges.begin()
    assert batch.ranges == {Path("/consumequeue/T/0/00000000000000000000"): (10, 100)}
    assert [str(path) for path in batch.directories] == ["/consumequeue/T/0"]


# ---- reading on ----------------------------------------------------------------------------------


CONTENT = bytes(range(1, 181))


@pytest.fixture
def queue(files: FileSystem, root: Path) -> QueueFiles:
    queue = open_queue(files, root / "0")
    write(queue, 0, CONTENT)
    return queue


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What queues read from their files, each time a position and a length."""
    seen: list[tuple[int, int]] = []
    read = QueueFiles.read

    def noted(files: QueueFiles, position: int, length: int) -> bytes:
        seen.append((position, length))
        return read(files, position, length)

    monkeypatch.setattr(QueueFiles, "read", noted)
    monkeypatch.setattr(queue_files, "READ_AHEAD", 40)
    return seen


def test_who_reads_on_gets_some_more_kept(queue: QueueFiles, reads: list[tuple[int, int]]) -> None:
    for position in range(0, 170, 10):
        assert queue.read_on(position, 10, 175) == CONTENT[position : position + 10]
    # Forty at a time, as far as their file goes, and no further than the end.
    assert reads == [(0, 10), (10, 40), (50, 40), (90, 40), (100, 40), (140, 35)]
    assert len(queue.ahead) == 35
    assert queue.read_on(150, 10, 175) == CONTENT[150:160]  # again
    assert len(reads) == 6


def test_who_takes_less_than_was_read_goes_on_as_well(
    queue: QueueFiles, reads: list[tuple[int, int]]
) -> None:
    for position in range(0, 40, 5):
        assert queue.read_on(position, 10, 100) == CONTENT[position : position + 10]
    assert reads == [(0, 10), (5, 40)]


def test_nothing_is_kept_for_who_reads_much(
    queue: QueueFiles, reads: list[tuple[int, int]]
) -> None:
    assert queue.read_on(0, 40, 100) == CONTENT[:40]
    assert queue.read_on(40, 50, 100) == CONTENT[40:90]
    assert queue.read_on(90, 60, 100) == CONTENT[90:100]  # to the end of the file
    assert reads == [(0, 40), (40, 50), (90, 60)]
    assert queue.ahead == b""


def test_a_bad_place_ahead_spares_what_is_before_it(
    queue: QueueFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = QueueFiles.read

    def fail_behind(files: QueueFiles, position: int, length: int) -> bytes:
        if position + length > 60:
            raise StoreFileError("unreadable", path=files.directory)
        return read(files, position, length)

    monkeypatch.setattr(QueueFiles, "read", fail_behind)
    assert queue.read_on(40, 10, 100) == CONTENT[40:50]
    with pytest.raises(StoreFileError):
        queue.read_on(50, 10, 100)
    assert queue.read_on(50, 10, 100) == CONTENT[50:60]  # on the next try


def test_who_jumps_gets_what_was_asked_for(queue: QueueFiles, reads: list[tuple[int, int]]) -> None:
    for position in (90, 20, 50, 10):
        assert queue.read_on(position, 10, 100) == CONTENT[position : position + 10]
    assert reads == [(90, 10), (20, 10), (50, 10), (10, 10)]
    assert queue.ahead == b""


def test_what_is_cut_off_or_deleted_is_not_kept(files: FileSystem, root: Path) -> None:
    queue = open_queue(files, root / "0")
    write(queue, 0, b"a" * 150)
    assert queue.read_on(0, 10, 150) == b"a" * 10
    queue.cut(20)
    write(queue, 20, b"b" * 130)
    assert queue.read_on(10, 20, 150) == b"a" * 10 + b"b" * 10
    assert queue.ahead
    queue.remove(0)
    assert queue.ahead == b""
    assert queue.read_on(110, 10, 150) == b"b" * 10
    assert queue.read_on(120, 10, 150) == b"b" * 10
    queue.destroy()
    assert queue.ahead == b""
