"""The whole store: what a producer is answered, what a consumer can read, and when."""

from __future__ import annotations

import errno
import random
from functools import partial
from typing import Any

import pytest

from skylark.core.hashing import encode_offset_id
from skylark.store.commit_log import Draft
from skylark.store.errors import StoreFileError
from skylark.store.message_reader import StoreNotReadableError
from skylark.store.message_store import MessageStore
from skylark.store.reput import Arrival
from skylark.store.running_flags import StoreFlag
from skylark.store.store_results import GetStatus, PutResult, PutStatus
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.layout import FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK
from tests.support.store_machine import (
    HOST,
    ROOT,
    SMALL,
    Ledger,
    Machine,
    bodies,
    check_store,
    read_queue,
    records_of,
    sync_flush,
)
from tests.unit.store.crash_store import remove_tree

QUEUE = ("TopicTest", 0)
OTHER = ("TopicTest", 1)
FILE_SIZE = SMALL["mapped_file_size_commit_log"]


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def disk() -> FaultyFileSystem:
    return FaultyFileSystem(capacity=32 << 20)


def draft(body: bytes = b"body", properties: bytes = b"", topic: str = QUEUE[0]) -> Draft:
    return Draft(topic, 0, body, properties, born_host=HOST)


def put(store: MessageStore, body: bytes = b"body") -> PutResult:
    """Put a message as a broker does, with a callback for the result."""
    result = store.put(draft(body))
    store.when_durable(result, lambda _: None)
    return result


def found_keys(store: MessageStore, key: str) -> list[bytes]:
    result = store.reader.query(QUEUE[0], key, 32)
    found = [record.body for record in records_of(result.views)]
    result.release()
    return found


# ---- put and get ---------------------------------------------------------------------------------


def test_what_is_put_is_found_by_offset_time_and_key(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk)
    ledger = Ledger(random.Random(1))
    for _ in range(200):
        ledger.put_any(store, random.Random(len(ledger.messages)).choice((QUEUE, OTHER)))
        machine.advance(7)
    assert store.log.max_offset > 5 * FILE_SIZE
    check_store(store, ledger)
    messages = ledger.find(QUEUE)
    middle = messages[len(messages) // 2]
    stored = store.reader.store_time(*QUEUE, middle.queue_offset)
    assert stored is not None
    # Only the messages of a batch share a store time.
    found = store.reader.offset_by_time(*QUEUE, stored)
    assert 0 <= middle.queue_offset - found < 6
    machine.close(store)


def test_messages_arrive_in_the_order_of_the_log(machine: Machine, disk: FaultyFileSystem) -> None:
    arrivals: list[Arrival] = []
    config = machine.store(disk).config
    store = MessageStore(
        config,
        store_host=HOST,
        scheduler=machine,
        post=machine.post,
        files=disk,
        on_arrival=arrivals.append,
        make_worker=machine.make_worker,
    )
    store.open()
    store.put(draft(properties=b"TAGS\x01TagA\x02"))
    store.put(Draft(*QUEUE, b"half", born_host=HOST, sys_flag=FLAG_TRANSACTION_PREPARED))
    store.put(Draft(*OTHER, b"x", born_host=HOST))
    store.put(draft())
    assert [(it.topic, it.queue_id, it.next_offset, it.tags_code) for it in arrivals] == [
        ("TopicTest", 0, 1, 2598919),
        ("TopicTest", 1, 1, 0),
        ("TopicTest", 0, 2, 0),
    ]
    assert arrivals[0].properties == b"TAGS\x01TagA\x02"


def test_what_the_index_learns_during_a_sync_is_found_when_the_sync_is_done(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk, **sync_flush(True))
    assert store.index is not None
    answers: list[PutStatus] = []
    result = store.put(draft(b"a", b"KEYS\x01k\x02"))
    store.when_durable(result, answers.append)
    machine.turn()  # the sync is on its way
    assert store.index.query(QUEUE[0], "k").log_offsets == [0]
    assert (found_keys(store, "k"), read_queue(store, QUEUE), answers) == ([], [], [])
    machine.settle()
    assert (found_keys(store, "k"), answers) == ([b"a"], [PutStatus.PUT_OK])
    assert [record.body for record in read_queue(store, QUEUE)] == [b"a"]
    machine.close(store)


@pytest.mark.spec("store.12.12")
def test_a_batch_gets_consecutive_offsets_and_never_straddles_two_files(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk)
    store.put(draft(b"first"))
    parts = Batch.of([BatchMessage(b"x%d" % number, b"TAGS\x01A\x02") for number in (1, 2, 3)])
    size = 91 + len("TopicTest") + 2 + len("TAGS\x01A\x02")
    result = store.put_batch(draft(b""), parts)
    assert (result.status, result.queue_offset, result.message_count) == (PutStatus.PUT_OK, 1, 3)
    assert result.size == 3 * size
    records = read_queue(store, QUEUE)[1:]
    assert [(it.queue_offset, it.body) for it in records] == [(1, b"x1"), (2, b"x2"), (3, b"x3")]
    assert [encode_offset_id(HOST, it.log_offset) for it in records] == [
        f"7F00000100002A9F{result.log_offset + number * size:016X}" for number in range(3)
    ]
    # Room for two of the three, and for the blank that ends the file.
    room = FILE_SIZE - store.log.max_offset
    filler = room - (91 + len("TopicTest")) - 2 * size - 8
    store.put(draft(bytes(filler)))
    assert FILE_SIZE - store.log.max_offset == 2 * size + 8
    assert store.put_batch(draft(b""), parts).log_offset == FILE_SIZE
    assert [it.log_offset for it in read_queue(store, QUEUE)[-3:]] == [
        FILE_SIZE + number * size for number in range(3)
    ]
    assert store.reader.record(FILE_SIZE - 2 * size - 8) is None  # a blank is no record


def test_a_record_larger_than_a_file_is_refused(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk)
    result = store.put(draft(bytes(FILE_SIZE)))
    assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert store.put(draft()).queue_offset == 0


@pytest.mark.parametrize("topic", ["", "..", "a/b", "a\0b"])
def test_a_topic_that_cannot_be_a_directory_is_illegal(
    machine: Machine, disk: FaultyFileSystem, topic: str
) -> None:
    store = machine.opened(disk)
    assert store.put(draft(topic=topic)).status is PutStatus.MESSAGE_ILLEGAL
    batch = Batch.of([BatchMessage(b"x")])
    assert store.put_batch(draft(topic=topic), batch).status is PutStatus.MESSAGE_ILLEGAL
    assert store.log.max_offset == 0


@pytest.mark.spec("store.12.14")
def test_transactions_are_found_by_key_and_not_in_queues(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk)
    for kind, key in ((FLAG_TRANSACTION_PREPARED, b"half"), (FLAG_TRANSACTION_ROLLBACK, b"back")):
        sys_flag, properties = kind, b"KEYS\x01" + key + b"\x02"
        result = store.put(Draft(*QUEUE, key, properties, sys_flag=sys_flag, born_host=HOST))
        assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 0)
    assert store.reader.get(*QUEUE, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert found_keys(store, "half") == [b"half"]
    assert found_keys(store, "back") == []


# ---- waiting for the disk ------------------------------------------------------------------------


@pytest.mark.spec("store.12.19")
def test_sync_flush_with_a_disk_that_hangs(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk, **sync_flush(True))
    answers: list[tuple[str, PutStatus, float]] = []

    def put_named(name: str, *, wait: bool = True) -> None:
        result = store.put(draft(name.encode(), b"KEYS\x01%s\x02" % name.encode()))
        store.when_durable(
            result, lambda status: answers.append((name, status, machine.now)), wait=wait
        )

    began = machine.now
    put_named("waits")
    put_named("does not wait", wait=False)
    assert answers == [("does not wait", PutStatus.PUT_OK, began)]
    machine.advance(4_999, worker=False)
    assert len(answers) == 1
    machine.advance(1_001, worker=False)
    name, status, when = answers[1]
    assert (name, int(status.code)) == ("waits", 10)
    assert when == pytest.approx(began + 5.0)
    # Nobody reads what is not on disk.
    assert store.reader.max_offset(*QUEUE) == 0
    assert store.reader.get(*QUEUE, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert found_keys(store, "waits") == []
    machine.settle()
    assert bodies(store, QUEUE) == [b"waits", b"does not wait"]
    assert found_keys(store, "waits") == [b"waits"]
    assert len(answers) == 2


def test_sync_flush_answers_in_order_after_one_sync(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk, **sync_flush(True))
    answers: list[tuple[int, PutStatus]] = []
    before = disk.plan.visits["files.sync"]
    for number in range(50):
        result = store.put(draft(b"%d" % number))
        store.when_durable(result, partial(_record_outcome, answers, number))
    assert answers == []
    machine.workers["space"].jobs.clear()  # no other sync than the flush
    machine.settle()
    assert answers == [(number, PutStatus.PUT_OK) for number in range(50)]
    assert disk.plan.visits["files.sync"] - before - 1 == 1  # and the one that made the file


def _record_outcome(answers: list[tuple[int, PutStatus]], number: int, status: PutStatus) -> None:
    answers.append((number, status))


def test_a_sync_that_fails_acknowledges_nothing(machine: Machine) -> None:
    plan = FaultPlan(1)
    disk = FaultyFileSystem(plan)
    store = machine.opened(disk, **sync_flush(True))
    put(store, b"before")
    machine.settle()
    plan.at("files.sync", nth=1, error=errno.EIO)
    answers: list[PutStatus] = []
    store.when_durable(store.put(draft(b"after")), answers.append)
    machine.settle()
    assert answers == []
    assert bodies(store, QUEUE) == [b"before"]
    machine.advance(100)
    assert answers == [PutStatus.PUT_OK]
    survivors = machine.opened(disk.power_loss(), **sync_flush(True))
    assert bodies(survivors, QUEUE) == [b"before", b"after"]


def test_uncommitted_messages_are_readable_if_configured(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk, **sync_flush(True), read_un_committed=True)
    store.put(draft())
    assert bodies(store, QUEUE) == [b"body"]


def test_async_flush_answers_at_once_and_syncs_by_interval(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk)
    answers: list[PutStatus] = []
    result = store.put(draft())
    store.when_durable(result, answers.append)
    assert answers == [PutStatus.PUT_OK]
    assert bodies(store, QUEUE) == [b"body"]
    assert store.log.files.flushed_where == 0
    machine.advance(500)
    assert store.log.files.flushed_where == result.next_offset


def test_a_refused_put_is_answered_as_it_is(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk, **sync_flush(True))
    answers: list[PutStatus] = []
    store.when_durable(store.put(draft(b"")), answers.append)
    assert answers == [PutStatus.MESSAGE_ILLEGAL]


# ---- the transient pool --------------------------------------------------------------------------

POOL: dict[str, Any] = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}


def test_readers_see_what_is_committed(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk, **POOL)
    answers: list[PutStatus] = []
    store.when_durable(store.put(draft(b"one")), answers.append)
    assert answers == [PutStatus.PUT_OK]
    assert store.reader.max_offset(*QUEUE) == 0
    machine.turn()
    assert store.reader.max_offset(*QUEUE) == 0  # the worker has not written it yet
    machine.settle()
    assert bodies(store, QUEUE) == [b"one"]
    store.when_durable(store.put(draft(b"two")), answers.append)
    machine.settle()
    assert bodies(store, QUEUE) == [b"one"]  # less than four pages wait for the interval
    machine.advance(200)
    assert bodies(store, QUEUE) == [b"one", b"two"]


def test_a_kill_loses_what_is_not_committed_and_no_more(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk, **POOL)
    ledger = Ledger(random.Random(2))
    for _ in range(100):
        ledger.put_any(store, QUEUE)
        machine.advance(20)
    machine.advance(200)
    committed = store.log.max_offset
    assert committed == ledger.log_end > 2 * FILE_SIZE
    for _ in range(3):
        assert ledger.put(store, QUEUE).status is PutStatus.PUT_OK
    assert store.log.max_offset == committed
    machine = Machine()
    survivor = machine.opened(disk.kill(), **POOL)
    assert survivor.log.max_offset == committed
    ledger.cut(committed)
    machine.advance(1)
    check_store(survivor, ledger)


def test_an_orderly_end_loses_nothing_of_the_pool(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk, **POOL)
    store.put(draft(b"one"))
    machine.close(store)
    assert bodies(machine.opened(disk, **POOL), QUEUE) == [b"one"]


def test_an_empty_pool_is_seen_before_a_put(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk, **POOL)
    states = []
    for _ in range(10):
        states.append(store.is_busy)
        assert store.put(draft(bytes(1_000))).status is PutStatus.PUT_OK
    machine.advance(400)
    states.append(store.is_busy)
    # Seven records fill a file, and the second buffer is the last one.
    assert states == [False] * 8 + [True] * 2 + [False]


# ---- a full disk ---------------------------------------------------------------------------------


@pytest.mark.spec("store.12.15")
@pytest.mark.spec("store.12.33")
@pytest.mark.parametrize("synchronous", [False, True])
def test_a_full_disk_refuses_messages_until_there_is_room(
    machine: Machine, disk: FaultyFileSystem, synchronous: bool
) -> None:
    store = machine.opened(disk, **sync_flush(synchronous), disk_space_clean_forcibly_ratio=85)
    count = 0
    while count < 10:
        assert put(store, b"%d" % count).status is PutStatus.PUT_OK
        count += 1
    machine.advance(6_000)
    disk.capacity = disk.capacity - disk.disk_usage(store.config.commit_log_path).free
    while (result := put(store, b"%d" % count)).status is PutStatus.PUT_OK:
        count += 1
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.flags.has(StoreFlag.DISK_FULL)
    machine.advance(20_000)
    assert put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    expected = [b"%d" % number for number in range(count)]
    assert bodies(store, QUEUE) == expected  # reading goes on
    disk.capacity = 32 << 20
    machine.advance(60_000)
    assert store.flags.writeable
    result = put(store, b"%d" % count)
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, count)
    machine.advance(6_000)
    assert bodies(store, QUEUE) == [*expected, b"%d" % count]
    machine.close(store)
    assert bodies(machine.opened(disk), QUEUE) == [*expected, b"%d" % count]


def test_a_disk_that_is_full_when_the_store_opens(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk)
    for number in range(100):
        store.put(draft(b"%d" % number))
    disk = disk.kill()
    disk.capacity = 1 << 20
    disk.capacity -= disk.disk_usage(store.config.commit_log_path).free
    machine = Machine()
    survivor = machine.opened(disk)
    machine.advance(6_000)
    assert bodies(survivor, QUEUE) == [b"%d" % number for number in range(100)]
    while survivor.put(draft(bytes(1_000))).status is PutStatus.PUT_OK:
        pass
    disk.capacity = 32 << 20
    machine.advance(120_000)
    assert survivor.put(draft()).status is PutStatus.PUT_OK
    machine.close(survivor)


# ---- old messages --------------------------------------------------------------------------------


@pytest.mark.spec("store.12.32")
def test_expired_files_go_and_the_numbering_goes_on(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk, file_reserved_time=1)
    ledger = Ledger(random.Random(3))
    ledger.put(store, OTHER)
    while ledger.log_end < 3 * FILE_SIZE:
        ledger.put(store, QUEUE)
    machine.advance(7_200_000)
    ledger.put(store, QUEUE)
    store.retention.request_deletion()
    machine.advance(11_000)
    assert store.log.min_offset == 3 * FILE_SIZE
    check_store(store, ledger)
    assert store.reader.min_offset(*OTHER) == store.reader.max_offset(*OTHER) == 1
    assert ledger.put(store, OTHER).queue_offset == 1
    machine.close(store)
    again = machine.opened(disk)
    check_store(again, ledger)


def test_a_deleted_file_that_was_being_read_is_back_after_a_crash(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    settings: dict[str, Any] = {"file_reserved_time": 0, "mapped_file_size_consume_queue": 5 * 20}
    store = machine.opened(disk, **settings)
    ledger = Ledger(random.Random(4))
    while ledger.log_end < 3.5 * FILE_SIZE:
        ledger.put(store, QUEUE)
        machine.advance(1_000)  # or recovery would read the old files again
    machine.advance(11_000)  # everything is on disk
    held = store.reader.get(*QUEUE, 0, 1, bulk=True)  # as memory views
    store.retention.request_deletion()
    machine.advance(61_000)
    assert store.log.min_offset == 3 * FILE_SIZE
    assert store.reader.min_offset(*QUEUE) == ledger.find(QUEUE, 3 * FILE_SIZE)[0].queue_offset
    machine.advance(11_000)  # and so are the derived files
    disk = disk.power_loss()
    held.release()
    machine = Machine()
    again = machine.store(disk, **settings)
    assert again.open().scan_start == 3 * FILE_SIZE
    again.start()
    machine.advance(1)  # the index catches up
    assert again.log.min_offset == 0
    assert again.reader.min_offset(*QUEUE) == 0
    check_store(again, ledger)
    machine.close(again)


def test_the_listener_is_called_before_messages_are_deleted(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    told: list[tuple[int, int, bool]] = []

    def on_delete(start: int, end: int, forced: bool) -> None:
        lease = store.reader.record(start)
        assert lease is not None  # still readable
        lease.release()
        told.append((start, end, forced))

    store = machine.store(disk, on_delete=on_delete, file_reserved_time=1)
    store.open()
    store.start()
    ledger = Ledger(random.Random(5))
    while ledger.log_end < 2 * FILE_SIZE:
        ledger.put(store, QUEUE)
    machine.advance(7_200_000)
    assert told == []
    store.retention.request_deletion()
    machine.advance(11_000)
    assert told == [(0, FILE_SIZE, False), (FILE_SIZE, 2 * FILE_SIZE, False)]
    assert store.log.min_offset == 2 * FILE_SIZE
    machine.close(store)


@pytest.mark.parametrize("damage", ["size", "gap"])
def test_broken_queues_are_rebuilt_by_the_hint_of_the_error(
    machine: Machine, disk: FaultyFileSystem, damage: str
) -> None:
    store = machine.opened(disk, mapped_file_size_consume_queue=5 * 20)
    ledger = Ledger(random.Random(6))
    for number in range(40):
        ledger.put(store, (QUEUE, OTHER)[number % 2])
    machine.close(store)
    directory = ROOT / "consumequeue" / QUEUE[0] / "0"
    if damage == "size":
        disk.truncate(directory / f"{0:020d}", 99)
    else:
        disk.remove(directory / f"{100:020d}")
    refused = machine.store(disk, mapped_file_size_consume_queue=5 * 20)
    with pytest.raises(StoreFileError) as caught:
        refused.open()
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(
        "delete the directories consumequeue and batchconsumequeue: the next start rebuilds all "
        "queues from the log"
    )
    remove_tree(disk, ROOT / "consumequeue")
    again = machine.opened(disk, mapped_file_size_consume_queue=5 * 20)
    check_store(again, ledger)
    assert ledger.put(again, QUEUE).queue_offset == 20
    machine.close(again)


def test_a_closed_store_refuses_everything(machine: Machine, disk: FaultyFileSystem) -> None:
    store = machine.opened(disk)
    store.put(draft())
    machine.close(store)
    assert store.put(draft()).status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreNotReadableError, match="not readable"):
        store.reader.get(*QUEUE, 0, 32)
