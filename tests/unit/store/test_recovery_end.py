"""Where recovery finds the end of the log, and what it refuses to take for one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skylark.core.errors import CorruptLogError
from skylark.store.checkpoint import Checkpoint
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileHandle
from skylark.wire.layout import BLANK_RECORD
from skylark.wire.message import RecordFault
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
    disk_of,
    log_file,
    new_store,
    offset_of,
    overwrite,
    put_some,
    remove_tree,
    reopened,
    state,
)

# ---- where the log ends --------------------------------------------------------------------------


@pytest.mark.spec("store.12.22")
@pytest.mark.parametrize("clean", [False, True])
def test_half_a_record_is_cut_at_its_start(clean: bool) -> None:
    store = new_store()
    put_some(store)
    last = offset_of(store, MESSAGES - 1)
    if clean:
        store.close()
    else:
        store.write_views()
    disk = disk_of(store).kill()
    overwrite(disk, last + 120, bytes(LOG_FILE_SIZE - (last + 120) % LOG_FILE_SIZE))
    after = CrashStore(disk)
    report = after.open()
    assert (report.clean, report.log_end) == (clean, last)
    assert report.fault is RecordFault.BAD_LENGTHS
    assert report.fault_file == log_file(last // LOG_FILE_SIZE)
    assert report.truncated_bytes == 120
    content = disk.read_file(log_file(last // LOG_FILE_SIZE))
    assert not any(content[last % LOG_FILE_SIZE :])
    assert after.put("T", (MESSAGES - 1) % 3, b"again") == last
    assert after.messages()["T", 2] == [*bodies(range(MESSAGES - 1))["T", 2], b"again"]
    assert after.keys("T", f"k{MESSAGES - 1}") == []


@pytest.mark.spec("store.12.23")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("check", [True, False])
def test_a_flipped_byte_in_the_last_body(clean: bool, check: bool) -> None:
    store = new_store()
    put_some(store)
    last = offset_of(store, MESSAGES - 1)
    end = store.log.max_offset
    if clean:
        store.close()
    disk = disk_of(store).kill()
    overwrite(disk, last + 100, b"!")
    after = CrashStore(disk, check_crc_on_recover=check)
    report = after.open()
    assert report.log_end == (last if check else end)
    fault = RecordFault.BAD_BODY_CRC if check else RecordFault.UNWRITTEN
    assert (report.fault, report.clean) == (fault, clean)
    assert sum(map(len, after.messages().values())) == MESSAGES - check


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.spec("store.12.3")
def test_a_flipped_byte_in_the_topic_is_seen_by_the_property_checksum(forced: bool) -> None:
    store = new_store(enabled_append_prop_crc=True)
    put_some(store, 10)
    last = offset_of(store, 9)
    disk = disk_of(store).kill()
    size = store.log.max_offset - last
    content = disk.read_file(log_file(0))
    topic_at = content.index(b"\x01T\x00", last + 88 + len(BODY))
    assert topic_at < last + size
    overwrite(disk, topic_at + 1, b"U")
    after = CrashStore(disk, enabled_append_prop_crc=True, force_verify_prop_crc=forced)
    report = after.open()
    assert report.log_end == (last if forced else last + size)
    assert (report.fault is RecordFault.BAD_PROPERTY_CRC) == forced
    assert (("U", 0) in after.messages()) == (not forced)


def test_a_record_of_another_place_ends_the_log() -> None:
    store = new_store()
    put_some(store, 10)
    second, third = offset_of(store, 1), offset_of(store, 2)
    disk = disk_of(store).kill()
    end = store.log.max_offset
    record = disk.read_file(log_file(0))[second:third]
    overwrite(disk, end, record)
    after = CrashStore(disk)
    report = after.open()
    assert (report.log_end, report.fault) == (end, RecordFault.BAD_LOG_OFFSET)
    assert report.truncated_bytes == len(record)
    assert_complete(after, range(10))


@pytest.mark.spec("store.12.25")
def test_files_made_ahead_of_time_are_removed() -> None:
    store = new_store()
    put_some(store)
    count = len(store.log_files.files)
    disk = disk_of(store).kill()
    disk.install(log_file(count), bytes(LOG_FILE_SIZE))
    disk.install(log_file(count + 1), b"")
    after = CrashStore(disk)
    report = after.open()
    assert report.truncated_bytes == 0
    assert [entry.name for entry in disk.list_directory(LOG)] == [
        log_file(number).name for number in range(count)
    ]
    assert_complete(after)


@pytest.mark.spec("store.12.25")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("size", [0, 1, LOG_FILE_SIZE - 1, LOG_FILE_SIZE + 1])
def test_a_file_of_the_wrong_length_stops_the_start(clean: bool, size: int) -> None:
    store = new_store()
    put_some(store)
    store.write_views()
    if clean:
        store.close()
    disk = disk_of(store).kill()
    disk.install(log_file(1), bytes(size))
    before = state(disk)
    with pytest.raises(CorruptLogError, match=f"the file has {size} bytes") as caught:
        CrashStore(disk).open()
    assert (caught.value.file, caught.value.offset) == (str(log_file(1)), LOG_FILE_SIZE)
    assert "restore the file" in str(caught.value)
    assert state(disk) == before


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("number", [1, 4])
def test_an_unreadable_file_stops_the_start(
    clean: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()
    put_some(store)
    if clean:
        store.close()
    disk = disk_of(store).kill()
    if clean:
        remove_tree(disk, ROOT / "consumequeue")  # so that all files are read
    before = state(disk)
    open_file = disk.open_file

    def refuse_one(path: Path, *, writable: bool = True) -> FileHandle:
        if path == log_file(number):
            raise StoreFileError("cannot open: Permission denied", path=path, errno=errno.EACCES)
        return open_file(path, writable=writable)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "open_file", refuse_one)
        with pytest.raises(CorruptLogError, match="make the file readable") as caught:
            CrashStore(disk).open()
    assert (caught.value.file, caught.value.offset) == (
        str(log_file(number)),
        number * LOG_FILE_SIZE,
    )
    assert "Permission denied" in str(caught.value)
    after = state(disk)
    assert {name: after[name] for name in before if name.isdigit()} == {
        name: before[name] for name in before if name.isdigit()
    }
    healed = CrashStore(disk.kill())
    healed.open()
    assert_complete(healed)


def test_the_last_blank_is_kept_when_there_is_no_file_behind_it() -> None:
    """Java writes the blank before it has the next file; a slave may have copied it already."""
    store = new_store()
    put_some(store, 10)
    end = store.log.max_offset
    disk = disk_of(store).kill()
    overwrite(disk, end, BLANK_RECORD.pack(LOG_FILE_SIZE - end, -875286124))
    after = CrashStore(disk)
    report = after.open()
    assert (report.log_end, report.fault) == (LOG_FILE_SIZE, None)
    assert after.log.max_offset == LOG_FILE_SIZE
    assert after.put("T", 0, b"next") == LOG_FILE_SIZE


def test_a_kill_between_the_blank_and_the_first_record_of_the_next_file() -> None:
    store = new_store()
    put_some(store, 31)
    store.put("T", 0, b"x" * (LOG_FILE_SIZE - 100))
    start = store.log_files.last.start_offset
    disk = disk_of(store).kill()
    overwrite(disk, start, bytes(LOG_FILE_SIZE))
    after = CrashStore(disk)
    report = after.open()
    assert (report.log_end, report.fault) == (start, RecordFault.UNWRITTEN)
    assert after.log.last_store_timestamp == START_MS + 3_100
    assert_complete(after, range(31))


def test_a_checkpoint_does_not_cover_truncated_records() -> None:
    """Others get their offsets, and with a clock that was set back they look older, too."""
    store = new_store()
    put_some(store)
    store.flush_log()
    store.flush_views()
    cut = offset_of(store, 100)
    disk = disk_of(store).kill()
    overwrite(disk, cut, bytes(LOG_FILE_SIZE - cut % LOG_FILE_SIZE))
    disk.remove(log_file(4))
    second = CrashStore(disk)
    assert second.open().log_end == cut
    saved = Checkpoint(disk, ROOT)
    saved.load()
    assert saved.logics_physical_offset == cut
    assert saved.logics_msg_timestamp == saved.physic_msg_timestamp == START_MS + 10_000
    second.ticks.ms = START_MS - 3_600_000
    put_some(second, 50, first=100)
    third, report = reopened(second)
    assert report.scan_start <= cut
    assert_complete(third)


# ---- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["clean", "vouched", "vouched up to it", "recent", "unknown"])
def test_damage_before_sound_files_is_no_torn_end(end: str) -> None:
    """What was on disk cannot have been torn by the crash, and is not given up."""
    store = new_store()
    put_some(store, 50)
    if end == "recent":
        store.flush_log()
        store.flush_views()
    put_some(store, MESSAGES - 50, first=50)
    damaged = offset_of(store, 100)
    if end.startswith("vouched"):
        store.flush_log()
        store.ticks.ms += 10_000
        put_some(store, 10, first=MESSAGES)
        store.flush_log()
        store.flush_views()
        # Up to the record itself: it need not have been on disk, and may be torn.
        store.checkpoint.logics_physical_offset = damaged + (end == "vouched")
        store.checkpoint.save()
    if end == "clean":
        store.close()
    disk = disk_of(store).kill()
    if end == "clean":
        remove_tree(disk, ROOT / "consumequeue")  # so that all files are read
    later = damaged // LOG_FILE_SIZE + 1
    assert any(disk.read_file(log_file(later)))
    overwrite(disk, damaged + 100, b"!")
    before = state(disk)
    after = CrashStore(disk)
    if end in ("vouched up to it", "recent", "unknown"):
        assert after.open().log_end == damaged
        assert not disk.exists(log_file(later))
        assert_complete(after, range(100))
        return
    with pytest.raises(CorruptLogError, match="does not match its checksum") as caught:
        after.open()
    assert (caught.value.file, caught.value.offset) == (str(log_file(later - 1)), damaged)
    assert log_file(later).name in str(caught.value)
    log = {name: content for name, content in state(disk).items() if name.isdigit()}
    assert log == {name: content for name, content in before.items() if name.isdigit()}
