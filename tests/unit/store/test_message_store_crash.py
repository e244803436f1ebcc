"""The whole store and single misfortunes, each of which long random runs had found.

The runs are in ``tests/support/store_power.py`` and ``tests/support/store_kills.py``.
"""

from __future__ import annotations

import errno
import random
from itertools import islice
from typing import Any

import pytest

from skylark.core.errors import StoreError
from skylark.store.commit_log import Draft, topic_field
from skylark.store.errors import StoreSyncError
from skylark.store.message_store import MessageStore
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import (
    CHECKPOINT,
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
)
from skylark.wire.message import RecordFault
from tests.support.store_machine import (
    HOST,
    ROOT,
    SMALL,
    Ledger,
    Machine,
    bodies,
    check_store,
    read_queue,
)

QUEUE = ("TopicTest", 0)
OTHER = ("TopicTest", 1)
FILE_SIZE = SMALL["mapped_file_size_commit_log"]
FIRST_FILE = ROOT / "commitlog" / f"{0:020d}"


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def disk() -> FaultyFileSystem:
    return FaultyFileSystem(FaultPlan(1), write_back_probability=0.0)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(random.Random(1))


def put(store: MessageStore, body: bytes, properties: bytes = b"") -> None:
    result = store.put(Draft(*QUEUE, body, properties, born_host=HOST))
    store.when_durable(result, lambda _: None)


def fill(store: MessageStore, ledger: Ledger, until: int) -> None:
    while ledger.log_end < until:
        ledger.put(store, QUEUE)


# ---- a record that is not whole ------------------------------------------------------------------


class Dying(bytearray):
    """Memory of a process that is killed at a certain write to it."""

    writes_left = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise KeyboardInterrupt
        super().__setitem__(key, value)


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("batch", [False, True])
def test_a_record_is_none_before_its_last_step(
    machine: Machine, disk: FaultyFileSystem, writes: int, batch: bool
) -> None:
    """Killed at any line of an append, a process leaves nothing that looks like a record."""
    store = machine.opened(disk)
    put(store, b"first")
    file = store.log.files.last
    memory = file.buffer = Dying(file.buffer)  # type: ignore[assignment]
    memory.writes_left = writes
    ledger = Ledger(random.Random(1))
    with pytest.raises(KeyboardInterrupt):
        (ledger.put_batch if batch else ledger.put)(store, QUEUE)
    position = file.wrote
    blank_size = 4 if batch else 88  # the size of a batch's first record is what comes last
    assert memory[position : position + blank_size] == bytes(blank_size)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_zeros_at_the_end_of_the_properties_are_no_properties(
    machine: Machine, disk: FaultyFileSystem, cut: int
) -> None:
    """The checksum covers the body alone: what else a crash took must show by itself."""
    store = machine.opened(disk)
    put(store, b"first", b"TAGS\x01TagA\x02")
    put(store, b"second", b"KEYS\x01a key that is long enough\x02TAGS\x01TagA\x02")
    end = store.log.max_offset
    disk = disk.kill()
    content = disk.read_file(FIRST_FILE)
    disk.install(FIRST_FILE, content[: end - cut].ljust(FILE_SIZE, b"\0"))
    survivor = Machine().store(disk)
    report = survivor.open()
    assert (report.fault, report.replayed_records) == (RecordFault.UNWRITTEN, 1)
    assert bodies(survivor, QUEUE) == [b"first"]


def test_a_lost_sector_within_the_properties_is_seen(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    store = machine.opened(disk)
    put(store, b"first")
    put(store, b"second", b"a\x01" + b"b" * 2_000 + b"\x02")
    put(store, b"third")
    disk = disk.kill()
    content = disk.read_file(FIRST_FILE)
    assert content[512:1536] == b"b" * 1024
    for sector in (512, 1024, 1536):
        torn = content[:sector] + bytes(512) + content[sector + 512 :]
        disk.install(FIRST_FILE, torn)
        survivor = Machine().store(disk)
        assert survivor.open().fault is RecordFault.UNWRITTEN
        assert bodies(survivor, QUEUE) == [b"first"]
        survivor.close()
        disk.install(ROOT / "abort", b"")


@pytest.mark.parametrize("properties", [b"", b"a\x01\0\0\0\0\x02", b"a\x01" + bytes(511) + b"\x02"])
def test_zeros_that_were_put_are_kept(
    machine: Machine, disk: FaultyFileSystem, properties: bytes
) -> None:
    """An empty property string ends with the zeros of its length, wherever the sector ends."""
    store = machine.opened(disk)
    for number in range(600):
        put(store, bytes([number % 7]) * (1 + number % 50), properties)
    survivor = Machine().opened(disk.kill())
    assert len(read_queue(survivor, QUEUE)) == 600


def test_a_record_covered_by_the_checkpoint_may_end_with_a_zero(
    machine: Machine, disk: FaultyFileSystem
) -> None:
    """Other writers leave the last separator out, and then a value may be anything."""
    store = machine.opened(disk)
    queue = store.queues.get_or_create(*QUEUE)
    for number in range(10):
        draft = Draft(queue.topic, queue.queue_id, b"body", b"a\x01\0")
        result = store.log.append(draft, topic_field(queue.topic), number, store.log.now_ms())
        queue.next_offset = number + 1
        row = (queue, result.log_offset, result.size, 0, draft.properties)
        store.dispatch.add_run([row], result.store_timestamp)
    machine.advance(6_000)
    assert store.checkpoint.logics_physical_offset == store.log.max_offset
    survivor = Machine().opened(disk.kill())
    assert bodies(survivor, QUEUE) == [b"body"] * 10


# ---- what the checkpoint says --------------------------------------------------------------------


def test_the_checkpoint_never_passes_what_is_on_disk(
    machine: Machine, disk: FaultyFileSystem, ledger: Ledger
) -> None:
    """Else a clock that was set back lets recovery begin after what a power loss has torn."""
    store = machine.opened(disk, flush_commit_log_least_pages=0)
    fill(store, ledger, 1_000)
    machine.advance(6_000)
    flushed_where = store.log.files.flushed_where
    assert store.checkpoint.logics_physical_offset == flushed_where == ledger.log_end
    store.log.files.last.handle.sync = _fail  # type: ignore[method-assign]
    machine.skew_ms -= 3_600_000
    fill(store, ledger, 3 * FILE_SIZE)
    machine.advance(12_000)
    assert store.log.files.flushed_where == flushed_where
    assert store.queues.dirty_count == 0
    assert store.checkpoint.logics_physical_offset == flushed_where


def _fail() -> None:
    raise StoreSyncError("cannot sync", path=FIRST_FILE, errno=errno.EIO)


def test_a_checkpoint_is_written_for_records_without_entries(
    machine: Machine, disk: FaultyFileSystem, ledger: Ledger
) -> None:
    """Half messages without keys leave the derived files as they are; the log continues."""
    store = machine.opened(disk, message_index_enable=False)
    for _ in range(10):
        ledger.put(store, QUEUE, sys_flag=0x4)
    machine.advance(12_000)
    assert store.checkpoint.logics_physical_offset == ledger.log_end
    before = disk.plan.visits["files.sync"]
    machine.advance(60_000)
    assert disk.plan.visits["files.sync"] == before  # an idle store syncs nothing


def test_a_failed_sync_of_derived_files_is_repeated(
    machine: Machine, disk: FaultyFileSystem, ledger: Ledger
) -> None:
    store = machine.opened(disk)
    ledger.put(store, QUEUE)
    machine.advance(900)
    plan = disk.plan
    plan.at("files.open", nth=range(1, 40), error=errno.EMFILE)
    machine.advance(20_000)  # no error reaches the event loop
    assert plan.hits["files.open/error"] > 3
    assert store.checkpoint.logics_physical_offset == 0
    plan.clear()
    machine.advance(10_000)
    assert store.checkpoint.logics_physical_offset == ledger.log_end
    check_survivor(disk, ledger)


def check_survivor(disk: FaultyFileSystem, ledger: Ledger) -> MessageStore:
    """Lose power, and check what comes up after that."""
    machine = Machine()
    store = machine.store(disk.power_loss())
    assert store.open().misplaced_records == 0
    store.start()
    machine.advance(1)  # the index catches up
    check_store(store, ledger)
    return store


# ---- what retention may take ---------------------------------------------------------------------


def test_expired_files_stay_until_their_queue_entries_are_on_disk(
    machine: Machine, disk: FaultyFileSystem, ledger: Ledger
) -> None:
    """Else a crash would lose the numbering of queues whose messages are all gone."""
    plan = disk.plan
    store = machine.opened(disk, file_reserved_time=0)
    ledger.put(store, OTHER)
    fill(store, ledger, 2 * FILE_SIZE)
    plan.chance("files.write", 1.0, error=errno.EIO)
    for _ in range(8):
        store.retention.request_deletion()
        machine.advance(10_000)
    assert store.log.files.flushed_where == ledger.log_end
    assert store.log.min_offset == 0
    plan.clear()
    machine.advance(12_000)
    store.retention.request_deletion()
    machine.advance(12_000)
    assert store.log.min_offset == 2 * FILE_SIZE
    check_store(store, ledger)
    survivor = check_survivor(disk, ledger)
    assert survivor.reader.max_offset(*OTHER) == 1


def test_a_queue_restarts_where_its_entries_are_lost_with_their_records(
    machine: Machine, disk: FaultyFileSystem, ledger: Ledger
) -> None:
    """Files that had to go because there was no room do not wait for anything."""
    store = machine.opened(disk, disk_used_bytes_max=FILE_SIZE)
    ledger.put(store, QUEUE)
    machine.advance(6_000)  # one entry is on disk
    plan = disk.plan
    fill(store, ledger, 2 * FILE_SIZE)
    plan.chance("files.write", 1.0, error=errno.EIO)  # and no further one
    machine.advance(80_000)
    assert store.log.min_offset >= FILE_SIZE
    plan.clear()
    survivor = check_survivor(disk, ledger)
    assert survivor.reader.min_offset(*QUEUE) > 10


# ---- keys of a store that a Java broker takes over -----------------------------------------------


def check_java_finds_all(disk: FaultyFileSystem, ledger: Ledger) -> None:
    """What Java keeps of the index, and what it makes again, are the keys of all records.

    After a crash Java keeps the index files that end no later than the checkpoint says, and makes
    entries from the log file on that holds the offset of the checkpoint.
    """
    values = CHECKPOINT.unpack_from(disk.read_file(ROOT / "checkpoint"))
    replayed_from = values[5] - values[5] % FILE_SIZE
    kept: set[int] = set()
    for entry in disk.list_directory(ROOT / "index"):
        content = disk.read_file(ROOT / "index" / entry.name)
        _, end_timestamp, _, _, _, next_entry = INDEX_HEADER.unpack_from(content)
        if end_timestamp <= values[2]:
            start = INDEX_HEADER_SIZE + SMALL["max_hash_slot_num"] * INDEX_SLOT_SIZE
            entries = INDEX_ENTRY.iter_unpack(content[start:])
            kept.update(row[1] for row in islice(entries, 1, next_entry))
    lost = [it for it in ledger.messages if it.indexed and it.log_offset < replayed_from]
    assert [it for it in lost if it.log_offset not in kept] == []


@pytest.mark.parametrize("seed", range(20))
def test_a_java_broker_finds_the_keys_of_a_killed_store(seed: int) -> None:
    rng = random.Random(f"java keys/{seed}")
    ledger = Ledger(random.Random(f"content/{seed}"))
    disk = FaultyFileSystem(FaultPlan(seed))
    machine = Machine()
    store = machine.opened(disk)
    for _ in range(3):
        for _ in range(rng.randrange(10, 120)):
            ledger.put_any(store, QUEUE)
            machine.advance(rng.choice((10, 10, 400, 1_500)))
        if rng.random() < 0.3:
            machine.close(store)
            store = machine.opened(disk)
        disk = disk.kill()
        check_java_finds_all(disk, ledger)
        now = machine.now
        machine = Machine()
        machine.now = now + 10
        disk.plan.at("files.*", nth=rng.randrange(1, 100), action=FaultAction.CUT)
        try:
            store = machine.opened(disk)
        except StoreError:  # killed in the midst of the recovery
            disk.plan.clear()
            disk = disk.kill()
            check_java_finds_all(disk, ledger)
            store = machine.opened(disk)
        disk.plan.clear()
