"""Retention at work: log, queues, index, readers and full disks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skylark.store.allocator import Allocator
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import DiskUsage, FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.retention import QUEUES_PER_TURN, Retention
from skylark.store.running_flags import StoreFlag
from skylark.store.store_results import GetStatus, PutStatus
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.message import decode_record
from tests.unit.store.small_store import FILE_SIZE, SmallStore, bodies, offsets

ROOT = Path("/store")
DAYS = 72 * 3600.0


class Cleaned:
    """A small store with a retention that believes it to be 04:00, and a note of what goes."""

    def __init__(
        self,
        files: FileSystem,
        root: Path,
        *,
        listener: Callable[[int, int, bool], None] | None = None,
        **settings: Any,
    ) -> None:
        self.files = files
        self.store = SmallStore(files, root, **settings)
        self.owner = self.store.owner
        self.gone: list[tuple[int, int, bool]] = []
        self.hour = 4
        self.entries_durable_until = 1 << 62  # log offset; before it, queue entries are on disk
        self.retention = Retention(
            self.store.parts,
            self.store.flags,
            store_time_of=self.store.reader.store_time_of,
            entries_durable_until=lambda: self.entries_durable_until,
            on_delete=listener or (lambda *gone: self.gone.append(gone)),
            hour_of=lambda _: self.hour,
        )

    def fill(self, file_count: int) -> None:
        """Write messages to queue 0 of T until the log has so many files, all of them on disk."""
        log_files = self.store.log.files
        while len(log_files.files) < file_count:
            self.store.put(bytes(FILE_SIZE // 10))
        log_files.sync()

    def clean_expired_queues(self, keep: Collection[str] = ()) -> int:
        return sum(self.retention.clean_expired_queue(each, keep) for each in self.store.queues)

    def names(self) -> list[int]:
        directory = self.store.config.commit_log_path
        return [int(entry.name) // FILE_SIZE for entry in self.files.list_directory(directory)]

    def pass_time(self, seconds: float) -> None:
        self.owner.advance(seconds * 1000)


class RoomyFiles(OsFileSystem):
    """Real files on a disk that is half empty, however full the machine's is."""

    def disk_usage(self, path: Path) -> DiskUsage:
        assert path.exists()
        return DiskUsage(100, 50, 50)


def in_memory(**options: Any) -> Cleaned:
    files = FaultyFileSystem()
    files.make_directories(ROOT)
    return Cleaned(files, ROOT, **options)


@pytest.fixture
def cleaned() -> Cleaned:
    return in_memory()


@pytest.fixture(params=["os", "faulty"])
def any_cleaned(request: pytest.FixtureRequest, tmp_path: Path) -> Cleaned:
    return Cleaned(RoomyFiles(), tmp_path) if request.param == "os" else in_memory()


def test_times_of_the_passes(cleaned: Cleaned) -> None:
    cleaned.fill(16)
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    cleaned.pass_time(59.9)
    assert cleaned.names() == list(range(16))
    cleaned.pass_time(0.15)  # 60.05
    assert cleaned.names() == list(range(1, 16))
    cleaned.pass_time(0.1)
    assert cleaned.names() == list(range(2, 16))
    cleaned.pass_time(5)
    assert cleaned.names() == list(range(10, 16))  # ten in a pass
    cleaned.pass_time(4.9)  # 70.05
    assert cleaned.names() == list(range(11, 16))
    cleaned.pass_time(3600)
    assert cleaned.names() == [15]  # never the last
    assert cleaned.gone == [(n * FILE_SIZE, (n + 1) * FILE_SIZE, False) for n in range(15)]


def test_a_file_is_as_old_as_its_last_record(cleaned: Cleaned) -> None:
    cleaned.fill(2)
    cleaned.owner.now += 3600
    cleaned.store.put(bytes(FILE_SIZE // 10))
    cleaned.fill(3)  # the second file ends an hour later
    cleaned.owner.now += 3600
    cleaned.fill(4)
    cleaned.owner.now += DAYS - 3600 - 120
    cleaned.retention.start()
    cleaned.pass_time(100)
    assert cleaned.names() == [1, 2, 3]
    cleaned.pass_time(60)
    assert cleaned.names() == [2, 3]


def test_files_of_another_run_are_as_old_as_what_follows_them(cleaned: Cleaned) -> None:
    cleaned.fill(2)
    cleaned.owner.now += 3600
    cleaned.fill(3)
    for file in cleaned.store.log.files.files:
        file.last_store_timestamp = 0  # as after a load
    cleaned.owner.now += DAYS - 3600
    cleaned.retention.start()
    cleaned.pass_time(3500)
    assert cleaned.names() == [1, 2]  # the next file began right after the first had ended
    cleaned.pass_time(200)
    assert cleaned.names() == [2]


def test_an_empty_last_file_gives_no_age_to_the_one_before(cleaned: Cleaned) -> None:
    cleaned.fill(1)
    log_files = cleaned.store.log.files
    while log_files.last.wrote < FILE_SIZE - 2000:
        cleaned.store.put(bytes(1000))
    log_files.last.wrote = FILE_SIZE
    log_files.last.last_store_timestamp = 0
    log_files.roll()
    log_files.sync()
    cleaned.owner.now += 2 * DAYS
    cleaned.retention.start()
    cleaned.pass_time(100)
    assert cleaned.names() == [0, 1]
    cleaned.store.put()
    cleaned.pass_time(2 * DAYS)
    assert cleaned.names() == [1]


@pytest.mark.spec("store.12.32")
def test_queues_begin_where_the_log_does(any_cleaned: Cleaned) -> None:
    cleaned, store = any_cleaned, any_cleaned.store
    for _ in range(3):
        store.put(topic="expired")
    cleaned.fill(2)
    cleaned.owner.now += 3600
    cleaned.fill(4)
    cleaned.owner.now += DAYS - 3600
    cleaned.retention.start()
    cleaned.pass_time(70)
    assert cleaned.names() == [1, 2, 3]
    log_min = store.log.min_offset
    assert log_min == FILE_SIZE
    queue = store.queues.get_or_create("T", 0)
    first = queue.read_entry(queue.min_offset)
    assert first is not None
    assert first.log_offset == log_min
    assert 0 < queue.min_offset < queue.max_offset
    early = store.reader.get("T", 0, 0, 32)
    assert (early.status, early.next_offset) == (GetStatus.OFFSET_TOO_SMALL, queue.min_offset)
    assert offsets(store.reader.get("T", 0, queue.min_offset, 1)) == [queue.min_offset]
    expired = store.queues.get_or_create("expired", 0)
    assert (expired.min_offset, expired.max_offset) == (3, 3)
    empty = store.reader.get("expired", 0, 3, 32)
    assert (empty.status, empty.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 3)
    assert store.put(topic="expired").queue_offset == 3  # the numbering goes on
    assert offsets(store.reader.get("expired", 0, 3, 32)) == [3]


def test_derived_files_are_deleted_as_well(any_cleaned: Cleaned) -> None:
    cleaned, store = any_cleaned, any_cleaned.store
    cleaned.fill(2)
    for number in range(2_500):  # three queue files, and some of the index
        store.put(b"x", topic="many", KEYS=f"k{number}")
    store.queues.flush()
    store.log.files.sync()
    index_count = store.index.file_count
    assert index_count > 5
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    cleaned.pass_time(3_000)
    assert len(cleaned.names()) == 1
    directory = store.config.store_path_root_dir / "consumequeue/many/0"
    left = [int(entry.name) for entry in cleaned.files.list_directory(directory)]
    assert left == [40_000]
    assert store.index.file_count < index_count
    queue = store.queues.get_or_create("many", 0)
    entry = queue.read_entry(queue.min_offset)
    assert entry is not None
    assert entry.log_offset >= store.log.min_offset
    result = store.reader.query("many", "k2499", 32)
    assert len(result.views) == 1
    result.release()
    assert not store.reader.query("many", "k0", 32).views


def test_many_queues_are_corrected_in_turns(
    cleaned: Cleaned, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cleaned.store
    queue_count = 3 * QUEUES_PER_TURN
    for number in range(queue_count):
        store.put(b"x", topic=f"topic{number}")
    cleaned.fill(4)
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    corrected = [0]
    call_at = cleaned.owner.call_at

    def watched_call_at(*args: Any) -> Any:
        offsets_now = (store.reader.min_offset(f"topic{n}", 0) for n in range(queue_count))
        corrected.append(sum(offsets_now))
        return call_at(*args)

    monkeypatch.setattr(cleaned.owner, "call_at", watched_call_at)  # called after each step
    cleaned.pass_time(200)
    assert corrected[-1] == queue_count
    assert max(after - before for before, after in pairwise(corrected)) <= QUEUES_PER_TURN
    assert not cleaned.retention.is_working


def test_all_queues_are_right_before_the_first_file_of_a_queue_goes(cleaned: Cleaned) -> None:
    store = cleaned.store
    for number in range(2_200):
        store.put(b"x", topic=f"topic{number % 2}")
    store.queues.flush()
    store.log.files.sync()
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    queues = [store.queues.get_or_create(f"topic{number}", 0) for number in range(2)]
    sizes = [queue.size_total for queue in queues]
    cleaned.pass_time(60)
    while queues[0].size_total == sizes[0]:
        cleaned.pass_time(0.1)
    assert queues[1].size_total == sizes[1]  # its turn comes after a pause
    for queue in queues:
        entry = queue.read_entry(queue.min_offset)
        assert entry is not None
        assert entry.log_offset >= store.log.min_offset
    cleaned.pass_time(0.1)
    assert queues[1].size_total < sizes[1]


def test_nothing_is_done_when_nothing_happens(
    cleaned: Cleaned, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned.fill(3)
    followed: list[int] = []
    monkeypatch.setattr(cleaned.store.index, "delete_before", followed.append)
    cleaned.retention.start()
    cleaned.pass_time(100)
    assert followed == [0]  # once after the start
    cleaned.owner.now += DAYS
    cleaned.pass_time(100)
    assert followed == [0, 2 * FILE_SIZE]


def test_derived_files_are_trimmed_after_a_crash_in_between(cleaned: Cleaned) -> None:
    """The log lost files, and the derived files were not trimmed."""
    cleaned.fill(3)
    cleaned.store.log.files.retire_oldest(0.0)
    assert cleaned.store.reader.min_offset("T", 0) == 0
    cleaned.retention.start()
    cleaned.pass_time(61)
    assert cleaned.names() == [1, 2]
    queue = cleaned.store.queues.get_or_create("T", 0)
    first = queue.read_entry(queue.min_offset)
    assert first is not None
    assert first.log_offset == FILE_SIZE


# ---- full disks ----------------------------------------------------------------------------------


def fill_disk(cleaned: Cleaned, ratio: float) -> None:
    """Let the disk be so full by making it smaller or larger."""
    assert isinstance(cleaned.files, FaultyFileSystem)
    usage = cleaned.files.disk_usage(ROOT)
    cleaned.files.capacity = int((usage.total - usage.free) / ratio)


@pytest.mark.spec("store.12.33")
def test_a_nearly_full_disk_refuses_messages(cleaned: Cleaned) -> None:
    store = cleaned.store
    store.put(b"before")
    cleaned.retention.start()
    cleaned.pass_time(60)
    assert store.try_put().status is PutStatus.PUT_OK
    fill_disk(cleaned, 0.91)
    cleaned.pass_time(10)
    refused = store.try_put()
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert refused.status.code == 14
    assert store.flags.has(StoreFlag.DISK_FULL)
    assert bodies(store.reader.get("T", 0, 0, 1)) == [b"before"]
    fill_disk(cleaned, 0.80)
    cleaned.pass_time(10)
    assert store.try_put().queue_offset == 2  # and no gap
    assert store.flags.bits == 0


def test_a_nearly_full_disk_loses_its_oldest_files(cleaned: Cleaned) -> None:
    cleaned.fill(20)
    usage = cleaned.files.disk_usage(ROOT)
    fill_disk(cleaned, 0.86)
    cleaned.retention.start()
    cleaned.pass_time(80)
    left = cleaned.files.disk_usage(ROOT)
    assert 0.80 < left.used_ratio <= 0.85
    assert usage.total - usage.free > left.total - left.free
    count = cleaned.names()[0]
    assert cleaned.gone == [(n * FILE_SIZE, (n + 1) * FILE_SIZE, True) for n in range(count)]
    assert cleaned.store.flags.bits == 0


@pytest.mark.spec("store.12.33")
def test_a_put_that_finds_the_disk_full(cleaned: Cleaned) -> None:
    """Not the watermark but the allocation fails, as with a quota: the store recovers by itself."""
    assert isinstance(cleaned.files, FaultyFileSystem)
    store = cleaned.store
    cleaned.retention.start()
    cleaned.fill(2)
    full = cleaned.files.capacity
    usage = cleaned.files.disk_usage(ROOT)
    cleaned.files.capacity = usage.total - usage.free
    while store.try_put(bytes(2000)).status is PutStatus.PUT_OK:
        pass
    stored = store.reader.max_offset("T", 0)
    assert store.try_put(b"tiny").status is PutStatus.SERVICE_NOT_AVAILABLE
    assert len(bodies(store.reader.get("T", 0, 0, 100))) == stored
    cleaned.files.capacity = full
    assert store.try_put(b"tiny").status is PutStatus.SERVICE_NOT_AVAILABLE
    cleaned.pass_time(60)
    assert store.put(b"tiny").queue_offset == stored


def test_a_disk_that_cannot_be_asked(cleaned: Cleaned, caplog: pytest.LogCaptureFixture) -> None:
    cleaned.fill(3)
    cleaned.owner.now += DAYS
    cleaned.store.log.files.files[1].flushed = FILE_SIZE
    for file in cleaned.store.log.files.files:
        file.last_store_timestamp = 0
    cleaned.store.log.files.files[1].close()
    assert isinstance(cleaned.files, FaultyFileSystem)
    cleaned.files.plan.at("files.open", nth=1, error=errno.EIO)
    cleaned.retention.start()
    cleaned.pass_time(61)
    assert "old files stay until the next pass" in caplog.text
    assert cleaned.names() == [0, 1, 2]
    cleaned.pass_time(10)
    assert cleaned.names() == [2]


# ---- readers -------------------------------------------------------------------------------------


@pytest.mark.spec("store.12.34")
def test_a_file_goes_with_its_last_reader(any_cleaned: Cleaned) -> None:
    cleaned, store = any_cleaned, any_cleaned.store
    cleaned.fill(3)
    cleaned.owner.now += DAYS
    result = store.reader.get("T", 0, 0, 1, bulk=True)  # as memory views
    cleaned.retention.start()
    cleaned.pass_time(70)
    assert cleaned.names() == [0, 1, 2]  # the second waits for the first
    assert store.log.min_offset == 2 * FILE_SIZE
    assert decode_record(result.views[0]).queue_offset == 0
    result.release()
    assert cleaned.names() == [2]


@pytest.mark.spec("store.12.34")
def test_a_file_goes_by_force(any_cleaned: Cleaned) -> None:
    cleaned, store = any_cleaned, any_cleaned.store
    cleaned.fill(2)
    cleaned.owner.now += DAYS
    result = store.reader.get("T", 0, 0, 1, bulk=True)  # as memory views
    cleaned.retention.start()
    cleaned.pass_time(60 + 119)
    assert cleaned.names() == [0, 1]
    cleaned.pass_time(12)
    assert cleaned.names() == [1]
    assert decode_record(result.views[0]).queue_offset == 0  # the bytes live on
    result.release()


def test_a_file_that_stayed_is_retried_at_its_interval() -> None:
    cleaned = in_memory(redelete_hanged_file_interval=150_000)
    cleaned.fill(2)
    cleaned.owner.now += DAYS
    result = cleaned.store.reader.get("T", 0, 0, 1, bulk=True)
    cleaned.retention.start()
    cleaned.pass_time(60 + 149)  # the first look was at 60 s; the time of force has come at 180 s
    assert cleaned.names() == [0, 1]
    cleaned.pass_time(2)
    assert cleaned.names() == [1]
    result.release()


def test_derived_files_keep_the_entries_of_a_retired_file(any_cleaned: Cleaned) -> None:
    """After a crash the file is part of the log again: it still has its name."""
    cleaned, store = any_cleaned, any_cleaned.store
    for number in range(2_500):  # three queue files, and some of the index
        store.put(b"x", topic="many", KEYS=f"k{number}")
    store.put(topic="expired")
    store.queues.flush()
    cleaned.fill(len(cleaned.names()) + 2)
    result = store.reader.get("many", 0, 0, 1, bulk=True)
    directory = store.config.store_path_root_dir / "consumequeue/many/0"
    index_count = store.index.file_count
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    for _ in range(20):  # by force, before the time is over
        store.log.files.retire_oldest(cleaned.owner.monotonic())
    cleaned.pass_time(100)
    log_files = store.log.files
    assert (log_files.min_offset, log_files.removed_until) == (log_files.last.start_offset, 0)
    queue = store.queues.get_or_create("many", 0)
    assert queue.min_offset == queue.max_offset == 2_500  # for readers it is over
    assert len(cleaned.files.list_directory(directory)) == 3
    assert store.index.file_count == index_count
    assert cleaned.clean_expired_queues() == 0
    result.release()
    cleaned.pass_time(100)
    assert log_files.removed_until == log_files.min_offset
    assert len(cleaned.files.list_directory(directory)) == 1
    assert store.index.file_count < index_count
    assert cleaned.clean_expired_queues() == 2


def test_what_is_not_on_disk_yet_stays(cleaned: Cleaned) -> None:
    cleaned.fill(2)
    fill_disk(cleaned, 0.99)
    cleaned.store.log.files.flushed_where = FILE_SIZE - 1
    cleaned.retention.start()
    cleaned.pass_time(100)
    assert cleaned.names() == [0, 1]
    cleaned.store.log.files.flushed_where = FILE_SIZE
    cleaned.pass_time(10)
    assert cleaned.names() == [1]


def test_a_file_without_durable_entries_stays_unless_the_disk_is_full(cleaned: Cleaned) -> None:
    """Without the record, a queue entry that a crash takes could not be made again."""
    cleaned.fill(3)
    cleaned.owner.now += DAYS
    cleaned.entries_durable_until = 2 * FILE_SIZE - 1
    cleaned.retention.start()
    cleaned.pass_time(100)
    assert cleaned.names() == [1, 2]
    fill_disk(cleaned, 0.99)  # on which entries cannot be written either
    cleaned.pass_time(10)
    assert cleaned.names() == [2]
    assert cleaned.gone == [(0, FILE_SIZE, False), (FILE_SIZE, 2 * FILE_SIZE, True)]


def test_a_listener_cannot_stop_it(caplog: pytest.LogCaptureFixture) -> None:
    def listener(start: int, end: int, forced: bool) -> None:
        assert obstinate.names() == [0, 1]  # called before the deletion
        raise ZeroDivisionError(f"{start}, {end}, {forced}")

    obstinate = in_memory(listener=listener)
    obstinate.fill(2)
    obstinate.owner.now += DAYS
    obstinate.retention.start()
    obstinate.pass_time(61)
    assert f"'0, {FILE_SIZE}, False'" in repr([record.exc_info for record in caplog.records])
    assert obstinate.names() == [1]


# ---- errors, requests, stopping ------------------------------------------------------------------


def test_a_derived_file_that_cannot_be_deleted_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    plan = FaultPlan(3)
    files = FaultyFileSystem(plan)
    files.make_directories(ROOT)
    cleaned = Cleaned(files, ROOT)
    for _ in range(2_500):
        cleaned.store.put(b"x", topic="many")
    cleaned.store.queues.flush()
    cleaned.store.log.files.sync()
    cleaned.owner.now += DAYS
    plan.at("files.remove", nth=11, error=errno.EACCES)  # after the ten log files of a pass
    cleaned.retention.start()
    directory = ROOT / "consumequeue/many/0"

    def queue_files() -> list[int]:
        return [int(entry.name) for entry in files.list_directory(directory)]

    cleaned.pass_time(65)
    assert f"tries again later: {directory}" in caplog.text
    assert queue_files() == [0, 20_000, 40_000]
    cleaned.pass_time(3_000)
    assert queue_files() == [40_000]
    assert not cleaned.retention.is_working


def test_an_operator_may_ask_for_it(cleaned: Cleaned) -> None:
    cleaned.fill(2)
    cleaned.owner.now += DAYS
    cleaned.hour = 12
    cleaned.retention.start()
    cleaned.pass_time(100)
    assert cleaned.names() == [0, 1]
    cleaned.retention.request_deletion()
    cleaned.pass_time(10)
    assert cleaned.names() == [1]


def test_a_limit_in_bytes_is_kept(any_cleaned: Cleaned) -> None:
    root = any_cleaned.store.config.store_path_root_dir
    cleaned = Cleaned(any_cleaned.files, root, disk_used_bytes_max=3 * FILE_SIZE)
    cleaned.hour = 12
    cleaned.retention.start()
    log_files = cleaned.store.log.files
    for file_count in (5, 4, 14):
        cleaned.fill(file_count)
        cleaned.pass_time(70)
        assert 2 * FILE_SIZE < log_files.wrote_end - log_files.min_offset <= 3 * FILE_SIZE


def test_stopping_in_the_middle(cleaned: Cleaned) -> None:
    cleaned.fill(10)
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    cleaned.pass_time(60.25)
    assert cleaned.names() == list(range(3, 10))
    cleaned.retention.stop()
    assert cleaned.owner.timer_count == 0
    cleaned.pass_time(1_000)
    assert cleaned.names() == list(range(3, 10))


# ---- queues without messages ---------------------------------------------------------------------


def test_clean_expired_queues(any_cleaned: Cleaned) -> None:
    cleaned, store = any_cleaned, any_cleaned.store
    store.queues.get_or_create("new", 0)
    for topic in ("expired", "kept", "SELF_TEST_TOPIC", "rmq_sys_x", "waiting"):
        store.put(topic=topic)
    store.queues.get_or_create("waiting", 0).next_offset += 1
    store.queues.flush()
    cleaned.fill(3)
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    cleaned.pass_time(70)
    assert cleaned.clean_expired_queues({"kept"}) == 1
    assert sorted(store.queues.topics()) == sorted(
        ["new", "T", "kept", "SELF_TEST_TOPIC", "rmq_sys_x", "waiting"]
    )
    root = store.config.store_path_root_dir
    assert cleaned.files.list_directory(root / "consumequeue" / "expired") == []
    assert cleaned.files.list_directory(root / "consumequeue" / "kept") != []
    assert store.put(topic="expired").queue_offset == 0  # a new queue


def test_a_retired_file_is_no_part_of_a_new_load(any_cleaned: Cleaned) -> None:
    cleaned = any_cleaned
    cleaned.fill(4)
    cleaned.owner.now += DAYS
    cleaned.retention.start()
    cleaned.pass_time(70)
    log_files = cleaned.store.log.files
    log_files.close()
    again = MappedFiles(
        log_files.directory, FILE_SIZE, files=cleaned.files, allocator=Allocator(cleaned.files)
    )
    again.load()
    assert (again.min_offset, len(again.files)) == (3 * FILE_SIZE, 1)
    again.close()
