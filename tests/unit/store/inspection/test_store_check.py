"""The checker: sound stores are clean, and damage to log and files is found and named.

The stores are those of a real Java broker (``tests/golden/data``) and small ones made by ours. What
can be wrong with queues and index is in ``inspection/``.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from random import Random

import pytest

from skylark.store.errors import StoreFileMissingError
from skylark.store.files import OsFileSystem
from skylark.store.inspection.check_findings import FINDINGS_PER_KIND_MAX
from skylark.store.inspection.store_directory import FileSizes, IndexShape, NotAStoreError, State
from skylark.wire.message import MessageRecord, iter_records
from tests.unit.store.inspection.damage import (
    ERROR,
    GOLDEN,
    LOG_END,
    LOG_FILES,
    NOTE,
    QUEUE,
    SECOND_QUEUE_FILE,
    WARNING,
    check,
    digest,
    flip,
    found,
    kinds,
    own_store,
    patch,
    records,
    text_of,
)

# Numbers that break arithmetic, and bytes that look like the beginning of a record.
EXTREMES = [
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + bytes(7),
    bytes(8),
    b"\0\0\0\x7f\xda\xa3\x20\xa7",
]


@pytest.fixture
def basic(tmp_path: Path) -> Path:
    """A copy of the store that a Java broker closed in order."""
    return Path(shutil.copytree(GOLDEN / "store-basic", tmp_path / "store"))


# ---- sound stores ------------------------------------------------------------------------------


def test_a_store_of_java_is_clean_and_all_of_it_was_checked(basic: Path) -> None:
    before = digest(basic)
    report = check(basic)
    assert report.findings == []
    assert report.is_clean
    assert report.state is State.CLOSED
    assert (report.log_start, report.log_end, report.log_files) == (0, LOG_END, 4)
    assert (report.records, report.queues, report.queue_entries) == (433, 19, 433)
    assert (report.index_files, report.index_entries) == (4, 1316)
    assert (report.log_file_size, report.index_shape) == (32768, IndexShape(100, 400))
    assert digest(basic) == before


def test_a_crashed_store_of_java_needs_a_start_and_nothing_else() -> None:
    report = check(GOLDEN / "store-crashed")
    assert found(report) == [
        (WARNING, "store.crashed", "abort", 0),
        (NOTE, "log.spare", "commitlog/00000000000000163840", 163840),
    ]
    assert "by process 27005" in text_of(report, "store.crashed")
    assert (report.state, report.records, report.log_end) == (State.CRASHED, 449, 144910)
    assert not report.is_clean


def test_a_torn_store_of_java_is_described() -> None:
    report = check(GOLDEN / "store-torn")
    assert (report.records, report.log_end) == (443, 142909)
    assert (report.errors, report.warnings, report.notes) == (0, 8, 1)
    assert text_of(report, "log.end") == (
        "the log ends at 142909, and queues have entries up to 144910: the sum of the parts is "
        "not the total size"
    )
    extra = [it for it in report.findings if it.kind == "queue.extra"]
    assert len(extra) == 5
    assert extra[-1].text == (
        "entries 148 to 149 point to 143240, beyond the end of the log at 142909"
    )
    assert text_of(report, "index.extra").startswith("entries 133 to 150 point to 142909, beyond")


def test_progress_goes_from_nothing_to_all(basic: Path) -> None:
    calls: list[tuple[int, int]] = []
    check(basic, progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1] == (4 * 32768, 4 * 32768)
    assert len(calls) >= 4


def test_no_such_directory_and_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreFileMissingError):
        check(tmp_path / "absent")
    with pytest.raises(NotAStoreError, match="is not a store"):
        check(tmp_path)
    (tmp_path / "commitlog").mkdir()
    report = check(tmp_path)
    assert (report.findings, report.records, report.log_end) == ([], 0, 0)


def test_a_directory_inside_a_store_is_named_for_what_it_is(basic: Path) -> None:
    with pytest.raises(NotAStoreError, match="name the directory above it"):
        check(basic / "commitlog")


# ---- state -------------------------------------------------------------------------------------


def test_the_mark_of_an_open_store_is_a_warning(basic: Path) -> None:
    (basic / "abort").write_bytes(b"4711")
    report = check(basic)
    assert found(report) == [(WARNING, "store.crashed", "abort", 0)]


def test_a_store_in_use_is_only_noted(basic: Path) -> None:
    files = OsFileSystem()
    lock = files.lock(basic / "lock")
    try:
        report = check(basic, files=files)
        assert found(report) == [(NOTE, "store.in-use", "lock", 0)]
        assert report.is_clean
        # a queue that lags is no finding there: its last entries are still in memory
        patch(basic / SECOND_QUEUE_FILE, 20, bytes(6000 - 20))
        assert kinds(check(basic)) == {(NOTE, "store.in-use"), (NOTE, "queue.missing")}
    finally:
        lock.release()
    assert check(basic).state is State.CLOSED


# ---- files -------------------------------------------------------------------------------------


def test_files_that_do_not_fit(basic: Path) -> None:
    (basic / LOG_FILES[1]).unlink()
    (basic / "commitlog/00000000000000131072").touch()
    with (basic / QUEUE).open("ab") as file:
        file.write(b"x")
    (basic / "index/20991231235959999").write_bytes(bytes(100))
    report = check(basic)
    assert found(report)[:4] == [
        (ERROR, "file.misfit", LOG_FILES[1], 32768),
        (NOTE, "file.misfit", "commitlog/00000000000000131072", 0),
        (ERROR, "file.misfit", QUEUE, 0),
        (ERROR, "file.misfit", "index/20991231235959999", 0),
    ]
    texts = [it.text for it in report.findings[:4]]
    assert texts == [
        "the files from 32768 to 65536 are missing",
        "the file is empty, left by an interrupted creation",
        "a queue file of 6001 bytes where files have 6000",
        "an index file of 100 bytes where files have 8440",
    ]


def test_a_wrong_size_is_a_misfit_of_every_file(basic: Path) -> None:
    report = check(basic, sizes=FileSizes(log=65536))
    assert {it.text for it in report.findings if it.kind == "file.misfit"} == {
        "the file has 32768 bytes, and mappedFileSizeCommitLog is 65536"
    }


def test_a_queue_file_that_is_missing(basic: Path) -> None:
    (basic / QUEUE).unlink()
    report = check(basic)
    assert found(report) == [(ERROR, "queue.missing", "consumequeue/GoldenB/0", 0)]
    assert "entries 0 to 299 missing" in report.findings[0].text


# ---- the log -----------------------------------------------------------------------------------


def damage(basic: Path, number: int, position: int, content: bytes | None = None) -> int:
    """Change a byte of the middle record of a log file; the record's offset."""
    path = basic / LOG_FILES[number]
    record = records(path)[len(records(path)) // 2]
    within = record.log_offset % 32768 + position
    if content is None:
        flip(path, within)
    else:
        patch(path, within, content)
    return record.log_offset


@pytest.mark.parametrize(
    ("position", "content", "fault"),
    [
        (88, None, "the body does not match its checksum"),
        (4, b"\0", "no known magic code"),
        (0, b"\0\0\0\x10", "impossible total size"),
        (35, b"\x01", "the record belongs to another offset"),
        (84, b"\0\0\0\x01", "the sum of the parts is not the total size"),
        (0, bytes(100), "zeros: nothing was written here"),
    ],
)
def test_a_damaged_record_is_skipped_and_its_entries_are_reported(
    basic: Path, position: int, content: bytes | None, fault: str
) -> None:
    log_offset = damage(basic, 1, position, content)
    report = check(basic)
    holes = [it for it in report.findings if it.kind == "log.hole"]
    assert len(holes) == 1
    assert (holes[0].severity, holes[0].offset) == (ERROR, log_offset)
    assert holes[0].file == basic / LOG_FILES[1]
    assert holes[0].text.startswith(f"no record at {log_offset}, {fault}; ")
    assert holes[0].text.endswith("bytes up to the next record are lost")
    assert report.records == 432
    assert report.log_end == LOG_END
    assert kinds(report) == {
        (ERROR, "log.hole"),
        (ERROR, "queue.order"),
        (ERROR, "queue.extra"),
        (ERROR, "index.extra"),
    }
    extra = text_of(report, "queue.extra")
    assert f"points to {log_offset}, where no valid record of this queue begins" in extra


def test_the_rest_of_a_file_that_is_lost(basic: Path) -> None:
    path = basic / LOG_FILES[0]
    start = records(path)[-3].log_offset
    patch(path, start, bytes(32768 - start))
    report = check(basic)
    assert f"{32768 - start} bytes to the end of the file are lost" in text_of(report, "log.hole")
    assert report.records == 430
    assert report.log_end == LOG_END


def test_a_damaged_last_record_is_an_error_only_if_it_was_known(basic: Path) -> None:
    path = basic / LOG_FILES[3]
    last = max(records_of_last_file(path), key=lambda record: record.log_offset)
    flip(path, last.log_offset - 98304 + 90)
    report = check(basic)
    assert (ERROR, "log.end") in kinds(report)
    assert report.log_end == last.log_offset
    (basic / "abort").touch()
    assert (WARNING, "log.end") in kinds(check(basic))


def records_of_last_file(path: Path) -> list[MessageRecord]:
    return list(iter_records(path.read_bytes()[: LOG_END - 98304]))


def test_old_bytes_behind_the_end_are_noted(basic: Path) -> None:
    """Java does not clear what it cuts off: even a sound old record may stand there."""
    path = basic / LOG_FILES[3]
    patch(path, LOG_END - 98304 + 1000, b"old")
    report = check(basic)
    assert found(report) == [(NOTE, "log.remnant", LOG_FILES[3], LOG_END)]
    assert report.findings[0].text == f"old bytes beyond the end of the log, up to {LOG_END + 1003}"
    first = records(basic / LOG_FILES[0])[0]
    raw = bytearray((basic / LOG_FILES[0]).read_bytes()[: first.total_size])
    raw[28:36] = struct.pack(">q", LOG_END + 500)
    patch(path, LOG_END - 98304 + 500, bytes(raw))
    report = check(basic)
    assert found(report) == [(NOTE, "log.remnant", LOG_FILES[3], LOG_END)]
    assert report.records == 433
    (basic / "abort").touch()
    assert (WARNING, "log.end") in kinds(check(basic))


def test_a_file_behind_the_end(basic: Path) -> None:
    spare = basic / "commitlog/00000000000000131072"
    spare.write_bytes(bytes(32768))
    assert found(check(basic)) == [
        (NOTE, "log.spare", "commitlog/00000000000000131072", 131072),
    ]
    patch(spare, 100, b"garbage")
    report = check(basic)
    assert found(report) == [(ERROR, "log.behind", "commitlog/00000000000000131072", 131072)]


def test_a_blank_of_the_wrong_size(basic: Path) -> None:
    path = basic / LOG_FILES[0]
    last = records(path)[-1]
    end = last.log_offset + last.total_size
    patch(path, end, struct.pack(">i", 32768 - end - 8))
    report = check(basic)
    assert found(report) == [(ERROR, "log.blank", LOG_FILES[0], end)]
    assert report.records == 433


def test_a_record_that_does_not_match_the_checksum_of_all_its_bytes(tmp_path: Path) -> None:
    store = own_store(tmp_path, enabled_append_prop_crc=True)
    for number in range(3):
        log_offset = store.put("T", 0, b"body %d" % number, {"KEYS": "k"})
    store.close()
    assert check(store.root).findings == []
    flip(store.root / "commitlog/00000000000000000000", log_offset + 19)  # FLAG
    report = check(store.root)
    assert found(report) == [(ERROR, "log.checksum", "commitlog/00000000000000000000", log_offset)]


# ---- the checkpoint ----------------------------------------------------------------------------


def test_no_checkpoint(basic: Path) -> None:
    (basic / "checkpoint").unlink()
    assert found(check(basic)) == [(NOTE, "checkpoint.missing", "checkpoint", 0)]


@pytest.mark.parametrize(
    ("position", "value", "kind"),
    [
        (0, -1, "checkpoint.bad"),
        (16, 1 << 50, "checkpoint.bad"),
        (32, -5, "checkpoint.bad"),
        (0, 1 << 42, "checkpoint.ahead"),
        (8, 1 << 42, "checkpoint.ahead"),
        (40, LOG_END + 1, "checkpoint.ahead"),
    ],
)
def test_a_checkpoint_that_makes_no_sense(
    basic: Path, position: int, value: int, kind: str
) -> None:
    patch(basic / "checkpoint", position, struct.pack(">q", value))
    report = check(basic)
    severity = WARNING if kind == "checkpoint.bad" else ERROR
    assert found(report) == [(severity, kind, "checkpoint", position)]


def test_a_checkpoint_that_is_too_short(basic: Path) -> None:
    (basic / "checkpoint").write_bytes(b"short")
    report = check(basic)
    assert found(report) == [(WARNING, "checkpoint.bad", "checkpoint", 0)]
    assert report.findings[0].text == "5 bytes where 4096 should be"


# ---- limits ------------------------------------------------------------------------------------


def test_findings_of_a_kind_are_limited(tmp_path: Path) -> None:
    store = own_store(tmp_path)
    for number in range(2 * FINDINGS_PER_KIND_MAX + 40):
        store.put("T", 0, b"%d" % number)
    store.close()
    for path in (store.root / "consumequeue/T/0").iterdir():
        content = bytearray(path.read_bytes())
        for position in range(0, len(content), 40):  # every other one
            content[position + 19] ^= 1
        path.write_bytes(content)
    report = check(store.root)
    wrong = [it for it in report.findings if it.kind == "queue.wrong"]
    assert len(wrong) == FINDINGS_PER_KIND_MAX
    assert report.left_out == {"queue.wrong": 20}
    assert report.errors == FINDINGS_PER_KIND_MAX + 20


@pytest.mark.parametrize("seed", range(25))
def test_a_check_of_random_files_ends_with_a_report(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    name = random.choice(["store-basic", "store-crashed", "store-torn"])
    root = Path(shutil.copytree(GOLDEN / name, tmp_path / "store"))
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    for path in random.choices(paths, k=4):
        content = bytearray(path.read_bytes())
        for _ in range(random.choice([1, 5, 50])):
            position = random.randrange(len(content) + 1)
            content[position : position + 8] = random.choice(EXTREMES)
        path.write_bytes(content[: random.choice([len(content), len(content) // 2])])
    report = check(root)
    assert report.records <= 449
    assert report.is_clean == (report.errors + report.warnings == 0)
