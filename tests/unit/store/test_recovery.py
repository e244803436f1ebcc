"""Recovery after clean shutdowns and crashes: start of the scan, and the derived files.

Where the log ends is in test_recovery_end.py, random damage in test_recovery_damage.py.
"""

from __future__ import annotations

import itertools

import pytest

from skylark.core.errors import CorruptLogError, StoreError
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.log_replay import LogScan
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.unit.store.crash_store import (
    BODY,
    LOG,
    LOG_FILE_SIZE,
    MESSAGES,
    ROOT,
    START_MS,
    CrashStore,
    assert_complete,
    bodies,
    derived_files,
    disk_of,
    log_file,
    new_store,
    offset_of,
    overwrite,
    put_some,
    record_time,
    remove_tree,
    reopened,
    state,
)

# ---- an orderly end ------------------------------------------------------------------------------


def test_a_new_store(caplog: pytest.LogCaptureFixture) -> None:
    store = CrashStore(FaultyFileSystem())
    with caplog.at_level("INFO"):
        report = store.open()
    assert "does not exist" not in caplog.text
    assert (report.clean, report.log_end, report.scanned_records) == (True, 0, 0)
    assert report.fault is None
    assert store.abort.exists()
    put_some(store, 3)
    assert_complete(store, range(3))


def test_after_an_orderly_end_only_the_last_file_is_read_and_nothing_changed() -> None:
    store = new_store()
    put_some(store)
    store.close()
    disk = disk_of(store)
    before = state(disk)
    after, report = reopened(store)
    assert report.clean
    assert report.scan_start == store.log_files.files[-1].start_offset > 0
    assert report.log_end == store.log.max_offset
    assert report.last_record_offset == offset_of(after, MESSAGES - 1)
    assert report.last_store_timestamp == START_MS + MESSAGES * 100
    assert report.scanned_bytes == report.log_end - report.scan_start
    assert (report.replayed_records, report.truncated_bytes) == (0, 0)
    assert not report.derived_files_rebuilt
    assert state(disk_of(after)) == before
    assert after.log.last_store_timestamp == report.last_store_timestamp
    assert after.checkpoint.confirm_offset == report.last_record_offset
    assert_complete(after)


@pytest.mark.parametrize("exit_code", ["clean", "killed"])
@pytest.mark.parametrize("missing", ["consumequeue", "index", "both"])
@pytest.mark.spec("store.12.24")
def test_deleted_derived_files_are_rebuilt(exit_code: str, missing: str) -> None:
    store = new_store()
    put_some(store)
    store.flush_log()
    store.flush_views()
    made = derived_files(disk_of(store))
    if exit_code == "clean":
        store.close()
    disk = disk_of(store).kill()
    for name in ("consumequeue", "index") if missing == "both" else (missing,):
        remove_tree(disk, ROOT / name)
    after = CrashStore(disk)
    report = after.open()
    assert report.clean == (exit_code == "clean")
    if missing != "index":
        assert report.derived_files_rebuilt
        assert (report.scan_start, report.replayed_records) == (0, MESSAGES)
    assert report.index_behind_from is None
    after.write_views()
    assert derived_files(disk) == made
    assert_complete(after)


def test_derived_files_ahead_of_the_log_after_a_clean_shutdown_are_truncated() -> None:
    store = new_store()
    put_some(store)
    cut = offset_of(store, 100)
    store.close()
    disk = disk_of(store).kill()
    overwrite(disk, cut, bytes(LOG_FILE_SIZE - cut % LOG_FILE_SIZE))
    for number in range(cut // LOG_FILE_SIZE + 1, 9):
        if disk.exists(log_file(number)):
            disk.remove(log_file(number))
    after = CrashStore(disk)
    report = after.open()
    assert (report.clean, report.log_end) == (True, cut)
    assert_complete(after, range(100))


def test_derived_files_behind_the_log_after_a_clean_shutdown_are_filled() -> None:
    """A Java broker that gave up waiting for its dispatch leaves them like this."""
    store = new_store()
    put_some(store, 60)
    store.flush_views()
    old = derived_files(disk_of(store))
    put_some(store, MESSAGES - 60, first=60)
    store.close()
    disk = disk_of(store).kill()
    for name, content in derived_files(disk).items():
        if name.startswith("consumequeue"):
            disk.install(ROOT / name, old.get(name, bytes(len(content))))
    after = CrashStore(disk)
    report = after.open()
    assert (report.clean, report.derived_files_rebuilt, report.replayed_records) == (True, True, 90)
    assert_complete(after)


def store_with_deleted_topic() -> CrashStore:
    """Numbered messages, then such of a topic that was deleted, over several files of the log."""
    store = new_store()
    put_some(store)
    for number in range(60):
        store.put("Deleted", number % 2, b"%d" % number + BODY)
    store.queues.destroy_topic("Deleted")
    return store


def test_after_an_orderly_end_a_deleted_topic_stays_deleted() -> None:
    store = store_with_deleted_topic()
    store.close()
    before = state(disk_of(store))
    for _ in range(2):  # the second start finds what the first has left
        after, report = reopened(store)
        assert (report.clean, report.derived_files_rebuilt, report.replayed_records) == (
            True,
            False,
            0,
        )
        assert report.log_end == store.log.max_offset
        assert report.scan_start == store.log_files.files[-1].start_offset
        assert after.queues.topics() == ["T"]
        assert state(disk_of(after)) == before
        after.close()
        store = after
    assert_complete(reopened(store)[0])


@pytest.mark.parametrize("flushed", [True, False])
def test_deleted_topics_stay_deleted_where_no_others_are_left(flushed: bool) -> None:
    """``flushed`` false: they were deleted before their queues had directories."""
    store = new_store()
    for number in range(60):
        store.put("Deleted1", number % 2, b"%d" % number + BODY)
        store.put("Deleted2", 0, b"%d" % number + BODY)
    if flushed:
        store.flush_views()
    for topic in ("Deleted1", "Deleted2"):
        store.queues.destroy_topic(topic)
    store.close()
    for _ in range(2):
        store, report = reopened(store)
        assert (report.clean, report.derived_files_rebuilt, report.replayed_records) == (
            True,
            False,
            0,
        )
        assert store.queues.topics() == []
        store.close()
    # One of them made again: its numbering restarts, and only it exists.
    store, _ = reopened(store)
    store.put("Deleted1", 0, b"new")
    store.close()
    store, report = reopened(store)
    assert report.derived_files_rebuilt is False
    assert [(queue.topic, queue.max_offset) for queue in store.queues] == [("Deleted1", 1)]
    store.close()
    # Without the directories that deleting leaves, the queues were lost, and are made again.
    disk = disk_of(store)
    for topic in ("Deleted1", "Deleted2"):
        remove_tree(disk, ROOT / "consumequeue" / topic)
    store, report = reopened(store)
    assert report.derived_files_rebuilt
    assert sorted(store.queues.topics()) == ["Deleted1", "Deleted2"]


def test_a_deleted_topic_stays_deleted_by_a_checkpoint_of_java() -> None:
    """Java's offset is where the last record begins."""
    store = store_with_deleted_topic()
    store.close()
    last = 0
    for file in store.log_files.files:
        scan = LogScan(store.log_files, file.start_offset)
        while (columns := scan.next()) is not None:
            last = int(columns.log_offset[-1])
    store.checkpoint.logics_physical_offset = last
    store.checkpoint.save()
    after, report = reopened(store)
    assert (report.clean, report.derived_files_rebuilt) == (True, False)
    assert after.queues.topics() == ["T"]
    assert_complete(after)


def test_records_behind_the_checkpoint_are_dispatched_also_after_those_of_a_deleted_topic() -> None:
    store = store_with_deleted_topic()
    store.flush_log()
    store.flush_views()
    vouched = store.checkpoint.logics_physical_offset
    store.put("Later", 0, b"later")
    store.close()
    store.checkpoint.logics_physical_offset = vouched - 1  # a record of the deleted topic
    store.checkpoint.save()
    disk = disk_of(store).kill()
    remove_tree(disk, ROOT / "consumequeue" / "Later")
    after = CrashStore(disk)
    report = after.open()
    assert (report.clean, report.derived_files_rebuilt, report.replayed_records) == (True, True, 1)
    assert after.messages() == bodies(range(MESSAGES)) | {("Later", 0): [b"later"]}


@pytest.mark.parametrize("checkpoint", ["none", "4.x"])
def test_without_an_offset_in_the_checkpoint_all_records_get_their_entries(checkpoint: str) -> None:
    store = store_with_deleted_topic()
    store.close()
    if checkpoint == "none":
        disk_of(store).remove(ROOT / "checkpoint")
    else:
        store.checkpoint.logics_physical_offset = 0
        store.checkpoint.save()
    after, report = reopened(store)
    assert (report.clean, report.replayed_records) == (True, 60)
    assert sorted(after.queues.topics()) == ["Deleted", "T"]


def test_a_queue_that_lost_a_file_is_filled_despite_a_later_checkpoint() -> None:
    store = store_with_deleted_topic()
    store.put("Last", 0, b"last")
    for number in range(MESSAGES, MESSAGES + 60):
        store.put("T", 0, b"%d" % number)
    store.close()
    disk = disk_of(store).kill()
    directory = ROOT / "consumequeue" / "T" / "0"
    names = [entry.name for entry in disk.list_directory(directory)]
    assert len(names) == 2
    disk.remove(directory / names[-1])
    after = CrashStore(disk)
    report = after.open()
    assert (report.clean, report.derived_files_rebuilt) == (True, True)
    assert after.messages()["T", 0][-60:] == [b"%d" % n for n in range(MESSAGES, MESSAGES + 60)]


@pytest.mark.spec("store.12.24")
def test_without_any_log_file_the_queues_are_emptied(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    put_some(store)
    store.close()
    disk = disk_of(store).kill()
    for entry in disk.list_directory(LOG):
        disk.remove(LOG / entry.name)
    after = CrashStore(disk)
    report = after.open()
    assert report.log_end == 0
    assert "deleting 3 queues and 4 index files" in caplog.text
    assert after.messages() == {}
    assert derived_files(disk) == {}
    put_some(after, 10)
    assert_complete(after, range(10))
    again, report = reopened(after)
    assert (report.clean, report.scan_start) == (False, 0)
    assert again.keys("T", "next")


def test_a_log_that_is_not_mounted_is_not_taken_for_an_empty_one() -> None:
    store = new_store()
    put_some(store)
    store.close()
    disk = disk_of(store).kill()
    remove_tree(disk, LOG)
    before = derived_files(disk)
    with pytest.raises(CorruptLogError, match="3 queues have entries") as caught:
        CrashStore(disk).open()
    assert caught.value.file == str(LOG)
    assert "storePathCommitLog" in str(caught.value)
    assert derived_files(disk) == before
    assert not disk.exists(ROOT / "abort")


# ---- any other end -------------------------------------------------------------------------------


@pytest.mark.spec("store.12.21")
@pytest.mark.parametrize("entries", ["synced", "written", "lost"])
@pytest.mark.parametrize("index_later", [False, True])
def test_after_a_kill_the_scan_starts_at_the_checkpoint(entries: str, index_later: bool) -> None:
    store = new_store()
    put_some(store)
    store.flush_log()
    if entries == "synced":
        store.flush_views()
    elif entries == "written":
        store.write_views()
    after = CrashStore(disk_of(store).kill())
    report = after.open(index_later=index_later)
    # The last message was stored 3 s and more after the first ones of this file.
    expected = next(
        file.start_offset
        for file in reversed(store.log_files.files)
        if record_time(store, file.start_offset) <= store.ticks.ms - 3_000
    )
    assert report.scan_start == (expected if entries == "synced" else 0)
    assert expected > 0
    assert not report.clean
    assert not report.derived_files_rebuilt
    assert report.log_end == store.log.max_offset
    counts = {queue.queue_id: queue.max_offset for queue in after.queues}
    assert counts == {0: 50, 1: 50, 2: 50}
    assert report.replayed_records == report.scanned_records
    assert report.repeated_records == 0
    if index_later:
        assert report.index_behind_from is not None
        after.catch_up()
    assert_complete(after)


@pytest.mark.parametrize(
    ("checkpoint", "scan_file"),
    [
        ({}, 3),
        ({"physic_msg_timestamp": 0}, 0),
        ({"logics_msg_timestamp": 0}, 0),
        ({"logics_msg_timestamp": START_MS + 7_100}, 1),
        ({"physic_msg_timestamp": START_MS + 3_000 + 3_200}, 1),
        ({"physic_msg_timestamp": START_MS + 3_000 + 3_199}, 0),
        ({"logics_physical_offset": 2 * LOG_FILE_SIZE}, 2),
        ({"logics_physical_offset": 2 * LOG_FILE_SIZE - 1}, 1),
        ({"logics_physical_offset": 0}, 3),  # a checkpoint of 4.x has none
        ({"logics_physical_offset": 1 << 40}, 3),
    ],
)
def test_what_the_checkpoint_covers(checkpoint: dict[str, int], scan_file: int) -> None:
    store = new_store()
    put_some(store)
    store.flush_log()
    store.flush_views()
    for name, value in checkpoint.items():
        setattr(store.checkpoint, name, value)
    store.checkpoint.save()
    assert record_time(store, LOG_FILE_SIZE) == START_MS + 3_200
    after, report = reopened(store)
    assert report.scan_start == scan_file * LOG_FILE_SIZE
    assert_complete(after)


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 4096, b"\1" * 20])
def test_without_a_checkpoint_everything_is_read(content: bytes | None) -> None:
    store = new_store()
    put_some(store)
    store.flush_log()
    store.flush_views()
    disk = disk_of(store).kill()
    if content is None:
        disk.remove(ROOT / "checkpoint")
    else:
        disk.install(ROOT / "checkpoint", content)
    after = CrashStore(disk)
    report = after.open()
    assert (report.scan_start, report.scanned_records) == (0, MESSAGES)
    assert_complete(after)


def test_a_clock_that_was_set_back_does_not_hide_unsynced_entries() -> None:
    store = new_store()
    put_some(store, 40)
    store.flush_log()
    store.flush_views()
    store.ticks.ms -= 3_600_000
    put_some(store, MESSAGES - 40, first=40)
    after, report = reopened(store)
    assert report.scan_start == 0
    assert_complete(after)


def test_a_safe_index_is_read_from_farther_back() -> None:
    store = new_store()
    put_some(store)
    store.flush_log()
    store.checkpoint.index_msg_timestamp = START_MS + 3_200
    store.flush_views()
    after, report = reopened(store, message_index_safe=True)
    assert report.scan_start == LOG_FILE_SIZE
    assert_complete(after)


def test_a_long_scan_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    put_some(store)
    after, report = reopened(store, commit_log_recover_max_num=3)
    assert report.scan_start == 0
    assert "recovery reads 5 files of the log, from 0 on" in caplog.text
    assert_complete(after)


def test_queues_that_end_before_the_checkpoint_are_made_again() -> None:
    """Somebody deleted files of them: the checkpoint does not know."""
    store = new_store()
    put_some(store)
    store.flush_log()
    store.flush_views()
    disk = disk_of(store).kill()
    for queue_id in range(3):
        first = disk.read_file(ROOT / f"consumequeue/T/{queue_id}/{0:020d}")
        disk.install(
            ROOT / f"consumequeue/T/{queue_id}/{0:020d}", first[: 15 * 20].ljust(1200, b"\0")
        )
    after = CrashStore(disk)
    report = after.open()
    assert report.derived_files_rebuilt
    assert report.scan_start == LOG_FILE_SIZE
    assert after.checkpoint.logics_physical_offset == LOG_FILE_SIZE
    assert_complete(after)
    again, second = reopened(after)
    assert second.scan_start == LOG_FILE_SIZE
    assert again.messages()["T", 1] == bodies(range(MESSAGES))["T", 1]


def test_entries_of_an_index_that_ends_before_the_scan_are_made_again() -> None:
    store = new_store()
    put_some(store)
    store.flush_log()
    store.flush_views()
    disk = disk_of(store).kill()
    files = disk.list_directory(ROOT / "index")
    for entry in files[1:]:
        disk.remove(ROOT / "index" / entry.name)
    after = CrashStore(disk)
    report = after.open()
    assert report.scan_start == 3 * LOG_FILE_SIZE
    assert report.index_behind_from is None
    assert_complete(after)


def test_an_index_left_behind_goes_on_after_the_next_start() -> None:
    store = new_store()
    put_some(store)
    disk = disk_of(store).kill()
    second = CrashStore(disk)
    assert second.open(index_later=True).index_behind_from == 0
    second.close()
    third = CrashStore(disk)
    report = third.open(index_later=True)
    assert (report.clean, report.index_behind_from) == (True, 0)
    assert third.catch_up(5_000) > 3
    assert_complete(third)


def test_without_an_index() -> None:
    store = new_store(message_index_enable=False)
    put_some(store)
    after, report = reopened(store, message_index_enable=False)
    assert report.index_behind_from is None
    assert after.messages() == bodies(range(MESSAGES))


@pytest.mark.spec("store.12.32")
def test_a_log_that_does_not_begin_at_zero() -> None:
    store = new_store()
    put_some(store)
    store.flush_log()
    store.flush_views()
    store.log_files.retire_oldest(0.0)
    store.log_files.retire_oldest(0.0)
    after, report = reopened(store)
    assert after.log.min_offset == 2 * LOG_FILE_SIZE
    first = min(n for n in range(MESSAGES) if offset_of(store, n) >= 2 * LOG_FILE_SIZE)
    queue = after.queues.get("T", first % 3)
    assert isinstance(queue, ConsumeQueue)
    assert (queue.min_offset, queue.max_offset) == (first // 3, 50)
    assert report.scan_start == 3 * LOG_FILE_SIZE
    disk = disk_of(after)
    remove_tree(disk, ROOT / "consumequeue")
    again = CrashStore(disk.kill())
    report = again.open()
    assert (report.scan_start, report.derived_files_rebuilt) == (2 * LOG_FILE_SIZE, True)
    numbers = range(first, MESSAGES)
    assert again.messages() == bodies(numbers)


# ---- interruptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("case", ["killed", "killed without queues", "clean without queues"])
def test_a_recovery_may_be_interrupted_at_any_line(case: str, power_loss: bool) -> None:
    """Stop at every operation on the disk in turn: the next recovery ends where this one would."""
    store = new_store()
    put_some(store, 45)
    store.flush_log()
    if not case.startswith("killed without"):
        store.flush_views()
    put_some(store, 15, first=45)
    store.flush_log()
    if case.startswith("clean"):
        store.close()
    else:
        store.write_views()
    source = disk_of(store).kill()
    if case.endswith("without queues"):
        remove_tree(source, ROOT / "consumequeue")
    for nth in itertools.count(1):
        disk = source.kill()
        disk.plan = FaultPlan(nth).at("files.*", nth=nth, action=FaultAction.CUT)
        interrupted = CrashStore(disk, consume_queue_tail_size_max=60, consume_queue_recent_size=0)
        try:
            interrupted.open()
        except StoreError:
            assert not disk.alive
        else:
            break
        disk = disk.power_loss() if power_loss else disk.kill()
        disk.plan = FaultPlan(nth)
        after = CrashStore(disk)
        report = after.open()
        assert report.scanned_records >= 15, nth
        assert_complete(after, range(60))
    assert nth > 40


# ---- telling -------------------------------------------------------------------------------------


def test_progress_and_durations() -> None:
    store = new_store()
    put_some(store)
    seen: list[tuple[int, int]] = []
    after = CrashStore(disk_of(store).kill())

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        after.ticks.ms += 500

    report = after.open(progress=progress)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    size = len(store.log_files.files) * LOG_FILE_SIZE
    assert {total for _, total in seen[:-1]} == {size}
    assert seen[-1] == (report.scanned_bytes, report.scanned_bytes)
    assert (report.load_s, report.scan_s) == (0.0, 0.5 * (len(seen) - 1))
    assert report.total_s == 0.5 * len(seen)
    assert len(seen) == 5 + 1
