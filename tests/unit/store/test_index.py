"""The index service: what is indexed, queries over files, being behind, loading, retention."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import StoreError
from skylark.core.hashing import index_key_hash, java_hash
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.index import IndexService
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import INDEX_HEADER

DIRECTORY = Path("/store/index")
T0 = 1_700_000_000_000


class FakeTime:
    def __init__(self) -> None:
        self.ms = T0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return 0.0


def open_index(
    files: FileSystem,
    directory: Path = DIRECTORY,
    *,
    clean: bool = True,
    clock: FakeTime | None = None,
    slots: int = 10,
    entries: int = 20,
    open_files_max: int = 2,
) -> IndexService:
    index = IndexService(
        files,
        directory,
        DirtyRanges(files),
        clock or FakeTime(),
        slot_count=slots,
        entry_count_max=entries,
        open_files_max=open_files_max,
    )
    index.load(clean=clean)
    return index


def put(index: IndexService, number: int, *, keys: bytes = b"", replay: bool = False) -> None:
    """Record n stands at 100 n and was stored n seconds after T0; it has the key kn."""
    method = index.replay_record if replay else index.put_record
    method("T", number * 100, T0 + number * 1000, None, keys or b"k%d" % number, None)


def found(index: IndexService, key: str) -> list[int]:
    return index.query("T", key).log_offsets


def forget_time(_: int) -> None:
    return None


def names(disk: FaultyFileSystem) -> list[str]:
    return [entry.name for entry in disk.list_directory(DIRECTORY)]


# ---- what is indexed -----------------------------------------------------------------------------


@pytest.mark.spec("store.12.17")
def test_a_message_is_found_by_each_key_by_its_unique_id_and_by_its_tag() -> None:
    index = open_index(FaultyFileSystem())
    unique_id = b"7F000001000118B4AAC2000000000000"
    index.put_record("T", 700, T0, unique_id, b"a  b c", b"x || y")
    for key in (unique_id.decode(), "a", "b", "c", "T#x || y"):
        assert found(index, key) == [700]
    assert index.query("T", "x || y", index_type="T").log_offsets == [700]
    assert index.query("T", "a", index_type="K").log_offsets == [700]
    assert index.query("T", unique_id.decode(), index_type="U").log_offsets == [700]
    assert found(index, "") == found(index, "x || y") == found(index, "a  b c") == []
    assert index.query("U", "a").log_offsets == []


@pytest.mark.spec("store.12.17")
def test_keys_that_share_a_hash_come_back_together() -> None:
    """The store keeps hashes only; the client compares keys."""
    index = open_index(FaultyFileSystem())
    put(index, 1, keys=b"Aa")
    put(index, 2, keys=b"BB")
    assert found(index, "Aa") == found(index, "BB") == [100, 200]


@pytest.mark.spec("store.12.17")
def test_at_most_64_of_the_newest_are_returned_in_order_of_the_log() -> None:
    index = open_index(FaultyFileSystem(), entries=30)
    for number in range(100):
        put(index, number, keys=b"k")
    assert index.file_count == 4
    assert found(index, "k") == [number * 100 for number in range(36, 100)]
    assert index.query("T", "k", 1000).log_offsets == found(index, "k")
    assert index.query("T", "k", 5).log_offsets == [9500, 9600, 9700, 9800, 9900]
    assert index.query("T", "k", 0).log_offsets == []


@pytest.mark.spec("store.12.18")
def test_a_range_that_ends_before_the_message_finds_nothing() -> None:
    index = open_index(FaultyFileSystem())
    for number in range(1, 100):
        put(index, number, keys=b"k")
    assert index.query("T", "k", 64, 0, T0 + 999).log_offsets == []
    assert index.query("T", "k", 64, T0 + 99_001, T0 + 10**6).log_offsets == []
    assert index.query("T", "k", 64, T0 + 38_000, T0 + 41_000).log_offsets == [
        3800,
        3900,
        4000,
        4100,
    ]
    hits = index.query("T", "k", 64, 0, T0 + 999)
    assert (hits.last_timestamp, hits.last_log_offset) == (T0 + 99_000, 9900)


def test_a_message_without_keys_needs_no_file() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    index.put_record("T", 0, T0, None, b" ", b"")
    index.flush()
    assert not disk.exists(DIRECTORY)
    assert index.query("T", "k") == ([], 0, 0)


def test_the_first_record_of_the_log_is_indexed() -> None:
    index = open_index(FaultyFileSystem())
    put(index, 0)
    put(index, 0)
    assert found(index, "k0") == [0]


texts = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=80)


@settings(max_examples=200, deadline=None)
@given(topic=st.text("aZ09%_-", min_size=1, max_size=140), unique_ids=st.lists(texts), tag=texts)
def test_cached_hashes_are_those_of_java(topic: str, unique_ids: list[str], tag: str) -> None:
    index = open_index(FaultyFileSystem(), slots=1, entries=1000)
    unique_ids += [f"7F000001000118B4AAC2{number:012X}" for number in (0, 1, 65535, 65536)]
    texts = [text for unique_id in unique_ids for text in (unique_id, unique_id[::-1])]
    for number, text in enumerate(texts):
        index.put_record(topic, number, T0, text.encode(), text.encode(), tag.encode())
    index.close()
    file = index._index_files[0]
    file.open(index._files)
    hashes = [file._entry(number)[0] for number in range(1, file.next_entry)]
    expected = []
    for text in texts:
        expected += [text, text, f"T#{tag}"]
    assert hashes == [index_key_hash(java_hash(f"{topic}#{text}")) for text in expected]
    file.close()


def test_caches_of_hashes_are_bounded() -> None:
    index = open_index(FaultyFileSystem(), entries=100_000)
    for number in range(3_000):
        index.put_record("T", number, T0, b"%030d" % number, None, b"tag-%d" % number)
    hashes = index._topics["T"]
    assert len(hashes.tags) <= 1_000
    assert found(index, f"{2_999:030d}") == found(index, "T#tag-2999") == [2_999]


# ---- files ---------------------------------------------------------------------------------------


@pytest.fixture
def berlin() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_files_are_named_by_local_time_and_in_order() -> None:
    disk, clock = FaultyFileSystem(), FakeTime()
    index = open_index(disk, clock=clock, entries=2)
    put(index, 1)
    put(index, 2)  # within the same millisecond
    clock.ms -= 3_600_000  # the clock was set back
    put(index, 3)
    clock.ms += 7_200_007
    put(index, 4)
    assert names(disk) == [
        "20231114231320000",
        "20231114231320001",
        "20231114231320002",
        "20231115001320007",
    ]
    assert [found(index, f"k{number}") for number in range(1, 5)] == [[100], [200], [300], [400]]


def test_a_new_file_begins_where_the_old_one_ended() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk, entries=3)
    put(index, 1, keys=b"a b c d")
    index.close()
    headers = [INDEX_HEADER.unpack_from(disk.read_file(DIRECTORY / name)) for name in names(disk)]
    assert headers == [(T0 + 1000, T0 + 1000, 100, 100, 2, 3)] * 2
    assert index.last_closed() == (0, 0)  # the other one has entries of the same time


def test_a_record_may_need_several_files() -> None:
    index = open_index(FaultyFileSystem(), entries=3)
    put(index, 1)
    put(index, 2, keys=b"a b c d e f")
    assert index.file_count == 4
    assert [found(index, key) for key in "abcdef"] == [[200]] * 6


def test_only_some_older_files_are_open() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk, entries=5, open_files_max=2)
    for number in range(1, 41):
        put(index, number)
    assert index.file_count == 10

    def open_count() -> int:
        return sum(node.mapped_count for node in disk._root.files())

    assert open_count() == 3
    for number in range(1, 41):
        assert found(index, f"k{number}") == [number * 100]
        assert open_count() <= 3
    index.close()
    assert open_count() == 0


def test_a_full_file_is_closed_when_later_messages_follow() -> None:
    index = open_index(FaultyFileSystem(), entries=5)
    for number in range(1, 5):
        put(index, number)
        assert index.last_closed() == (0, 0)
    for number in (5, 6):
        put(index, number)
        assert index.last_closed() == (T0 + 4_000, 400)
    assert index.last_closed(log_end=500) == (0, 0)
    assert index.last_closed(timestamp_max=T0 + 3_999) == (0, 0)
    assert index.last_closed(601, T0 + 4_000) == (T0 + 4_000, 400)
    assert (index.end_timestamp, index.end_offset) == (T0 + 6_000, 600)
    assert index.size_total == 2 * (40 + 4 * 10 + 20 * 5)


def test_what_was_put_waits_for_a_sync() -> None:
    disk = FaultyFileSystem()
    disk.make_directories(Path("/store"))
    index = open_index(disk, entries=3)
    put(index, 1)
    put(index, 2)
    put(index, 3)
    index.flush()
    batch = index._dirty_ranges.begin()
    first, second = (DIRECTORY / name for name in names(disk))
    assert batch.ranges == {first: (0, 40 + 40 + 3 * 20), second: (0, 40 + 40 + 2 * 20)}
    assert list(batch.directories) == [Path("/store"), DIRECTORY]
    index.flush()
    assert not index._dirty_ranges.pending


# ---- loading -------------------------------------------------------------------------------------


def test_a_loaded_index_answers_and_goes_on() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    for number in range(1, 31):
        put(index, number)
    index.close()
    index = open_index(disk)
    assert index.file_count == 2
    for number in range(1, 41):  # a replay that begins too early
        put(index, number)
    assert [found(index, f"k{number}") for number in range(1, 41)] == [
        [number * 100] for number in range(1, 41)
    ]


def test_what_is_no_index_file_is_left_alone() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    put(index, 1)
    index.close()
    disk.write_file(DIRECTORY / "notes.txt", b"x")
    disk.create_directory(DIRECTORY / "123")
    disk.create_file(DIRECTORY / "20240101000000000", 0).close()  # a power loss took its length
    index = open_index(disk)
    assert index.file_count == 1
    assert names(disk) == ["123", "20231114221320000", "notes.txt"]


def test_files_of_another_size_stop_the_start() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    put(index, 1)
    index.close()
    with pytest.raises(StoreFileError, match="set maxHashSlotNum and maxIndexNum"):
        open_index(disk, slots=11)


def test_a_clean_start_notices_a_file_that_is_not_whole() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    for number in range(1, 6):
        put(index, number)
    index.flush()
    put(index, 6)
    put(index, 7)  # the header does not know these
    left = disk.kill()
    index = open_index(left)
    assert [found(index, f"k{number}") for number in range(1, 8)] == [
        [number * 100] for number in range(1, 8)
    ]
    assert index.end_timestamp == T0 + 7_999


def test_recovery_drops_files_and_entries_behind_the_scan() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    for number in range(1, 70):
        put(index, number)
    left = disk.kill()
    index = open_index(left, clean=False)
    assert index.file_count == 4
    index.recover(2_500, {2_400: T0 + 24_000}.get)
    assert index.file_count == 2
    assert (index.end_offset, index.end_timestamp) == (2_400, T0 + 24_000)
    for number in range(25, 50):
        put(index, number)
    assert [found(index, f"k{number}") for number in range(1, 70)] == [
        [number * 100] if number < 50 else [] for number in range(1, 70)
    ]
    index.recover(0, forget_time)
    assert index.file_count == 0
    put(index, 0)
    assert found(index, "k0") == [0]


@pytest.mark.parametrize("seed", range(10))
def test_names_that_a_killed_process_left_unsynced_are_synced_by_the_next(seed: int) -> None:
    disk = FaultyFileSystem(FaultPlan(seed))
    disk.make_directories(DIRECTORY.parent, durable=True)
    index = open_index(disk)
    put(index, 1)
    index.flush()
    disk = disk.kill()
    index = open_index(disk, clean=False)
    index.recover(101, {100: T0 + 1000}.get)
    put(index, 2)
    index.flush()
    batch = index._dirty_ranges.begin()
    batch.run()
    index._dirty_ranges.finish(batch)
    index = open_index(disk.power_loss(), clean=False)
    index.recover(201, {200: T0 + 2000}.get)
    assert [found(index, key) for key in ("k1", "k2")] == [[100], [200]]


def test_an_index_that_had_caught_up_is_behind_again_when_it_is_cut_to_where_it_had_been() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    put(index, 1)
    index.mark_behind(200)
    index.flush()
    index.close()
    index = open_index(disk)
    assert index.behind_from == 200
    put(index, 2, replay=True)
    put(index, 3, replay=True)
    index.caught_up()
    index.recover(301, {100: T0 + 1000, 200: T0 + 2000}.get)  # the log of a slave was cut
    assert index.behind_from == 200
    assert [found(index, key) for key in ("k1", "k2", "k3")] == [[100], [], []]


def test_records_in_place_of_some_without_keys_are_indexed() -> None:
    index = open_index(FaultyFileSystem())
    put(index, 1)
    index.put_record("T", 200, T0, None, None, None)
    index.end_at(200)  # the log of a slave was cut
    put(index, 2)
    index.mark_behind(300)
    index.end_at(250)
    assert index.behind_from == 250
    assert [found(index, key) for key in ("k1", "k2")] == [[100], [200]]


# ---- being behind --------------------------------------------------------------------------------


def test_an_index_that_cannot_be_written_falls_behind_and_catches_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = FaultPlan(0)
    index = open_index(FaultyFileSystem(plan), entries=5)
    for number in range(1, 4):
        put(index, number)
    plan.at("files.allocate", nth=1, error=errno.ENOSPC)  # of the next file
    for number in range(4, 8):
        put(index, number, keys=b"k%d also" % number)
    assert isinstance(index.error, StoreFileError)
    assert index.behind_from == 400
    assert caplog.text.count("the index is behind from 400") == 1
    assert found(index, "k4") == found(index, "k7") == []
    for number in range(1, 8):
        put(index, number, keys=b"k%d also" % number, replay=True)
    assert index.behind_from == 701
    index.caught_up()
    assert str((index.behind_from, index.error)) == "(None, None)"
    put(index, 8)
    assert [found(index, f"k{number}") for number in range(1, 9)] == [
        [number * 100] for number in range(1, 9)
    ]
    assert found(index, "also") == [400, 500, 600, 700]  # none of them twice


def test_an_index_whose_file_could_not_be_opened_catches_up() -> None:
    plan = FaultPlan(0)
    disk = FaultyFileSystem(plan)
    index = open_index(disk)
    put(index, 1)
    index.close()
    index = open_index(disk)
    plan.at("files.open", nth=1, error=errno.EMFILE)
    put(index, 2)
    assert index.behind_from == 200
    put(index, 2, replay=True)
    index.caught_up()
    put(index, 3)
    assert [found(index, f"k{number}") for number in (1, 2, 3)] == [[100], [200], [300]]


def test_an_error_of_a_replay_is_raised_and_the_record_repeated() -> None:
    plan = FaultPlan(0)
    index = open_index(FaultyFileSystem(plan))
    index.mark_behind(0)
    plan.at("files.create", nth=3, error=errno.EIO)  # after two directories
    with pytest.raises(StoreFileError):
        put(index, 1, replay=True)
    assert index.behind_from == 0
    put(index, 1, replay=True)
    index.caught_up()
    assert found(index, "k1") == [100]


def test_nothing_is_replayed_into_an_index_that_is_complete() -> None:
    index = open_index(FaultyFileSystem())
    with pytest.raises(StoreError, match="not behind"):
        put(index, 1, replay=True)
    index.caught_up()
    put(index, 1)
    assert found(index, "k1") == [100]


def test_a_close_records_that_the_index_is_behind() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    put(index, 1)
    index.mark_behind(500)
    put(index, 5)
    index.close()
    assert disk.read_file(DIRECTORY / "behind") == b"500"

    index = open_index(disk)
    assert index.behind_from == 500
    put(index, 9)
    assert found(index, "k9") == []
    for number in range(1, 10):
        put(index, number, replay=True)
    index.caught_up()
    assert found(index, "k4") == []  # was said to be indexed
    assert [found(index, f"k{number}") for number in (1, 5, 9)] == [[100], [500], [900]]
    assert disk.exists(DIRECTORY / "behind")  # until what was replayed is certainly on disk
    index.close()
    assert not disk.exists(DIRECTORY / "behind")
    assert open_index(disk).behind_from is None


def test_a_close_records_it_also_if_nothing_was_indexed() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    index.mark_behind(0)
    index.close()
    assert open_index(disk).behind_from == 0


def test_an_unreadable_behind_file_means_the_whole_log() -> None:
    disk = FaultyFileSystem()
    disk.install(DIRECTORY / "behind", b"junk")
    assert open_index(disk).behind_from == 0


def test_after_a_crash_the_catch_up_restarts_at_the_behind_file() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk)
    put(index, 1)
    index.mark_behind(500)
    index.close()
    index = open_index(disk)
    for number in range(5, 9):
        put(index, number, replay=True)
    index = open_index(disk.kill(), clean=False)
    index.recover(10_000, forget_time)  # the checkpoint of the clean exit is later than the note
    assert (index.end_offset, index.behind_from) == (100, 500)
    for number in range(5, 9):
        put(index, number, replay=True)
    index.caught_up()
    assert found(index, "k5") == [500]


# ---- retention -----------------------------------------------------------------------------------


def test_files_of_deleted_records_go_but_never_the_last() -> None:
    disk = FaultyFileSystem()
    index = open_index(disk, entries=11)
    for number in range(1, 36):
        put(index, number)
    assert index.file_count == 4
    assert index.delete_before(1_000) == 0
    assert index.delete_before(1_001) == 1
    assert found(index, "k10") == []
    assert found(index, "k11") == [1_100]
    assert index.delete_before(1 << 40) == 2
    assert len(names(disk)) == index.file_count == 1
    assert found(index, "k35") == [3_500]
    index.destroy()
    assert (names(disk), index.file_count) == ([], 0)
    put(index, 0)
    assert found(index, "k0") == [0]


def test_an_index_on_the_operating_system(tmp_path: Path) -> None:
    files = OsFileSystem()
    index = open_index(files, tmp_path / "index", slots=1_000, entries=5_000)
    for number in range(1, 12_001):
        put(index, number)
    index.flush()
    batch = index._dirty_ranges.begin()
    batch.run()
    index._dirty_ranges.finish(batch)
    assert index.file_count == 3
    index.recover(800_001, lambda log_offset: T0 + log_offset * 10)
    for number in range(1, 12_001):
        put(index, number)
    index.close()
    index = open_index(files, tmp_path / "index", slots=1_000, entries=5_000)
    for number in range(1, 12_001, 97):
        assert found(index, f"k{number}") == [number * 100]
    index.close()
