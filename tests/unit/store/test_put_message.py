"""Put: limits, statuses, queue offsets, and what becomes visible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylark.store.commit_log import Draft
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.files import OsFileSystem
from skylark.store.put_message import Putter
from skylark.store.reput import Arrival, Reput, TagsCodes
from skylark.store.running_flags import RunningFlags, StoreFlag
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.batch import Batch, BatchMessage, encode_batch
from skylark.wire.message import decode_record
from tests.unit.store.small_store import HOST, SmallStore

BIG = {"mapped_file_size_commit_log": 16 << 20}


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    return SmallStore(OsFileSystem(), tmp_path / "store")


def draft(topic: str = "T", queue_id: int = 0, body: bytes = b"x", **fields: Any) -> Draft:
    return Draft(topic, queue_id, body, **{"born_host": HOST, **fields})


def test_queue_offsets_count_per_queue(store: SmallStore) -> None:
    put = store.putter.put
    assert [put(draft(queue_id=0)).queue_offset for _ in range(3)] == [0, 1, 2]
    assert put(draft(queue_id=1)).queue_offset == 0
    assert put(draft("U")).queue_offset == 0
    queue = store.queues.get("T", 0)
    assert isinstance(queue, ConsumeQueue)
    assert (queue.next_offset, queue.max_offset) == (3, 3)


@pytest.mark.spec("store.12.7")
def test_sizes_at_their_limits(tmp_path: Path) -> None:
    put = SmallStore(OsFileSystem(), tmp_path / "store", **BIG).putter.put
    assert put(draft(properties=b"p" * 32767)).status is PutStatus.PUT_OK
    assert put(draft(properties=b"p" * 32768)).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert PutStatus.PROPERTIES_SIZE_EXCEEDED.code == 13
    assert put(draft(body=bytes(4 << 20))).status is PutStatus.PUT_OK
    assert put(draft(body=bytes((4 << 20) + 1))).status is PutStatus.MESSAGE_ILLEGAL
    assert put(draft(body=b"")).status is PutStatus.MESSAGE_ILLEGAL


def test_a_checksum_needs_an_end_before_it(tmp_path: Path) -> None:
    settings = {**BIG, "enabled_append_prop_crc": True}
    putter = SmallStore(OsFileSystem(), tmp_path / "store", **settings).putter
    for properties, status in (
        (b"k\x01" + b"p" * 32744 + b"\x02", PutStatus.PUT_OK),
        (b"k\x01" + b"p" * 32744, PutStatus.PUT_OK),
        (b"k\x01" + b"p" * 32745, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        (b"k\x01" + b"p" * 32745 + b"\x02", PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ):
        assert putter.put(draft(properties=properties)).status is status
        batch = Batch.of([BatchMessage(b"a", properties)])
        assert putter.put_batch(draft(), batch).status is status


@pytest.mark.spec("store.12.5")
def test_only_retry_topics_may_be_long(store: SmallStore) -> None:
    put = store.putter.put
    result = put(draft("%RETRY%" + "g" * 123))
    assert result.status is PutStatus.PUT_OK
    lease = store.log.lease(result.log_offset, result.size)
    assert lease is not None
    assert lease.view[4:8].hex() == "daa320ab"
    lease.release()
    refused = put(draft("t" * 128))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert refused.status.code == 13
    assert put(draft("%RETRY%" + "g" * 249)).status is PutStatus.MESSAGE_ILLEGAL
    assert put(draft("t" * 127)).status is PutStatus.PUT_OK


@pytest.mark.spec("store.12.13")
@pytest.mark.parametrize(
    "wrong",
    [
        draft("%RETRY%G"),
        draft(properties=b"DELAY\x013\x02"),
        draft(sys_flag=0x4),
    ],
)
def test_batches_that_are_refused(store: SmallStore, wrong: Draft) -> None:
    result = store.putter.put_batch(wrong, Batch.of([BatchMessage(b"a")]))
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert store.log.max_offset == 0
    assert store.putter.put_batch(draft(), Batch.of([])).status is PutStatus.MESSAGE_ILLEGAL


def test_a_batch_has_consecutive_offsets(store: SmallStore) -> None:
    store.putter.put(draft())
    messages = [BatchMessage(b"m%d" % number, b"TAGS\x01A\x02") for number in range(3)]
    result = store.putter.put_batch(draft(), Batch.of(messages))
    assert (result.queue_offset, result.message_count) == (1, 3)
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert (queue.next_offset, queue.max_offset) == (4, 4)
    entries = [queue.read_entry(offset) for offset in (1, 2, 3)]
    assert [entry.log_offset for entry in entries if entry] == [
        result.log_offset + number * (result.size // 3) for number in range(3)
    ]


def test_an_inner_batch_is_one_record_and_many_messages(store: SmallStore) -> None:
    body = encode_batch([BatchMessage(b"a"), BatchMessage(b"b")])
    first = store.putter.put_inner_batch(draft("B", body=body, properties=b"UNIQ_KEY\x01U"), 2)
    second = store.putter.put_inner_batch(draft("B", body=body), 2)
    assert (first.queue_offset, second.queue_offset) == (0, 2)
    lease = store.log.lease(first.log_offset, first.size)
    assert lease is not None
    record = decode_record(bytes(lease.view))
    lease.release()
    assert record.sys_flag == 0xC0
    assert record.raw_properties == b"INNER_BASE\x010\x02UNIQ_KEY\x01U\x02INNER_NUM\x012\x02"
    queue = store.queues.get("B", 0)
    assert queue is not None
    assert (queue.max_offset, queue.next_offset) == (4, 4)
    assert store.putter.put_inner_batch(draft("B"), 0).status is PutStatus.MESSAGE_ILLEGAL
    # a sender cannot claim to have one in an ordinary topic
    assert store.putter.put(draft(sys_flag=0x80)).status is PutStatus.MESSAGE_ILLEGAL


def test_half_messages_have_no_queue_entry_and_use_up_no_offset(store: SmallStore) -> None:
    assert store.putter.put(draft(sys_flag=0x4)).queue_offset == 0
    assert store.putter.put(draft(sys_flag=0xC)).queue_offset == 0
    assert store.putter.put(draft(sys_flag=0x8)).queue_offset == 0
    assert store.putter.put(draft()).queue_offset == 1
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == 2


def test_flags_and_shutdown_refuse(store: SmallStore) -> None:
    store.flags.set(StoreFlag.DISK_FULL)
    assert store.putter.put(draft()).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.flags.set(StoreFlag.DISK_FULL, on=False)
    assert store.putter.put(draft()).status is PutStatus.PUT_OK
    store.putter.shut_down()
    assert store.putter.put(draft()).status is PutStatus.SERVICE_NOT_AVAILABLE
    refused = store.putter.put_batch(draft(), Batch.of([BatchMessage(b"a")]))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE


def state(flags: RunningFlags) -> tuple[bool, bool]:
    return flags.readable, flags.writeable


def test_running_flags() -> None:
    flags = RunningFlags()
    assert state(flags) == (True, True)
    assert flags.set(StoreFlag.NOT_READABLE)
    assert state(flags) == (False, True)
    assert not flags.set(StoreFlag.NOT_READABLE)
    flags.set(StoreFlag.INDEX_ERROR)
    assert state(flags) == (False, True)
    flags.set(StoreFlag.LOGICS_ERROR)
    assert state(flags) == (False, False)
    assert flags.has(StoreFlag.LOGICS_ERROR)
    assert flags.set(StoreFlag.LOGICS_ERROR, on=False)
    assert state(flags) == (False, True)
    assert flags.bits == 9


def test_properties_that_recovery_would_take_for_torn_are_refused(store: SmallStore) -> None:
    assert store.putter.put(draft(properties=b"k\x01v\0")).status is PutStatus.MESSAGE_ILLEGAL
    sector = b"k\x01" + bytes(512) + b"\x02"
    assert store.putter.put(draft(properties=sector)).status is PutStatus.MESSAGE_ILLEGAL
    assert store.putter.put_run([draft(properties=sector)] * 2)[1].status is (
        PutStatus.MESSAGE_ILLEGAL
    )
    assert store.log.max_offset == 0
    for zeros in (b"k\x01\0v", b"k\x01" + bytes(511) + b"\x02"):
        assert store.putter.put(draft(properties=zeros)).status is PutStatus.PUT_OK


def test_those_of_one_message_of_a_batch_are_refused_as_well(store: SmallStore) -> None:
    usual = BatchMessage(b"a", b"k\x01v\x02")
    sector = b"k\x01" + bytes(512) + b"\x02"
    for torn in (b"k\x01\0", b"k\x01v\0", sector):  # of another size, and of the same
        batch = Batch.of([usual, BatchMessage(b"b", torn)])
        assert store.putter.put_batch(draft(), batch).status is PutStatus.MESSAGE_ILLEGAL
    assert store.log.max_offset == 0
    within = Batch.of([usual, BatchMessage(b"b", b"k\x01\0\x02")])
    assert store.putter.put_batch(draft(), within).status is PutStatus.PUT_OK


def test_one_message_without_body_refuses_its_batch(store: SmallStore) -> None:
    for bodies in ([b"a", b""], [b"", b""]):
        batch = Batch.of([BatchMessage(body) for body in bodies])
        assert store.putter.put_batch(draft(), batch).status is PutStatus.MESSAGE_ILLEGAL
    assert store.log.max_offset == 0


# ---- unexpected errors ---------------------------------------------------------------------------


def in_view(store: SmallStore, topic: str = "T") -> list[int]:
    """Log offsets of the entries of a queue, which must be as many as the queue has given away."""
    queue = store.queues.get(topic, 0)
    assert queue is not None
    assert queue.max_offset == queue.next_offset
    entries = [queue.read_entry(offset) for offset in range(queue.max_offset)]
    return [entry.log_offset for entry in entries if entry is not None]


def test_a_message_that_breaks_its_run_fails_alone(
    store: SmallStore, caplog: pytest.LogCaptureFixture
) -> None:
    impossible = draft(flag=1 << 40)  # not checked before it is packed
    results = store.putter.put_run([draft(), draft(), impossible, draft()])
    assert [result.status for result in results] == [
        PutStatus.PUT_OK, PutStatus.PUT_OK, PutStatus.UNKNOWN_ERROR, PutStatus.PUT_OK,
    ]  # fmt: skip
    assert in_view(store) == [results[index].log_offset for index in (0, 1, 3)]
    assert store.dispatch.dispatched_until == store.log.max_offset
    assert caplog.text.count("the store cannot store a message") == 1
    after = store.putter.put(draft())
    assert (after.queue_offset, in_view(store)[-1]) == (3, after.log_offset)


def put_inner(putter: Putter) -> PutResult:
    return putter.put_inner_batch(draft(body=encode_batch([BatchMessage(b"a")])), 1)


PUTS: dict[str, Callable[[Putter], PutResult]] = {
    "put": lambda putter: putter.put(draft()),
    "run": lambda putter: putter.put_run([draft(), draft(), draft()])[0],
    "batch": lambda putter: putter.put_batch(draft(), Batch.of([BatchMessage(b"a")] * 3)),
    "inner batch": put_inner,
}


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_a_failing_arrival_callback_does_not_undo_a_put(
    store: SmallStore, put: Callable[[Putter], PutResult]
) -> None:
    """What follows in a run is dispatched as well: it would be invisible until a restart."""

    def fail(arrival: Arrival) -> None:
        raise RuntimeError("a bug")

    dispatch = Reput(store.index, TagsCodes(), on_arrival=fail)
    putter = Putter(store.config, store.log, store.queues, dispatch, store.flags)
    results = [put(putter), put(putter)]
    assert {result.status for result in results} == {PutStatus.PUT_OK}
    found = in_view(store)
    assert len(set(found)) == results[1].queue_offset * 2
    assert found[:: results[1].queue_offset] == [result.log_offset for result in results]
    assert dispatch.dispatched_until == store.log.max_offset


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_a_dispatch_that_fails_midway_is_continued(
    store: SmallStore, monkeypatch: pytest.MonkeyPatch, put: Callable[[Putter], PutResult]
) -> None:
    index = store.index
    real, failures = index.put_run, [MemoryError()]

    def fail_once(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        real(*arguments)

    monkeypatch.setattr(index, "put_run", fail_once)
    assert put(store.putter).status is PutStatus.PUT_OK
    assert not failures
    assert len(in_view(store)) == put(store.putter).queue_offset
    assert store.dispatch.dispatched_until == store.log.max_offset


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_a_message_whose_entries_cannot_be_made_is_an_error(
    store: SmallStore, monkeypatch: pytest.MonkeyPatch, put: Callable[[Putter], PutResult]
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(store.index, "put_run", fail)
    with pytest.raises(MemoryError):
        put(store.putter)


def test_records_that_wait_for_the_disk_are_not_dispatched_twice(
    store: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = Reput(store.index, TagsCodes(), after_flush=True)
    putter = Putter(store.config, store.log, store.queues, dispatch, store.flags)
    real = dispatch.add_run

    def fail_late(*arguments: Any) -> None:
        real(*arguments)
        raise MemoryError

    monkeypatch.setattr(dispatch, "add_run", fail_late)
    with pytest.raises(MemoryError):
        putter.put_run([draft(), draft()])
    dispatch.release(store.log.max_offset)
    assert len(in_view(store)) == 2
