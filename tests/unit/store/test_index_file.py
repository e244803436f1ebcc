"""One index file: where the bytes are, chains, time ranges, and repair after a crash."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.core.hashing import index_key_hash, java_hash
from skylark.store.errors import StoreFullError
from skylark.store.files import OsFileSystem
from skylark.store.index_file import IndexFile, index_file_size
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT

PATH = Path("/20231114221320123")
T0 = 1_700_000_000_000
SLOTS, ENTRIES = 10, 50
ENTRIES_START = 40 + 4 * SLOTS


def new_file(
    disk: FaultyFileSystem | None = None, slots: int = SLOTS, entries: int = ENTRIES
) -> IndexFile:
    file = IndexFile(PATH, slots, entries)
    file.create(disk or FaultyFileSystem())
    return file


def reopened(disk: FaultyFileSystem, slots: int = SLOTS, entries: int = ENTRIES) -> IndexFile:
    file = IndexFile(PATH, slots, entries)
    file.load_header(disk.read_file(PATH)[:40])
    return file


def select(
    file: IndexFile, key_hash: int, begin: int = 0, end: int = 1 << 62, count_max: int = 64
) -> list[int]:
    found: list[int] = []
    file.select(key_hash, begin, end, 1 << 62, count_max, found)
    return found


def forget_time(_: int) -> None:
    return None


@pytest.mark.spec("store.12.16")
def test_bytes_of_a_file_of_the_usual_size(tmp_path: Path) -> None:
    files = OsFileSystem()
    file = IndexFile(tmp_path / "20231114221320123", 5_000_000, 20_000_000)
    file.create(files)
    key_hash = index_key_hash(java_hash("TopicTest#k1"))
    file.put([key_hash], 115, T0 + 123)
    file.close()
    assert key_hash == 2746024
    handle = files.open_file(file.path)
    assert handle.size == 420_000_040
    assert INDEX_SLOT.unpack(handle.read(10984136, 4)) == (1,)
    assert INDEX_ENTRY.unpack(handle.read(20000060, 20)) == (2746024, 115, 0, 0)
    assert INDEX_HEADER.unpack(handle.read(0, 40)) == (T0 + 123, T0 + 123, 115, 115, 1, 2)
    handle.close()
    status = file.path.stat()
    assert 20_000_000 < status.st_blocks * 512 < 21_000_000  # slots, and a piece of the entries


@pytest.mark.spec("store.12.16")
def test_hash_of_the_smallest_integer_is_0() -> None:
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert index_key_hash(java_hash("polygenelubricants")) == 0
    file = new_file()
    file.put([0], 7, T0)
    assert select(file, 0) == [7]


def test_a_new_file_has_an_empty_header() -> None:
    disk = FaultyFileSystem()
    file = new_file(disk)
    file.close()
    content = disk.read_file(PATH)
    assert len(content) == index_file_size(SLOTS, ENTRIES) == 40 + 40 + 1000
    assert INDEX_HEADER.unpack_from(content) == (0, 0, 0, 0, 0, 1)
    assert content[40:] == bytes(1040)


def test_entries_chain_the_keys_of_a_slot() -> None:
    disk = FaultyFileSystem()
    file = new_file(disk)
    file.put([3, 13, 4], 100, T0)  # 3 and 13 share a slot
    file.put([3], 200, T0 + 2_999)
    file.put([23], 300, T0 + 3_000)
    assert (file.next_entry, file.used_slots) == (6, 2)
    assert select(file, 3) == [200, 100]
    assert select(file, 13) == [100]
    assert select(file, 23) == [300]
    assert select(file, 33) == select(file, 5) == []
    file.close()
    content = disk.read_file(PATH)
    assert [INDEX_ENTRY.unpack_from(content, ENTRIES_START + 20 * n) for n in range(7)] == [
        (0, 0, 0, 0),
        (3, 100, 0, 0),
        (13, 100, 0, 1),
        (4, 100, 0, 0),
        (3, 200, 2, 2),
        (23, 300, 3, 4),
        (0, 0, 0, 0),
    ]
    slots = [slot for (slot,) in INDEX_SLOT.iter_unpack(content[40:80])]
    assert slots == [0, 0, 0, 5, 3, 0, 0, 0, 0, 0]
    assert INDEX_HEADER.unpack_from(content) == (T0, T0 + 3_000, 100, 300, 2, 6)


def test_a_file_that_continues_another_counts_its_first_entry_from_there() -> None:
    """Java's way: seconds since the old end, and the new begin only afterwards."""
    disk = FaultyFileSystem()
    file = new_file(disk)
    file.continue_from(T0, 5_000)
    assert (file.begin_offset, file.end_timestamp) == (5_000, T0)
    file.put([1, 2], 6_000, T0 + 10_500)
    assert (file.begin_timestamp, file.begin_offset) == (T0 + 10_500, 6_000)
    file.close()
    content = disk.read_file(PATH)
    assert INDEX_ENTRY.unpack_from(content, ENTRIES_START + 20) == (1, 6_000, 10, 0)
    assert INDEX_ENTRY.unpack_from(content, ENTRIES_START + 40) == (2, 6_000, 0, 0)


@pytest.mark.parametrize(
    ("store_timestamp", "seconds"),
    [(T0 - 5_000, 0), (T0 + 999, 0), (T0 + 1_000, 1), (T0 + (1 << 45), 0x7FFF_FFFF)],
)
def test_seconds_are_kept_within_their_field(store_timestamp: int, seconds: int) -> None:
    disk = FaultyFileSystem()
    file = new_file(disk)
    file.put([1], 100, T0)
    file.put([1], 200, store_timestamp)
    file.close()
    assert INDEX_ENTRY.unpack_from(disk.read_file(PATH), ENTRIES_START + 40)[2] == seconds


def test_a_file_is_full_one_entry_before_its_number() -> None:
    file = new_file(entries=4)
    assert file.reserve(9) == 3
    file.put([1, 2, 3], 100, T0)
    assert file.is_full
    assert file.reserve(1) == 0
    with pytest.raises(AssertionError, match="full"):
        file.put([1], 200, T0)


def test_only_entries_within_the_range_count() -> None:
    file = new_file()
    for second in range(10):
        file.put([1], second, T0 + second * 1000)
    assert select(file, 1, T0 + 3_000, T0 + 6_000) == [6, 5, 4, 3]
    assert select(file, 1, T0 + 3_001, T0 + 6_999) == [6, 5, 4]
    assert select(file, 1, 0, T0 - 1) == []
    assert select(file, 1, T0 + 9_001) == []
    assert select(file, 1, count_max=3) == [9, 8, 7]
    assert select(file, 1, count_max=0) == []


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (T0 - 2, T0 - 1, False),
        (T0 - 1, T0, True),
        (T0 + 5, T0 + 6, True),
        (T0 + 10, T0 + 20, True),
        (T0 + 11, T0 + 20, False),
        (T0 - 1, T0 + 11, True),
    ],
)
def test_which_times_a_file_overlaps(begin: int, end: int, expected: bool) -> None:
    file = new_file()
    file.put([1], 1, T0)
    file.put([1], 2, T0 + 10)
    assert file.overlaps(begin, end) is expected


def naive(file: IndexFile, content: bytes, key_hash: int, begin: int, end: int) -> Iterator[int]:
    """The chain, hop by hop."""
    (number,) = INDEX_SLOT.unpack_from(content, 40 + 4 * (key_hash % file.slot_count))
    while number:
        entry = INDEX_ENTRY.unpack_from(content, 40 + 4 * file.slot_count + 20 * number)
        read_hash, log_offset, seconds, number = entry
        timestamp = file.begin_timestamp + 1000 * seconds
        if read_hash == key_hash and begin <= timestamp <= end:
            yield log_offset
        if timestamp < begin:
            return


@pytest.mark.parametrize("begin_timestamp", [0, T0 - 10**9])
def test_a_long_chain_is_entered_where_the_range_ends(begin_timestamp: int) -> None:
    disk = FaultyFileSystem()
    file = new_file(disk, slots=3, entries=20_000)
    file.continue_from(begin_timestamp, 0)
    rng = random.Random(1)
    for number in range(6_000):
        # A rare key, and two that nearly every message has.
        keys = [rng.randrange(9, 300)] if rng.random() < 0.1 else [3, 6]
        file.put(keys, number * 100, T0 + number * 40)
    file.write_header()
    content = disk.read_file(PATH)
    for _ in range(200):
        key_hash = rng.choice([3, 6, rng.randrange(9, 300)])
        end = T0 + rng.randrange(-1_000, 260_000)
        begin = end - rng.choice([0, 900, 5_000, 100_000])
        expected = list(naive(file, content, key_hash, begin, end))[:64]
        assert select(file, key_hash, begin, end) == expected


def test_a_chain_that_does_not_go_back_ends() -> None:
    disk = FaultyFileSystem()
    file = new_file(disk)
    for number in range(1, 4):
        file.put([1], number * 100, T0)
    file.close()
    handle = disk.open_file(PATH)
    for previous in (2, 3, 99, -1):  # itself, forward, nowhere
        handle.write(ENTRIES_START + 20 * 2 + 16, INDEX_SLOT.pack(previous))
        broken = reopened(disk)
        broken.open(disk)
        assert select(broken, 1) == [300, 200]
        broken.close()
    handle.write(40 + 4, INDEX_SLOT.pack(77))
    broken = reopened(disk)
    broken.open(disk)
    assert select(broken, 1) == []
    broken.put([1], 400, T0)  # the slot is taken for empty
    assert select(broken, 1) == [400]
    broken.close()
    handle.close()


def test_a_full_disk_is_an_error_before_anything_was_written() -> None:
    disk = FaultyFileSystem(capacity=100 << 10)
    file = new_file(disk, entries=20_000)

    def fill() -> None:
        for number in range(1, 10_000):
            file.put([number, number], number * 100, T0)

    with pytest.raises(StoreFullError):
        fill()
    before = file.next_entry
    assert before % 2 == 1
    assert before > 3_000
    assert select(file, before // 2) == [before // 2 * 100] * 2
    disk.capacity = 1 << 20
    file.put([1], 10**6, T0)
    assert file.next_entry == before + 1
    file.close()


def test_no_file_is_left_if_there_is_no_room_for_its_slots() -> None:
    disk = FaultyFileSystem(capacity=4096)
    file = IndexFile(PATH, 5_000, ENTRIES)
    with pytest.raises(StoreFullError):
        file.create(disk)
    assert disk.list_directory(Path("/")) == []


def test_a_file_from_elsewhere_is_continued_safely() -> None:
    """It may be sparse where we write; the twin of the file system complains if we do."""
    disk = FaultyFileSystem()
    file = new_file(disk, slots=5_000, entries=5_000)
    file.put([1], 100, T0)
    file.close()
    content = disk.read_file(PATH)
    other = FaultyFileSystem()
    other.install(PATH, content, sparse=True)
    file = reopened(other, 5_000, 5_000)
    file.open(other)
    for number in range(2, 3_000):
        file.put([number * 7], number * 100, T0)
    assert select(file, 7 * 2_999) == [299_900]
    file.close()


# ---- repair --------------------------------------------------------------------------------------


def filled(disk: FaultyFileSystem, count: int = 40) -> IndexFile:
    file = new_file(disk)
    for number in range(1, count + 1):
        file.put([number % 17], number * 100, T0 + number * 250)
    file.close()
    return reopened(disk)


@pytest.mark.parametrize("keep", [1, 2, 17, 39, 40, 45])
def test_repair_makes_what_would_have_been(keep: int) -> None:
    """Cutting 40 records back to n gives the file that n records make."""
    disk, reference = FaultyFileSystem(), FaultyFileSystem()
    file = filled(disk)
    filled(reference, min(keep, 40))
    times = {number * 100: T0 + number * 250 for number in range(1, 41)}
    assert file.repair(disk, keep * 100 + 1, times.get)
    assert disk.read_file(PATH) == reference.read_file(PATH)
    assert (file.next_entry, file.end_offset) == (min(keep, 40) + 1, min(keep, 40) * 100)


def test_repair_of_a_file_without_entries_to_keep() -> None:
    disk = FaultyFileSystem()
    file = filled(disk)
    assert not file.repair(disk, 100, forget_time)
    empty = new_file(other := FaultyFileSystem())
    empty.close()
    assert not empty.repair(other, 1 << 40, forget_time)


@pytest.mark.parametrize(("header_entry", "end"), [(1, 0), (20, 2_000), (50, 9_999)])
def test_repair_does_not_need_the_count_in_the_header(header_entry: int, end: int) -> None:
    disk, reference = FaultyFileSystem(), FaultyFileSystem()
    file = filled(disk)
    filled(reference)
    handle = disk.open_file(PATH)
    handle.write(0, INDEX_HEADER.pack(T0 + 250, T0, 100, end, 3, header_entry))
    handle.zero(40, 40)  # all slots
    handle.close()
    file = reopened(disk)
    assert not file.looks_whole(disk)
    times = {4_000: T0 + 10_000}
    assert file.repair(disk, 1 << 40, times.get)
    assert disk.read_file(PATH) == reference.read_file(PATH)
    assert file.looks_whole(disk)


def test_repair_without_the_record_guesses_a_later_end() -> None:
    disk = FaultyFileSystem()
    file = filled(disk)
    assert file.repair(disk, 2_001, forget_time)
    begin, last = T0 + 250, T0 + 20 * 250
    assert last <= file.end_timestamp <= last + 999
    assert (file.end_timestamp - begin) % 1000 == 999


@pytest.mark.parametrize(
    "garbage",
    [
        INDEX_ENTRY.pack(-5, 2_100, 3, 1),
        INDEX_ENTRY.pack(5, 1_900, 3, 1),  # before the record of the entry before it
        INDEX_ENTRY.pack(5, 2_100, -1, 1),
        INDEX_ENTRY.pack(5, 2_100, 3, 21),  # leads to itself
        bytes(20),
    ],
)
def test_repair_stops_at_what_is_no_entry(garbage: bytes) -> None:
    disk = FaultyFileSystem()
    filled(disk)
    handle = disk.open_file(PATH)
    handle.write(ENTRIES_START + 21 * 20, garbage)
    handle.write(0, INDEX_HEADER.pack(T0 + 250, T0, 100, 500, 3, 10))
    handle.close()
    file = reopened(disk)
    assert file.repair(disk, 1 << 40, forget_time)
    assert (file.next_entry, file.end_offset) == (21, 2_000)
    assert disk.read_file(PATH)[ENTRIES_START + 21 * 20 :] == bytes((ENTRIES - 21) * 20)
    file.open(disk)
    assert select(file, 2_000 // 100 % 17) == [2_000, 300]
    file.close()


def test_a_key_with_hash_0_at_the_beginning_of_the_log_survives_repair() -> None:
    """Its entry is all zero, as unwritten ones are; the header knows better."""
    disk = FaultyFileSystem()
    file = new_file(disk)
    file.put([0], 0, T0)
    file.put([8], 0, T0)
    file.close()
    file = reopened(disk)
    assert file.looks_whole(disk)
    assert file.repair(disk, 1, {0: T0}.get)
    assert file.next_entry == 3
