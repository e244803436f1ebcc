"""A read of a queue: its limits, filters, what it makes of bad entries, and the views it gives."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.hashing import java_hash
from skylark.filter.sql_eval import compile_sql
from skylark.filter.tag import TagFilter, parse_tags
from skylark.store import message_reader as reader_module
from skylark.store import queue_scan as queue_scan_module
from skylark.store.commit_log import Draft
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.store_results import GetStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.codes import ResponseCode
from skylark.wire.layout import FLAG_INNER_BATCH
from skylark.wire.message import decode_record, pack_host
from tests.unit.store.small_store import (
    FILE_SIZE,
    QUEUE_FILE_ENTRIES,
    SmallStore,
    bodies,
    draft,
    memory_store,
    offsets,
    outcome,
    records,
    retire_first_file,
)


@pytest.fixture
def store() -> SmallStore:
    return memory_store()


@pytest.fixture(params=["os", "faulty"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> SmallStore:
    if request.param == "faulty":
        return memory_store()
    files: FileSystem = OsFileSystem()
    return SmallStore(files, tmp_path)


@pytest.fixture(params=[1, 1 << 30], ids=["columns", "rows"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are looked at all at once where that is possible, and then one by one."""
    monkeypatch.setattr(reader_module, "COLUMNS_MIN", request.param)


# ---- where it ends -------------------------------------------------------------------------------


@pytest.mark.spec("store.12.28")
def test_a_read_without_a_match_checks_800_entries(store: SmallStore) -> None:
    for _ in range(QUEUE_FILE_ENTRIES):
        store.put(b"x", TAGS="other")
    result = store.reader.get("T", 0, 0, 32, parse_tags("wanted"))
    assert outcome(result) == (GetStatus.NO_MATCHED_MESSAGE, 800, 0)
    assert result.status.pull_code(0) is ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (result.views, store.lease_count()) == ([], 0)
    # as many as are asked for, if that is more; never beyond the end of the queue
    assert store.reader.get("T", 0, 0, 900, parse_tags("wanted")).next_offset == 900
    assert store.reader.get("T", 0, 700, 32, parse_tags("wanted")).next_offset == 1000
    nothing = compile_sql("a = 1")
    assert outcome(store.reader.get("T", 0, 100, 32, None, nothing)) == (
        GetStatus.NO_MATCHED_MESSAGE, 900, 0,
    )  # fmt: skip


@pytest.mark.usefixtures("both_ways")
@pytest.mark.spec("store.12.29")
def test_a_read_is_limited_by_count_and_bytes() -> None:
    store = memory_store(mapped_file_size_commit_log=4 << 20)
    for _ in range(40):
        store.put(bytes(100), "small")
    for _ in range(3):
        store.put(bytes(100 << 10), "large")
    for _ in range(2):
        store.put(bytes(1 << 20), "huge")
    get = store.reader.get
    assert offsets(get("small", 0, 0, 100)) == list(range(32))
    assert offsets(get("small", 0, 32, 100)) == list(range(32, 40))
    assert offsets(get("small", 0, 0, 5)) == list(range(5))
    assert offsets(get("large", 0, 0, 100)) == [0, 1]
    assert offsets(get("huge", 0, 0, 100)) == [0]
    assert offsets(get("huge", 0, 0, 0)) == [0]  # the first always


@pytest.mark.usefixtures("both_ways")
def test_on_disk_the_limits_are_lower() -> None:
    store = memory_store(mapped_file_size_commit_log=4 << 20, ram_size=0)
    for _ in range(40):
        store.put(bytes(100), "small")
    for _ in range(3):
        store.put(bytes(40 << 10), "large")
    small = store.reader.get("small", 0, 0, 100)
    assert small.suggest_slave
    assert offsets(small) == list(range(8))
    assert offsets(store.reader.get("large", 0, 0, 100)) == [0]


@pytest.mark.usefixtures("both_ways")
def test_memory_begins_where_the_ram_ends() -> None:
    store = memory_store(mapped_file_size_commit_log=4 << 20)
    puts = [store.put(bytes(100)) for _ in range(100)]
    log_end = puts[-1].next_offset
    # the last 40 % of so much RAM reach back to message 5
    reader = store.make_reader(ram_size=(log_end - puts[5].log_offset) * 100 // 40)
    assert not reader.is_in_memory(puts[4].log_offset)
    assert reader.is_in_memory(puts[5].log_offset)
    far = reader.get("T", 0, 0, 100)
    assert not far.suggest_slave  # by the last entry looked at, which is in memory
    assert offsets(far) == list(range(32))
    reader = store.make_reader(ram_size=(log_end - puts[50].log_offset) * 100 // 40)
    # the ninth message would be on disk, or in memory
    assert offsets(reader.get("T", 0, 41, 100)) == list(range(41, 49))
    assert offsets(reader.get("T", 0, 42, 100)) == list(range(42, 74))
    assert offsets(reader.get("T", 0, 41, 100, TagFilter([0]))) == list(range(41, 49))
    behind = reader.get("T", 0, 0, 3)
    assert behind.suggest_slave
    behind.release()


@pytest.mark.usefixtures("both_ways")
def test_bytes_asked_for_and_bulk() -> None:
    store = memory_store(mapped_file_size_commit_log=4 << 20)
    sizes = {store.put(bytes(900)).size for _ in range(2_000)}
    (size,) = sizes
    get = store.reader.get
    assert offsets(get("T", 0, 0, 100, bytes_max=10 * size)) == list(range(10))
    assert offsets(get("T", 0, 0, 100, bytes_max=1)) == [0]
    disk = store.make_reader(ram_size=0)
    assert offsets(disk.get("T", 0, 0, 100, bytes_max=3 * size)) == [0, 1, 2]
    for reader in (store.reader, disk):
        bulk = reader.get("T", 0, 0, 10_000, bytes_max=500 * size, bulk=True)
        assert (bulk.size, bulk.message_count, bulk.next_offset) == (500 * size, 500, 500)
        assert [len(view) for view in bulk.views] == [500 * size]  # neighbours: one view
        bulk.release()
        assert offsets(reader.get("T", 0, 10, 70, bulk=True)) == list(range(10, 80))
        # a whole queue file and no more
        assert reader.get("T", 0, 10, 10_000, bulk=True).next_offset == QUEUE_FILE_ENTRIES


# ---- filters -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("both_ways")
def test_tags(store: SmallStore) -> None:
    for number in range(200):
        store.put(b"%d" % number, TAGS=f"tag{number % 10}")
    for tags, wanted in (("tag3", {3}), ("tag1 || tag2 || no", {1, 2}), ("*", set(range(10)))):
        expected = [number for number in range(50, 200) if number % 10 in wanted]
        result = store.reader.get("T", 0, 50, 32, parse_tags(tags))
        end = expected[31] + 1 if len(expected) >= 32 else 200
        assert result.next_offset == end
        assert offsets(result) == expected[:32]
        few = store.reader.get("T", 0, 190, 32, parse_tags(tags))  # few entries, another way
        assert offsets(few) == [number for number in expected if number >= 190]


def test_colliding_tags_pass(store: SmallStore) -> None:
    assert java_hash("Aa") == java_hash("BB")
    for tag in ("Aa", "BB", "C"):
        store.put(TAGS=tag)
    assert offsets(store.reader.get("T", 0, 0, 32, parse_tags("Aa"))) == [0, 1]


@pytest.mark.usefixtures("both_ways")
def test_an_entry_that_does_not_pass_counts_for_the_limit() -> None:
    """Java tests the size of an entry before it asks the filter; so the read ends before it."""
    store = memory_store(mapped_file_size_commit_log=4 << 20)
    for size, tag in ((1 << 10, "a"), (255 << 10, "b"), (1 << 10, "a")):
        store.put(bytes(size), TAGS=tag)
    result = store.reader.get("T", 0, 0, 32, parse_tags("a"))
    assert result.next_offset == 1
    assert offsets(result) == [0]
    assert offsets(store.reader.get("T", 0, 1, 32, parse_tags("a"))) == [2]


def test_properties(store: SmallStore) -> None:
    for number in range(100):
        store.put(b"%d" % number, a=str(number), TAGS="x" if number % 2 else "y")
    odd = compile_sql("a between 10 and 80")
    result = store.reader.get("T", 0, 0, 32, None, odd)
    assert result.next_offset == 42
    assert offsets(result) == list(range(10, 42))
    both = store.reader.get("T", 0, 70, 32, parse_tags("x"), odd)
    assert both.next_offset == 100
    assert offsets(both) == [71, 73, 75, 77, 79]
    nothing = store.reader.get("T", 0, 81, 32, None, odd)
    assert outcome(nothing) == (GetStatus.NO_MATCHED_MESSAGE, 100, 0)
    assert store.lease_count() == 0


class SeenProperties:
    """A property filter that takes everything and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def matches_raw(self, raw: bytes) -> bool:
        self.seen.append(raw)
        return True


def test_properties_of_every_kind_of_record(store: SmallStore) -> None:
    retry = "%RETRY%" + "g" * 140
    store.put(b"1", retry, a="1")
    store.putter.put(draft(retry, pack_host("::1", 1), b"a\x012\x02"))
    store.putter.put(draft(retry, pack_host("127.0.0.1", 1), b""))
    seen = SeenProperties()
    assert len(records(store.reader.get(retry, 0, 0, 32, None, seen))) == 3
    assert seen.seen == [b"a\x011\x02", b"a\x012\x02", b""]


def test_a_filter_that_fails_leaves_no_lease(store: SmallStore) -> None:
    store.put()

    class Broken:
        def matches_raw(self, raw: bytes) -> bool:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.reader.get("T", 0, 0, 32, None, Broken())
    assert store.lease_count() == 0


# ---- leases --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("both_ways")
def test_neighbours_are_one_view_and_nothing_is_copied(
    any_store: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_scan_module, "COPIED_SIZE_MAX", 0)
    store = any_store
    sizes = [store.put(b"%d" % number).size for number in range(5)]
    store.put(queue_id=1)
    sizes += [store.put(b"x").size for _ in range(2)]
    result = store.reader.get("T", 0, 0, 32)
    assert [len(view) for view in result.views] == [sum(sizes[:5]), sum(sizes[5:])]
    assert (result.size, result.message_count) == (sum(sizes), 7)
    assert store.lease_count() == 1  # one file
    log_bytes = store.log.files.last.buffer
    log_bytes[88:89] = b"!"  # the body of the first record
    assert bytes(result.views[0][88:89]) == b"!"
    result.release()
    result.release()
    assert (result.views, store.lease_count()) == ((), 0)


def test_few_bytes_are_copied(any_store: SmallStore) -> None:
    store = any_store
    for number in range(6):
        store.put(b"%d" % number, queue_id=number % 2)
    alone = store.reader.get("T", 1, 1, 1)  # neighbours of their own
    apart = store.reader.get("T", 1, 0, 32)
    assert (len(alone.views), len(apart.views), store.lease_count()) == (1, 1, 0)
    assert (alone.size, apart.size) == (len(alone.views[0]), len(apart.views[0]))
    log_bytes = store.log.files.last.buffer
    log_bytes[:] = bytes(len(log_bytes))  # not what was read any more
    assert (bodies(alone), bodies(apart)) == ([b"3"], [b"1", b"3", b"5"])


@pytest.mark.usefixtures("both_ways")
def test_a_result_over_several_files(any_store: SmallStore) -> None:
    store = any_store
    body_size = FILE_SIZE // 5
    for number in range(10):
        store.put(bytes([number]) * body_size)
    result = store.reader.get("T", 0, 2, 32)
    assert [len(view) // body_size for view in result.views] == [2, 4, 2]
    assert store.lease_count() == 3
    assert [body[0] for body in bodies(result)] == list(range(2, 10))
    assert store.lease_count() == 0


def test_a_view_in_use_keeps_its_file_mapped(any_store: SmallStore) -> None:
    store = any_store
    store.put(b"kept")
    result = store.reader.get("T", 0, 0, 32, bulk=True)  # no copy
    assert store.lease_count() == 1
    held = result.views[0][:]  # as a transport does
    result.release()
    assert store.lease_count() == 0
    assert decode_record(held).body == b"kept"
    held.release()


def test_a_disk_error_leaves_no_lease() -> None:
    store = memory_store()
    for _ in range(10):
        store.put(bytes(FILE_SIZE // 5))
    for file in store.log.files.files[:-1]:
        file.flushed = file.size
        file.close()
    assert isinstance(store.files, FaultyFileSystem)
    store.files.plan.at("files.open", nth=2, error=errno.EIO)  # of the second file
    with pytest.raises(StoreFileError):
        store.reader.get("T", 0, 2, 32)
    assert store.lease_count() == 0
    assert offsets(store.reader.get("T", 0, 2, 32)) == list(range(2, 10))


# ---- records that are gone, or not there yet -----------------------------------------------------


@pytest.mark.usefixtures("both_ways")
def test_deleted_records_are_passed_over(
    store: SmallStore, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(600):
        store.put(b"%d" % number, TAGS=f"tag{number % 2}")
    first = retire_first_file(store)
    assert first > 64
    # more entries in vain than one read would return: it goes on
    result = store.reader.get("T", 0, 0, 32)
    assert outcome(result) == (GetStatus.FOUND, first // 32 * 32 + 32, 32 - first % 32)
    assert offsets(result)[0] == first
    assert offsets(store.reader.get("T", 0, 0, 32, parse_tags("tag0"))) == list(
        range(first + first % 2, first + first % 2 + 64, 2)
    )
    assert offsets(store.reader.get("T", 0, first - 1, 3, parse_tags("*")))[0] == first
    assert caplog.text == ""  # nothing is wrong with that


@pytest.mark.usefixtures("both_ways")
def test_a_queue_whose_records_are_all_gone() -> None:
    store = memory_store(max_filter_message_size=100)
    for number in range(300):
        store.put(b"%d" % number, TAGS="a")
    retire_first_file(store)
    for tags in (None, parse_tags("a")):
        result = store.reader.get("T", 0, 0, 5, tags)
        assert outcome(result) == (GetStatus.MESSAGE_WAS_REMOVING, 5, 0)
        assert result.status.pull_code(0) is ResponseCode.PULL_RETRY_IMMEDIATELY
    filtered = store.reader.get("T", 0, 0, 5, parse_tags("b"))
    assert outcome(filtered) == (GetStatus.NO_MATCHED_MESSAGE, 5, 0)


@pytest.mark.usefixtures("both_ways")
def test_an_entry_ahead_of_the_log_is_waited_for(store: SmallStore) -> None:
    """Skipping it, as for a deleted record, would lose the message for the consumer."""
    store.put(b"there")
    queue = store.queues.get_or_create("T", 0)
    queue.append(store.log.max_offset, 100, 0)
    result = store.reader.get("T", 0, 0, 32)
    assert outcome(result) == (GetStatus.FOUND, 1, 1)
    result.release()
    assert outcome(store.reader.get("T", 0, 1, 32)) == (GetStatus.OFFSET_OVERFLOW_ONE, 1, 0)
    filtered = store.reader.get("T", 0, 0, 32, TagFilter([9]))
    assert outcome(filtered) == (GetStatus.NO_MATCHED_MESSAGE, 1, 0)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    ("start", "end"),
    [  # from the start of the record before it
        (1, FILE_SIZE + 200),  # beyond its file
        (1, 0),
        (1, 1),
        (FILE_SIZE * -50, FILE_SIZE * -50 + 10),
    ],
)
def test_an_entry_that_makes_no_sense_is_passed_over(
    store: SmallStore, start: int, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue = store.queues.get_or_create("T", 0)
    for _ in range(40):
        before = store.put(b"good")
    queue.append(before.log_offset + start, end - start, 0)
    queue.next_offset = queue.max_offset
    while store.log.max_offset < 3 * FILE_SIZE:
        store.put(bytes(1000), queue_id=1)
    for _ in range(40):
        store.put(b"good")
    found = offsets(store.reader.get("T", 0, 0, 1000, bulk=True))
    assert found == [*range(40), *range(41, 81)]
    assert "where no record can be" in caplog.text
    queue.append(store.log.max_offset - 10, 20, 0)  # in its file, but behind what was written
    result = store.reader.get("T", 0, 41, 1000, bulk=True)
    assert result.next_offset == 82
    assert offsets(result) == list(range(41, 81))


# ---- both ways of looking agree ------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    queue_count=st.sampled_from([1, 3]),
    ram_share=st.sampled_from([0, 0.5, 1.2, 2.4, 3]),
    tags=st.sampled_from(["*", "a", "a || b", "none"]),
    count_max=st.sampled_from([0, 1, 2, 5, 20, 100]),
    bytes_max=st.sampled_from([500, 3_000, 20_000, 1 << 20]),
    bulk=st.booleans(),
    gone=st.booleans(),
    offset_share=st.floats(0, 1),
)
def test_all_ways_agree(
    seed: int,
    queue_count: int,
    ram_share: float,
    tags: str,
    count_max: int,
    bytes_max: int,
    bulk: bool,
    gone: bool,
    offset_share: float,
) -> None:
    random = Random(seed)
    messages = [
        (
            random.choice((10, 50, random.randint(1, 600))),
            random.choice("abcd"),
            random.randrange(queue_count),
        )
        for _ in range(random.choice((3, 30, 200)))
    ]
    store = memory_store()
    for size, tag, queue_id in messages:
        store.put(bytes(size), queue_id=queue_id, TAGS=tag)
    if gone and len(store.log.files.files) > 1:
        store.log.files.sync()
        store.log.files.retire_oldest(0.0)
    offset = int(offset_share * store.reader.max_offset("T", 0))
    limits = {
        "max_transfer_bytes_on_message_in_memory": 8_000,
        "max_transfer_bytes_on_message_in_disk": 2_000,
    }
    reader = store.make_reader(ram_size=int(ram_share * store.log.max_offset), **limits)
    found = []
    for way in ("columns", "all", "rows"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader_module, "COLUMNS_MIN", 1 if way == "columns" else 1 << 30)
            if way == "rows":
                patch.setattr(reader_module, "take_all", lambda *_: None)
            result = reader.get(
                "T", 0, offset, count_max, parse_tags(tags), bytes_max=bytes_max, bulk=bulk
            )
        records = b"".join(result.views)
        result.release()
        found.append((*outcome(result), result.suggest_slave, result.size, records))
    assert found[0] == found[1] == found[2]
    assert store.lease_count() == 0


# ---- batch queues --------------------------------------------------------------------------------


def put_inner_batch(store: SmallStore, count: int, tag: int = 0, size: int = 50) -> None:
    """A record of several messages, as an inner batch; what the messages are does not matter."""
    queue = store.queues.get_or_create_batch("B", 0)
    first = queue.max_offset
    draft, now_ms = _batch_draft(first, count, size), store.log.now_ms()
    appended = store.log.append(draft, store.putter._topic("B"), queue.max_offset, now_ms)
    queue.append(appended.log_offset, appended.size, tag, appended.store_timestamp, count)
    queue.next_offset = queue.max_offset


def _batch_draft(first: int, count: int, size: int) -> Draft:
    properties = f"INNER_BASE\x01{first}\x02INNER_NUM\x01{count}\x02".encode()
    return Draft("B", 0, bytes(size), properties, sys_flag=FLAG_INNER_BATCH)


def test_a_batch_queue_counts_messages(store: SmallStore) -> None:
    for count in (4, 2, 10, 10, 10):
        put_inner_batch(store, count)
    get = store.reader.get
    assert outcome(get("B", 0, 0, 32)) == (GetStatus.FOUND, 26, 26)  # the fifth would be too much
    assert outcome(get("B", 0, 0, 5)) == (GetStatus.FOUND, 4, 4)
    assert outcome(get("B", 0, 0, 1)) == (GetStatus.FOUND, 4, 4)  # the first always
    within = get("B", 0, 5, 32)  # in the middle of a record
    assert outcome(within) == (GetStatus.FOUND, 36, 32)
    assert offsets(within) == [4, 6, 16, 26]
    assert outcome(get("B", 0, 36, 32)) == (GetStatus.OFFSET_OVERFLOW_ONE, 36, 0)
    assert store.make_reader(ram_size=0).get("B", 0, 0, 32).next_offset == 16  # 6, and then 10


def test_filters_on_a_batch_queue() -> None:
    store = memory_store(max_filter_message_size=46 * 20)
    for number in range(30):
        put_inner_batch(store, 2, tag=number % 3)
    tags = TagFilter([1])
    result = store.reader.get("B", 0, 0, 5, tags)
    assert offsets(result) == [2, 8]
    # entries up to 20 offsets on are looked at
    assert outcome(store.reader.get("B", 0, 0, 5, TagFilter([9]))) == (
        GetStatus.NO_MATCHED_MESSAGE, 20, 0,
    )  # fmt: skip
    bulk = store.reader.get("B", 0, 0, 1000, bulk=True, bytes_max=1000)
    assert bulk.message_count == 2 * (1000 // (bulk.size // (bulk.message_count // 2)))
    bulk.release()
