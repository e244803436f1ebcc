"""Reput at append, and that a replay of the log makes the same entries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.core.hashing import java_hash
from skylark.core.names import SCHEDULE_TOPIC
from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import Dispatched, QueueEntry
from skylark.store.index import IndexService
from skylark.store.index_file import KeyedRecords
from skylark.store.reput import (
    Arrival,
    InnerBatch,
    Reput,
    TagsCodes,
    add_queue_entry,
    inner_batch,
)
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.batch import BatchMessage
from skylark.wire.properties import find_raw_property
from tests.unit.store.crash_store import ROOT, START_MS, CrashStore, derived_files

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


def new_store(**settings: Any) -> CrashStore:
    store = CrashStore(FaultyFileSystem(), **settings)
    store.open()
    return store


# ---- tags codes ----------------------------------------------------------------------------------


def test_tags_codes() -> None:
    codes = TagsCodes((1_000, 5_000))
    assert codes.of("T", b"TagA", b"", 0) == 2598919
    assert codes.of("T", None, b"DELAY\x011\x02", 0) == 0
    emoji = "\U0001f600".encode()
    assert codes.of_tags([b"TagA", None, emoji, b"TagA"]) == [2598919, 0, 1772899, 2598919]
    assert codes.of_tags([b"\0"]) == [0]


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        ("1", START_MS + 1_000),
        ("2", START_MS + 5_000),
        ("99", START_MS + 5_000),
        ("0", 2598919),
        ("x", 2598919),
        ("-1", 2598919),
    ],
)
def test_a_delayed_message_has_its_due_time_as_tags_code(delay: str, expected: int) -> None:
    codes = TagsCodes((1_000, 5_000))
    properties = f"TAGS\x01TagA\x02DELAY\x01{delay}\x02".encode()
    assert codes.of(SCHEDULE_TOPIC, b"TagA", properties, START_MS) == expected


def test_unknown_levels_and_impossible_store_times() -> None:
    assert TagsCodes(()).of(SCHEDULE_TOPIC, None, b"DELAY\x013\x02", 5) == 1_005
    last = (1 << 63) - 1
    assert TagsCodes((1,)).of(SCHEDULE_TOPIC, None, b"DELAY\x011\x02", last) == -1 << 63


def test_many_tags_are_not_all_remembered() -> None:
    codes = TagsCodes()
    tags = [b"%d" % number for number in range(25_000)]
    assert codes.of_tags(tags) == [java_hash(tag.decode()) for tag in tags]
    assert codes.of("T", b"17", b"", 0) == java_hash("17")


# ---- properties ----------------------------------------------------------------------------------


class Noted(IndexService):
    """An index that only notes what it is given."""

    def __init__(self) -> None:
        self.texts: tuple[bytes | None, ...] = ()

    def hashes(
        self, topic: str, unique_id: bytes | None, keys: bytes | None, tag: bytes | None
    ) -> list[int]:
        self.texts = (unique_id, keys, tag)
        return []

    def put_run(self, records: KeyedRecords, store_timestamp: int) -> None:
        assert records == [(0, [])]


pieces = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"X", b"\x01", b"\x01", b"\x02", b"\x02"])


@settings(max_examples=500, deadline=None)
@given(st.lists(pieces, max_size=16).map(b"".join))
@example(b"TAGS\x01a\x02KEYS\x01b\x02UNIQ_KEY\x01c\x02")
@example(b"UNIQ_KEY\x01c\x02TAGS\x01a\x02TAGS\x01\x02KEYS\x01b\x02KEYS\x01\x02")
@example(b"KEYS\x01b")
def test_every_text_of_a_record_is_found_as_elsewhere(properties: bytes) -> None:
    """Wherever it stands, and the last that is not empty where there are several."""
    index, arrivals = Noted(), list[Arrival]()
    dispatch = Reput(index, TagsCodes(), on_arrival=arrivals.append)
    queue = new_store().queues.get_or_create("T", 0)
    dispatch.add_run([(queue, 0, 100, 0, properties)], START_MS)
    names = (b"UNIQ_KEY", b"KEYS", b"TAGS")
    expected = tuple(find_raw_property(properties, name) for name in names)
    assert index.texts == expected
    assert arrivals[0].tags_code == java_hash((expected[2] or b"").decode())


# ---- inner batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"INNER_NUM\x014\x02INNER_BASE\x01100\x02", InnerBatch(100, 4)),
        (b"INNER_BASE\x010\x02INNER_NUM\x0132767\x02", InnerBatch(0, 32767)),
        (b"INNER_NUM\x014\x02", None),
        (b"INNER_BASE\x014\x02", None),
        (b"INNER_NUM\x010\x02INNER_BASE\x010\x02", None),
        (b"INNER_NUM\x0132768\x02INNER_BASE\x010\x02", None),
        (b"INNER_NUM\x01-4\x02INNER_BASE\x010\x02", None),
        (b"INNER_NUM\x014\x02INNER_BASE\x01" + b"9" * 19 + b"\x02", None),
        (b"", None),
    ],
)
def test_inner_batch_properties_of_a_record(properties: bytes, expected: InnerBatch | None) -> None:
    assert inner_batch(properties) == expected


def test_inner_batches_are_numbered_by_their_messages() -> None:
    store = new_store()
    three = [BatchMessage(b"a", b""), BatchMessage(b"b", b""), BatchMessage(b"c", b"")]
    first = store.put_inner_batch("Batch", 1, three, TAGS="TagA")
    second = store.put_inner_batch("Batch", 1, three[:2])
    queue = store.queues.get("Batch", 1)
    assert isinstance(queue, BatchQueue)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 5, 5)
    size = second - first
    assert queue.read_entry(2) == QueueEntry(0, first, size, 2598919, 3)
    entry = queue.read_entry(3)
    assert entry is not None
    assert (entry.queue_offset, entry.log_offset, entry.message_count) == (3, second, 2)
    assert [(it.topic, it.queue_id, it.next_offset) for it in store.arrivals] == [
        ("Batch", 1, 3),
        ("Batch", 1, 5),
    ]


def test_a_single_message_has_no_entry_in_a_batch_queue() -> None:
    store = new_store()
    batch = [BatchMessage(b"a", b"")] * 2
    store.put_inner_batch("Batch", 0, batch)
    store.put_single_in_batch_queue("Batch", 0, b"alone")
    queue = store.queues.get("Batch", 0)
    assert isinstance(queue, BatchQueue)
    assert (queue.max_offset, queue.next_offset, len(store.arrivals)) == (2, 3, 1)
    last = store.put_inner_batch("Batch", 0, batch)
    assert (queue.max_offset, queue.next_offset) == (5, 5)
    entry = queue.read_entry(3)
    assert entry is not None
    assert (entry.queue_offset, entry.log_offset) == (3, last)


def test_inner_batches_that_wait_for_the_disk_keep_their_numbers() -> None:
    store = new_store(after_flush=True)
    ends = []
    for _ in range(3):
        store.put_inner_batch("Batch", 0, [BatchMessage(b"a", b"")] * 2)
        ends.append(store.log.max_offset)
    queue = store.queues.get("Batch", 0)
    assert queue is not None
    assert (queue.max_offset, queue.next_offset) == (0, 6)
    store.dispatch.release(ends[1])
    assert (queue.max_offset, queue.next_offset) == (4, 6)
    store.flush_log()
    assert (queue.max_offset, queue.next_offset, store.dispatch.waiting_count) == (6, 6, 0)


def test_a_queue_deleted_before_its_records_are_on_disk_gets_no_entries() -> None:
    store = new_store(after_flush=True)
    store.put("T", 0, b"old")
    deleted = store.queues.get("T", 0)
    assert deleted is not None
    store.queues.destroy_topic("T")
    new_offset = store.put("T", 0, b"new")
    store.flush_log()
    store.flush_views()
    queue = store.queues.get("T", 0)
    assert queue is not None
    entry = queue.read_entry(0)
    assert entry is not None
    assert (entry.log_offset, queue.max_offset, deleted.max_offset) == (new_offset, 1, 0)
    assert store.dispatch.dispatched_until == store.log.max_offset


def test_the_entry_depends_on_the_kind_of_queue() -> None:
    store = new_store()
    plain = store.queues.get_or_create("T", 0)
    assert add_queue_entry(plain, 0, 100, 7, 0, 1, b"INNER_NUM\x014\x02INNER_BASE\x010\x02") is (
        Dispatched.APPENDED
    )
    assert plain.read_entry(0) == QueueEntry(0, 0, 100, 7)
    batch = store.queues.get_or_create_batch("B", 0)
    assert add_queue_entry(batch, 100, 100, 7, 0, 1, b"TAGS\x01x\x02") is None
    properties = b"INNER_NUM\x014\x02INNER_BASE\x010\x02"
    assert add_queue_entry(batch, 100, 100, 7, 0, 1, properties) is Dispatched.APPENDED
    assert add_queue_entry(batch, 100, 100, 7, 0, 1, properties) is Dispatched.REPEATED
    assert (batch.max_offset, batch.next_offset) == (4, 4)


# ---- dispatch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sys_flag", "queued", "indexed"),
    [(0, True, True), (COMMIT, True, True), (PREPARED, False, True), (ROLLBACK, False, False)],
)
@pytest.mark.spec("store.12.14")
def test_derived_entries_of_transaction_types(sys_flag: int, queued: bool, indexed: bool) -> None:
    store = new_store()
    log_offset = store.put("T", 0, b"x", {"KEYS": "k"}, sys_flag=sys_flag)
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert (queue.max_offset, len(store.arrivals)) == (queued, queued)
    assert store.keys("T", "k") == ([log_offset] if indexed else [])
    assert store.record(log_offset, store.log.max_offset - log_offset).queue_offset == 0


def test_arrivals_and_counters() -> None:
    store = new_store()
    properties = b"TAGS\x01TagA\x02"
    store.put("T", 3, b"one", properties)
    store.ticks.ms += 5
    store.put("T", 3, b"two", b"")
    assert store.arrivals == [
        Arrival("T", 3, 1, 2598919, START_MS, properties),
        Arrival("T", 3, 2, 0, START_MS + 5, b""),
    ]
    assert store.dispatch.dispatched_until == store.log.max_offset
    assert store.dispatch.dispatched_timestamp == START_MS + 5
    store.dispatch.resume(1_000, 2_000)
    assert (store.dispatch.dispatched_until, store.dispatch.dispatched_timestamp) == (1_000, 2_000)


def test_messages_wait_for_the_disk_in_order() -> None:
    store = new_store(after_flush=True)
    offsets = [store.put("T", 0, b"%d" % number) for number in range(3)]
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert (queue.max_offset, store.dispatch.waiting_count) == (0, 3)
    store.dispatch.release(offsets[2])
    assert (queue.max_offset, store.dispatch.waiting_count) == (2, 1)
    store.dispatch.release(store.log.max_offset - 1)
    assert queue.max_offset == 2
    store.flush_log()
    assert (queue.max_offset, store.dispatch.waiting_count) == (3, 0)


def test_records_are_indexed_ahead_of_the_disk_and_enter_their_queue_after_it() -> None:
    store = new_store(after_flush=True)
    assert store.index is not None
    ends = []
    for number in range(3):
        store.put("T", 0, b"%d" % number, {"KEYS": "k"})
        ends.append(store.log.max_offset)
    queue = store.queues.get("T", 0)
    assert queue is not None
    dispatch = store.dispatch
    dispatch.prepare(ends[1])
    assert len(store.index.query("T", "k").log_offsets) == 2
    assert (dispatch.indexed_until, dispatch.dispatched_until) == (ends[1], 0)
    assert (queue.max_offset, dispatch.waiting_count, store.arrivals) == (0, 3, [])
    dispatch.release(ends[0])
    assert (queue.max_offset, dispatch.dispatched_until) == (1, ends[0])
    dispatch.release(ends[2])
    assert (queue.max_offset, dispatch.waiting_count) == (3, 0)
    assert (dispatch.indexed_until, dispatch.dispatched_until) == (ends[2], ends[2])
    assert len(store.index.query("T", "k").log_offsets) == 3  # each once
    assert [arrival.next_offset for arrival in store.arrivals] == [1, 2, 3]


def test_a_queue_deleted_after_its_records_were_indexed_gets_no_entries() -> None:
    store = new_store(after_flush=True)
    store.put("T", 0, b"old")
    deleted = store.queues.get("T", 0)
    assert deleted is not None
    store.dispatch.prepare(store.log.max_offset)
    store.queues.destroy_topic("T")
    store.flush_log()
    assert (deleted.max_offset, store.arrivals) == (0, [])
    assert store.dispatch.dispatched_until == store.log.max_offset


# ---- append and replay ---------------------------------------------------------------------------

odd_text = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "Zs", "So"), include_characters="\x01#"),
    max_size=6,
).map(str.encode)
names = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"INNER_NUM", b"INNER_BASE", b"x"]
)
items = st.lists(st.tuples(names, odd_text | st.sampled_from([b"3", b"a b", b""])), max_size=5)
property_strings = st.builds(
    lambda pairs, end: b"\x02".join(b"\x01".join(pair) for pair in pairs) + end,
    items,
    st.sampled_from([b"", b"\x02"]),
) | st.binary(max_size=20).filter(lambda raw: not raw.endswith(b"\0"))
plain_puts = st.tuples(
    st.just("put"),
    st.sampled_from(["T", "Other", SCHEDULE_TOPIC, "R" * 140]),
    st.integers(0, 2),
    st.sampled_from([0, 0, 0, PREPARED, COMMIT, ROLLBACK]),
    property_strings,
)
batch_puts = st.tuples(
    st.just("inner"), st.just("Batch"), st.integers(0, 1), st.integers(0, 4), property_strings
)
puts = st.lists(plain_puts | batch_puts, min_size=1, max_size=60)


def fill(store: CrashStore, actions: list[tuple[str, str, int, int, bytes]]) -> None:
    for number, (kind, topic, queue_id, detail, properties) in enumerate(actions):
        store.ticks.ms += number * 13
        body = b"%d" % number * (1 + number % 40)
        if kind == "put":
            store.put(topic, queue_id, body, properties, sys_flag=detail)
        elif detail == 0:
            store.put_single_in_batch_queue(topic, queue_id, body)
        else:
            store.put_inner_batch(topic, queue_id, [BatchMessage(body, properties)] * detail)


@settings(max_examples=60, deadline=None)
@given(puts)
def test_a_replay_makes_the_same_derived_files_as_the_append(
    actions: list[tuple[str, str, int, int, bytes]],
) -> None:
    """With the derived files deleted, and after a kill without any checkpoint."""
    store = new_store()
    fill(store, actions)
    numbers = {queue: queue.next_offset for queue in store.queues}
    store.close()
    disk = store.files
    assert isinstance(disk, FaultyFileSystem)
    made = derived_files(disk)
    replayed = FaultyFileSystem()
    for entry in disk.list_directory(ROOT / "commitlog"):
        content = disk.read_file(ROOT / "commitlog" / entry.name)
        replayed.install(ROOT / "commitlog" / entry.name, content)
    if len(actions) % 2:
        replayed.install(ROOT / "abort", b"1")
    again = CrashStore(replayed)
    again.ticks.ms = START_MS + 1_000_000
    report = again.open(is_batch_topic=lambda topic: topic == "Batch")
    assert report.scanned_records == len(actions)
    for queue, next_offset in numbers.items():
        same = again.queues.get(queue.topic, queue.queue_id)
        if same is not None and queue.max_offset == next_offset:
            assert (same.max_offset, same.next_offset) == (queue.max_offset, next_offset)
    again.close()
    assert derived_files(replayed) == made
