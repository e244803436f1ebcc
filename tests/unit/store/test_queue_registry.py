"""All queues of a store: the registry, directories, flushing in steps, thousands of them."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.core.errors import StoreError
from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.queue_registry import ConsumeQueues
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem

ROOT = Path("/store")


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def root(files: FileSystem, tmp_path: Path) -> Path:
    if isinstance(files, FaultyFileSystem):
        files.make_directories(tmp_path)
    return tmp_path


def open_queues(
    files: FileSystem,
    root: Path = ROOT,
    *,
    dirty_ranges: DirtyRanges | None = None,
    tail_size_max: int = 1000,
) -> ConsumeQueues:
    return ConsumeQueues(
        files,
        root,
        dirty_ranges or DirtyRanges(files),
        queue_file_size=200,
        batch_queue_file_size=460,
        open_files_max=3,
        tail_size_max=tail_size_max,
        recent_size=100,
    )


def reopened(files: FileSystem, root: Path = ROOT) -> ConsumeQueues:
    queues = open_queues(files, root)
    queues.load(clean=True)
    queues.recover()
    return queues


def message_total(queues: ConsumeQueues) -> int:
    return sum(queue.max_offset - queue.min_offset for queue in queues)


def put(queues: ConsumeQueues, topic: str, queue_id: int, count: int, first: int = 0) -> None:
    queue = queues.get_or_create(topic, queue_id)
    for number in range(first, first + count):
        queue.append(number * 100, 100, number)
    queue.next_offset = queue.max_offset


def test_queues_are_made_once_and_found_again(files: FileSystem, root: Path) -> None:
    queues = open_queues(files, root)
    assert queues.get("A", 0) is None
    queue = queues.get_or_create("A", 0)
    assert queues.get_or_create("A", 0) is queues.get("A", 0) is queue
    put(queues, "A", 1, 3)
    put(queues, "%RETRY%G", 0, 25)
    queues.get_or_create_batch("B", 7).append(5000, 100, 0, 1, 4)
    queues.flush()
    assert [entry.name for entry in files.list_directory(root)] == [
        "batchconsumequeue",
        "consumequeue",
    ]
    assert not files.exists(root / "consumequeue" / "A" / "0")  # nothing was put there
    queues.close()

    queues = reopened(files, root)
    assert {(queue.topic, queue.queue_id): queue.max_offset for queue in queues} == {
        ("A", 1): 3,
        ("%RETRY%G", 0): 25,
        ("B", 7): 4,
    }
    assert isinstance(queues.get("A", 1), ConsumeQueue)
    assert isinstance(queues.get("B", 7), BatchQueue)
    assert (len(queues), message_total(queues), queues.size_total) == (3, 32, 4 * 200 + 460)
    assert sorted(queues.topics()) == ["%RETRY%G", "A", "B"]
    put(queues, "A", 0, 1)
    assert [queue.queue_id for queue in queues.topic_queues("A")] == [0, 1]
    assert queues.topic_queues("C") == []
    queues.close()


def test_recover_returns_how_far_the_log_was_dispatched() -> None:
    disk = FaultyFileSystem()
    assert open_queues(disk).recover() == -1
    queues = open_queues(disk)
    put(queues, "A", 0, 5)
    put(queues, "B", 0, 3, first=40)
    queues.flush()
    steps: list[tuple[int, int]] = []
    queues = open_queues(disk)
    queues.load(clean=True)
    assert queues.recover(progress=lambda done, total: steps.append((done, total))) == 4300
    assert steps == [(1, 2), (2, 2)]
    queues = open_queues(disk)
    queues.load(clean=False)
    assert queues.recover(synced_until=4100) == 4100
    queue = queues.get("B", 0)
    assert queue is not None
    assert queue.max_offset == 1


def test_directories_that_are_no_queues_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyFileSystem()
    queues = open_queues(disk)
    put(queues, "A", 0, 1)
    queues.flush()
    for name in ("x", "00", "-1", "+1", "1_0", "٣"):  # the last is a digit
        disk.make_directories(ROOT / "consumequeue" / "A" / name)
    disk.write_file(ROOT / "consumequeue" / "notes.txt", b"")
    disk.write_file(ROOT / "consumequeue" / "A" / "1", b"")
    queues = reopened(disk)
    assert [(queue.topic, queue.queue_id) for queue in queues] == [("A", 0)]
    assert "/store/consumequeue/A/x is not a queue" in caplog.text


def test_a_topic_has_queues_of_one_kind(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyFileSystem()
    queues = open_queues(disk)
    put(queues, "A", 0, 1)
    queues.get_or_create_batch("B", 0)
    with pytest.raises(StoreError, match="<ConsumeQueue A-0 max=1> holds single messages"):
        queues.get_or_create_batch("A", 0)
    with pytest.raises(StoreError, match="<BatchQueue B-0 max=0> holds inner batches"):
        queues.get_or_create("B", 0)
    queues.flush()
    disk.make_directories(ROOT / "batchconsumequeue" / "A" / "0")
    assert isinstance(reopened(disk).get("A", 0), ConsumeQueue)
    assert "A-0 has queues of two kinds" in caplog.text


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "/a", "../a", "a\0b"])
def test_no_topic_name_escapes_the_store_directory(topic: str) -> None:
    queues = open_queues(FaultyFileSystem())
    with pytest.raises(StoreError, match="no queue can be named"):
        queues.get_or_create(topic, 0)
    with pytest.raises(StoreError, match="no queue can be named"):
        queues.get_or_create("A", -1)


def test_a_round_writes_what_was_new_when_it_began() -> None:
    disk = FaultyFileSystem()
    queues = open_queues(disk)
    for number in range(5):
        put(queues, f"T{number}", 0, 1)
    flush_round = queues.start_flush()
    assert not flush_round.run(2)
    assert queues.dirty_count == 3
    put(queues, "T0", 0, 1, first=1)  # written already: not of this round
    put(queues, "T5", 0, 1)
    assert not flush_round.run(2)
    assert flush_round.run(2)
    assert queues.dirty_count == 2
    assert flush_round.run(2)
    queues.flush()
    assert queues.dirty_count == 0
    assert len(queues._handles) <= 3
    assert message_total(reopened(disk)) == 7


def test_a_round_may_be_tried_again_after_an_error() -> None:
    plan = FaultPlan(0)
    queues = open_queues(FaultyFileSystem(plan))
    for number in range(3):
        put(queues, f"T{number}", 0, 1)
    plan.at("files.write", nth=2, error=errno.EIO)
    flush_round = queues.start_flush()
    with pytest.raises(StoreFileError, match="T1"):
        flush_round.run()
    assert queues.dirty_count == 2
    assert flush_round.run()
    assert queues.dirty_count == 0


def test_a_queue_deleted_within_a_round_is_passed_over() -> None:
    disk = FaultyFileSystem()
    queues = open_queues(disk)
    put(queues, "A", 0, 1)
    put(queues, "B", 0, 1)
    flush_round = queues.start_flush()
    queues.destroy_topic("A")
    assert flush_round.run()
    assert disk.list_directory(ROOT / "consumequeue" / "A") == []
    assert reopened(disk).topics() == ["B"]


def test_entries_that_have_to_wait_in_memory_are_reported() -> None:
    disk = FaultyFileSystem(capacity=0)
    queues = open_queues(disk, tail_size_max=100)
    put(queues, "A", 0, 50)
    assert "ENOSPC" in str(queues.error)
    with pytest.raises(StoreFileError):
        queues.flush()
    disk.capacity = 1 << 20
    queues.flush()
    assert queues.error is None
    assert message_total(reopened(disk)) == 50


def test_queues_follow_the_log() -> None:
    disk = FaultyFileSystem()
    queues = open_queues(disk)
    put(queues, "A", 0, 35)
    put(queues, "B", 0, 5)
    assert queues.delete_before(2000) == 0  # still in memory
    queues.flush()
    assert queues.delete_before(2000) == 2
    assert [(queue.min_offset, queue.max_offset) for queue in queues] == [(20, 35), (5, 5)]
    queues.truncate(3000)
    assert [(queue.min_offset, queue.max_offset) for queue in queues] == [(20, 30), (5, 5)]
    queues.correct_min(2500)
    assert [queue.min_offset for queue in queues] == [25, 5]


def test_a_topic_is_deleted_and_leaves_an_empty_directory(files: FileSystem, root: Path) -> None:
    dirty_ranges = DirtyRanges(files)
    queues = open_queues(files, root, dirty_ranges=dirty_ranges)
    put(queues, "A", 0, 25)
    put(queues, "A", 1, 25)
    put(queues, "B", 0, 1)
    queues.get_or_create_batch("C", 0).append(0, 100, 0, 1, 4)
    queues.flush()
    dirty_ranges.begin()
    queues.destroy_topic("A")
    assert files.list_directory(root / "consumequeue" / "A") == []
    assert queues.get("A", 0) is None
    assert sorted(queues.topics()) == ["B", "C"]
    batch = dirty_ranges.begin()
    assert batch.ranges == {}
    assert root / "consumequeue" in batch.directories
    batch.run()
    queues.destroy_topic("A")
    put(queues, "A", 0, 2)
    queues.flush()
    assert message_total(reopened(files, root)) == 7
    queues.destroy_all()
    assert len(queues) == 0
    assert message_total(reopened(files, root)) == 0
    assert files.list_directory(root / "batchconsumequeue" / "C") == []
    queues.close()


@pytest.mark.parametrize("seed", range(10))
def test_names_that_a_killed_process_left_unsynced_are_synced_by_the_next(seed: int) -> None:
    """A kill keeps what the system has in memory; a power loss after the restart would not."""
    disk = FaultyFileSystem(FaultPlan(seed))
    disk.make_directories(ROOT, durable=True)
    queues = open_queues(disk)
    put(queues, "A", 0, 5)
    queues.flush()
    disk = disk.kill()
    dirty_ranges = DirtyRanges(disk)
    queues = open_queues(disk, dirty_ranges=dirty_ranges)
    queues.load(clean=False)
    assert queues.recover(synced_until=0) == -1
    put(queues, "A", 0, 5)
    queues.flush()
    batch = dirty_ranges.begin()
    batch.run()
    dirty_ranges.finish(batch)
    queues = open_queues(disk := disk.power_loss())
    queues.load(clean=False)
    assert queues.recover(synced_until=500) == 500


def test_a_foreign_file_in_a_directory_is_not_deleted() -> None:
    disk = FaultyFileSystem()
    queues = open_queues(disk)
    put(queues, "A", 0, 1)
    queues.flush()
    disk.write_file(ROOT / "consumequeue" / "A" / "0" / "notes.txt", b"")
    queues.destroy_topic("A")
    assert disk.exists(ROOT / "consumequeue" / "A" / "0" / "notes.txt")


MEASURE = """
import os, sys
from pathlib import Path
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.files import OsFileSystem
from skylark.store.dirty_ranges import DirtyRanges

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])

before = anonymous()
files = OsFileSystem()
queues = ConsumeQueues(files, Path(sys.argv[1]), DirtyRanges(files))
if sys.argv[2] == "make":
    for number in range(1000):
        queue = queues.get_or_create(f"Topic{number // 8}", number % 8)
        for index in range(10):
            queue.append((number * 10 + index) * 100, 100, index)
    queues.flush()
else:
    queues.load(clean=sys.argv[2] == "clean")
    queues.recover(None if sys.argv[2] == "clean" else 500_000)
total = sum(queue.max_offset - queue.min_offset for queue in queues)
print(anonymous() - before, len(os.listdir("/proc/self/fd")), total)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_a_thousand_idle_queues_cost_little(tmp_path: Path) -> None:
    def measure(mode: str) -> tuple[int, int, int]:
        command = [sys.executable, "-c", MEASURE, str(tmp_path), mode]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        kilobytes, descriptors, messages = map(int, done.stdout.split())
        return kilobytes, descriptors, messages

    kilobytes, descriptors, messages = measure("make")
    assert messages == 10_000
    assert descriptors < 300
    assert kilobytes < 60 << 10
    kilobytes, descriptors, messages = measure("clean")
    assert messages == 10_000
    assert descriptors < 300
    assert kilobytes < 60 << 10
    _, descriptors, messages = measure("crashed")
    assert messages == 5_000
    assert descriptors < 300
