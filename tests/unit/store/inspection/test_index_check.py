"""The index against the log: each way in which an entry can be wrong is found and named."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from skylark.store.inspection.store_directory import FileSizes, IndexShape
from skylark.wire.layout import INDEX_ENTRY, INDEX_HEADER
from tests.unit.store.inspection.damage import (
    ENTRIES_START,
    ERROR,
    NOTE,
    SLOTS,
    WARNING,
    check,
    found,
    kinds,
    own_store,
    patch,
    text_of,
)


def patch_entry(path: Path, number: int, field: int, change: int) -> int:
    """Add to a field of an index entry; where it stands."""
    position = ENTRIES_START + 20 * number
    entry = list(INDEX_ENTRY.unpack_from(path.read_bytes(), position))
    entry[field] += change
    patch(path, position, INDEX_ENTRY.pack(*entry))
    return position


def test_a_wrong_key_hash(basic: Path, index_files: list[Path]) -> None:
    patch_entry(index_files[0], 50, 0, SLOTS)  # the slot stays the same
    report = check(basic)
    assert kinds(report) == {(ERROR, "index.wrong")}
    assert "are not those of its keys" in report.findings[0].text


def test_an_entry_that_points_to_another_record(basic: Path, index_files: list[Path]) -> None:
    patch_entry(index_files[1], 50, 1, 1)  # the first of a record
    report = check(basic)
    assert kinds(report) == {(ERROR, "index.extra"), (WARNING, "index.missing")}
    assert text_of(report, "index.extra").endswith("where no valid record with a key begins")
    assert text_of(report, "index.missing").startswith("the keys of 1 record from ")


def test_a_wrong_time(basic: Path, index_files: list[Path]) -> None:
    position = patch_entry(index_files[0], 50, 2, 3)
    report = check(basic)
    assert found(report) == [(ERROR, "index.time", f"index/{index_files[0].name}", position)]


def test_broken_chains(basic: Path, index_files: list[Path]) -> None:
    path = index_files[2]
    content = path.read_bytes()
    linked = [
        number
        for number in range(2, 399)
        if INDEX_ENTRY.unpack_from(content, ENTRIES_START + 20 * number)[3] > 1
    ]
    position = patch_entry(path, linked[-1], 3, -1)
    report = check(basic)
    assert found(report) == [(ERROR, "index.chain", f"index/{path.name}", position)]
    patch_entry(path, linked[-2], 3, -1)
    report = check(basic)
    assert [it.text for it in report.findings][-1] == "2 entries in all point to a wrong one"


def test_a_slot_that_points_to_a_wrong_entry(basic: Path, index_files: list[Path]) -> None:
    path = index_files[2]
    patch(path, 40, struct.pack(">i", 1))
    report = check(basic)
    assert found(report) == [(ERROR, "index.chain", f"index/{path.name}", 40)]
    patch(path, 40, struct.pack(">i", 399 + 5))
    report = check(basic)
    assert report.findings[0].text == "1 slot with entries that the header does not count"


@pytest.mark.parametrize(
    ("field", "position", "text"),
    [
        (0, 0, "the header begins at "),
        (1, 8, "the header ends at "),
        (2, 16, "the header has the first log offset "),
        (3, 24, "the header has the last log offset "),
        (4, 32, "the header has the number of slots in use "),
    ],
)
def test_a_wrong_header(
    basic: Path, index_files: list[Path], field: int, position: int, text: str
) -> None:
    path = index_files[1]
    header = list(INDEX_HEADER.unpack_from(path.read_bytes()))
    header[field] += 100
    patch(path, 0, INDEX_HEADER.pack(*header))
    report = check(basic)
    assert found(report) == [(ERROR, "index.header", f"index/{path.name}", position)]
    assert report.findings[0].text.startswith(text)


def test_keys_that_are_not_in_the_index(basic: Path, index_files: list[Path]) -> None:
    """As after a crash of Java's: no message is lost, but queries miss some."""
    index_files[1].unlink()
    report = check(basic)
    assert {severity for severity, _ in kinds(report)} == {WARNING, ERROR}
    missing = [it for it in report.findings if it.kind == "index.missing"]
    assert missing[0].severity is WARNING
    assert missing[0].text.startswith("the keys of ")
    index_files[0].unlink()
    for path in index_files[2:]:
        path.unlink()
    report = check(basic)
    assert (report.findings, report.index_files) == ([], 0)


def test_an_index_that_ends_too_early(basic: Path, index_files: list[Path]) -> None:
    index_files[3].unlink()
    report = check(basic)
    (missing,) = [it for it in report.findings if it.kind == "index.missing"]
    assert (missing.severity, missing.file) == (WARNING, basic / "index")


@pytest.mark.parametrize(("before", "repeated"), [(b"a5 b5", 2), (b"a5", 1)])
def test_entries_that_repeat_the_last_record_are_noted(
    tmp_path: Path, before: bytes, repeated: int
) -> None:
    """Java makes them: its replay comes to a record that has all of its entries, or some."""
    store = own_store(tmp_path)
    for number in range(5):
        store.put("T", 0, b"body", {"KEYS": f"a{number} b{number}"})
    index, log_offset = store.index, store.log_files.wrote_end
    assert index is not None
    index.mark_behind(log_offset)
    index.replay_record("T", log_offset, store.time.now_ms(), None, before, None)
    index.caught_up()
    index._next_offset = log_offset  # as Java, which compares with the last record itself
    assert store.put("T", 0, b"body", {"KEYS": "a5 b5"}) == log_offset
    store.put("T", 0, b"body", {"KEYS": "a6"})
    store.close()
    report = check(store.root)
    assert kinds(report) == {(NOTE, "index.repeated")}
    assert report.findings[0].text == f"index entries that repeat others: {repeated}"


def test_an_index_that_is_known_to_be_behind(tmp_path: Path) -> None:
    store = own_store(tmp_path)
    offsets = [store.put("T", 0, b"body", {"KEYS": f"k{number}"}) for number in range(5)]
    assert store.index is not None
    store.index.mark_behind(store.log_files.wrote_end)
    store.put("T", 0, b"body", {"KEYS": "k5"})
    store.close()
    report = check(store.root)
    assert found(report) == [(NOTE, "index.behind", "index/behind", 0)]
    assert report.index_entries == len(offsets)


def test_an_index_of_another_shape(tmp_path: Path) -> None:
    store = own_store(tmp_path, max_hash_slot_num=37, max_index_num=61)
    for number in range(40):
        store.put("T", 0, b"body", {"KEYS": f"k{number}", "TAGS": "A"})
    store.close()
    report = check(store.root)
    assert (report.findings, report.index_shape) == ([], IndexShape(37, 61))
    assert check(store.root, sizes=FileSizes(index_slots=37, index_entries=61)).findings == []
    report = check(store.root, sizes=FileSizes(index_slots=42, index_entries=60))
    assert (ERROR, "index.chain") in kinds(report)


def test_an_index_file_of_unknown_shape(tmp_path: Path) -> None:
    store = own_store(tmp_path, max_hash_slot_num=37, max_index_num=61)
    store.put("T", 0, b"body", {"KEYS": "k"})  # at log offset 0, as all that is not used
    store.close()
    report = check(store.root)
    assert kinds(report) == {(NOTE, "index.shape")}
    assert report.is_clean
