"""A slave's log: the bytes of its master, its derived files, and what crashes leave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from skylark.core.errors import StoreError
from skylark.store import replica_log
from skylark.store.config import BrokerRole
from skylark.store.consume_queue import ConsumeQueue, EntryQueue
from skylark.store.errors import StoreFileError, StoreFullError
from skylark.store.message_store import MessageStore
from skylark.store.record_stream import RecordStreamError
from skylark.store.replica_log import DISPATCH_PAUSE_S, ReplicaLog, log_checksum
from skylark.store.store_results import PutStatus
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.support.store_machine import HOST, ROOT, Ledger, Machine, check_store, sync_flush

QUEUES = (("TopicA", 0), ("TopicA", 1), ("TopicB", 7))
FILE_SIZE = 3_000
FIRST_FILE = ROOT / "commitlog" / f"{0:020d}"
VIEWS_PAUSE_MS = DISPATCH_PAUSE_S * 1000


class Pair:
    """A master with messages, and a slave on a machine of its own."""

    def __init__(self, seed: int = 0, *, plan: FaultPlan | None = None, **settings: Any) -> None:
        self.rng = random.Random(f"replica/{seed}")
        self.settings = {"mapped_file_size_commit_log": FILE_SIZE, **settings}
        self.master_machine, self.machine = Machine(), Machine()
        self.ledger = Ledger(random.Random(f"content/{seed}"))
        self.master = self.master_machine.opened(FaultyFileSystem(), **self.settings)
        self.disk = FaultyFileSystem(plan, capacity=64 << 20)
        self.slave = self.open_slave()

    def open_slave(self) -> MessageStore:
        slave = self.machine.opened(self.disk, broker_role=BrokerRole.SLAVE, **self.settings)
        self.machine.settle()
        self.machine.advance(1)
        return slave

    @property
    def log(self) -> ReplicaLog:
        assert self.slave.replica is not None
        return self.slave.replica

    @property
    def received_end(self) -> int:
        stream = self.log._stream
        return self.log.log_end if stream is None else stream.end

    @property
    def dispatched_until(self) -> int:
        return self.slave.dispatch.dispatched_until

    def put(self, count: int) -> None:
        for _ in range(count):
            assert self.ledger.put_any(self.master, self.rng.choice(QUEUES)).status.stored

    def pieces(self, start: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """The master's log in frames of any size, none across the end of a file."""
        files = self.master.log.files
        end = files.max_offset if end is None else end
        while start < end:
            size = self.rng.choice((1, 7, 36, 200, 900))
            size = min(size, end - start, FILE_SIZE - start % FILE_SIZE)
            lease = self.master.log.lease(start, size)
            assert lease is not None
            with lease:
                yield start, bytes(lease.view)
            start += size

    def copy(self, end: int | None = None) -> None:
        """A connection: all that the slave lacks, or a part of it."""
        self.log.restart()
        for log_offset, body in self.pieces(self.log.log_end, end):
            self.log.append(log_offset, body)

    def check(self) -> None:
        """The logs are equal as far as the slave's reaches, and its derived files are complete."""
        self.machine.advance(VIEWS_PAUSE_MS)
        end = self.log.log_end
        assert end == self.master.log.max_offset
        assert self.dispatched_until >= self.ledger.messages[-1].end
        for start in range(0, end, FILE_SIZE):
            size = min(FILE_SIZE, end - start)
            ours, theirs = self.slave.log.lease(start, size), self.master.log.lease(start, size)
            assert ours is not None
            assert theirs is not None
            with ours, theirs:
                assert ours.view == theirs.view
        check_store(self.slave, self.ledger)


@pytest.mark.spec("store.12.45")
@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_slave_holds_the_bytes_of_its_master_and_serves_them(
    seed: int, synchronous: bool
) -> None:
    pair = Pair(seed, **sync_flush(synchronous))
    for _ in range(3):
        pair.put(20)
        pair.master_machine.settle()
        pair.copy()
        pair.check()
    assert len(pair.slave.log.files.files) > 4


def test_held_pulls_hear_which_queues_have_grown() -> None:
    pair = Pair()
    grown: list[set[EntryQueue]] = []
    pair.log.on_grown = grown.append
    pair.ledger.put(pair.master, ("TopicA", 1))
    pair.copy()
    assert grown == []  # not within the append: the acknowledgement leaves first
    pair.machine.turn()
    assert [[(queue.topic, queue.queue_id) for queue in told] for told in grown] == [
        [("TopicA", 1)]
    ]


def test_entries_of_single_records_are_made_together() -> None:
    pair = Pair()
    grown: list[set[EntryQueue]] = []
    pair.log.on_grown = grown.append
    ends = []
    for _ in range(10):
        pair.ledger.put(pair.master, ("TopicA", 1))
        pair.copy()
        pair.machine.settle()
        ends.append(pair.log.log_end)
    assert pair.dispatched_until == ends[0]  # the first one waits for nobody
    pair.machine.advance(VIEWS_PAUSE_MS - 1)
    assert pair.dispatched_until == ends[0]
    pair.machine.advance(1)
    assert pair.dispatched_until == ends[-1]
    assert len(grown) == 2
    pair.machine.advance(VIEWS_PAUSE_MS)
    pair.ledger.put(pair.master, ("TopicA", 1))
    pair.copy()
    pair.machine.settle()
    assert pair.dispatched_until == pair.log.log_end
    pair.check()


def test_pending_entries_are_made_when_the_store_closes() -> None:
    pair = Pair()
    pair.put(1)
    pair.copy()
    pair.machine.settle()
    pair.put(3)
    pair.copy()
    pair.machine.close(pair.slave)
    pair.slave = pair.open_slave()
    pair.check()


def test_with_sync_flush_nothing_is_acknowledged_or_seen_before_the_disk_has_it() -> None:
    pair = Pair(**sync_flush(True))
    pair.ledger.put(pair.master, ("TopicA", 0))
    pair.copy()
    end = pair.log.log_end
    assert end == pair.ledger.log_end
    assert pair.log.durable_end == 0
    pair.machine.turn()
    assert pair.slave.reader.max_offset("TopicA", 0) == 0
    pair.machine.settle()
    assert pair.log.durable_end == end
    assert pair.slave.reader.max_offset("TopicA", 0) == 1


def test_while_a_slave_catches_up_copying_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_log, "DENSE_BYTES", 500)
    monkeypatch.setattr(replica_log, "BACKLOG_MAX", 6_000)
    pair = Pair()
    pair.put(40)
    index = pair.slave.index
    assert index is not None
    start = 0
    for log_offset, body in pair.pieces(0, 5_000):
        pair.log.append(log_offset, body)
        if log_offset - start > 1_000:
            pair.machine.posted.get()()
            start = log_offset
    assert pair.log.log_end > 4_000
    assert pair.dispatched_until == 0
    for log_offset, body in pair.pieces(pair.received_end):
        pair.log.append(log_offset, body)
    pair.machine.posted.get()()
    assert pair.dispatched_until > 0
    assert index.behind_from == 0  # left behind for now
    pair.machine.advance(1)
    pair.check()  # all of it is indexed now


def test_an_unreadable_log_leaves_entries_behind_until_it_is_readable() -> None:
    plan = FaultPlan(1)
    pair = Pair(plan=plan)
    pair.put(3)
    pair.copy()
    plan.at("files.read", nth=1, error=5)
    pair.machine.turn()
    assert pair.dispatched_until == 0
    pair.put(1)
    pair.copy()
    pair.check()


@pytest.mark.parametrize("attempts", [1, 5])
def test_entries_that_failed_are_made_again_although_nothing_more_comes(
    attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan = FaultPlan(1)
    pair = Pair(plan=plan)
    pair.put(3)
    pair.copy()
    plan.at("files.read", nth=range(1, attempts + 1), error=5)
    pair.machine.turn()
    assert pair.dispatched_until == 0
    pair.machine.advance(20_000)
    pair.check()
    failures = [line for line in caplog.messages if "derived entries stay behind" in line]
    assert len(failures) == 1


def test_entries_of_a_slice_that_failed_midway_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    pair.put(20)
    pair.copy()
    make_entry = ConsumeQueue.dispatch_run
    left = 1

    def fail_once(queue: ConsumeQueue, entries: bytes, queue_offset: int) -> bool:
        nonlocal left
        left -= 1
        if left == -1:
            raise StoreFileError("the disk is away", path=FIRST_FILE)
        return make_entry(queue, entries, queue_offset)

    monkeypatch.setattr(ConsumeQueue, "dispatch_run", fail_once)
    pair.machine.turn()
    assert pair.dispatched_until == 0
    pair.machine.advance(1_000)
    pair.check()


def test_files_that_expire_before_their_dispatch_are_skipped() -> None:
    pair = Pair()
    pair.put(30)
    pair.copy()
    assert pair.slave.log.files.retire_oldest(0.0) is not None
    pair.machine.settle()
    assert pair.dispatched_until == pair.log.log_end
    for queue in pair.slave.queues:
        assert queue.max_offset == pair.ledger.numbers[(queue.topic, queue.queue_id)]


def test_a_slave_takes_no_messages_of_its_own() -> None:
    pair = Pair()
    result = Ledger(random.Random(1)).put(pair.slave, ("TopicA", 0))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE


def test_an_empty_log_begins_at_the_first_offset_of_its_master() -> None:
    pair = Pair()
    pair.put(30)
    start = pair.master.log.files.last.start_offset
    assert start >= 2 * FILE_SIZE
    for log_offset, body in pair.pieces(start):
        pair.log.append(log_offset, body)
    pair.machine.settle()
    assert pair.slave.log.min_offset == start
    assert pair.log.log_end == pair.master.log.max_offset
    shown = {queue.topic: queue.max_offset for queue in pair.slave.queues}
    for queue in pair.slave.queues:
        assert queue.max_offset == pair.ledger.numbers[(queue.topic, queue.queue_id)]
        assert queue.min_offset == queue.max_offset - len(
            pair.ledger.find((queue.topic, queue.queue_id), start)
        )
    assert shown


def test_an_empty_log_cannot_begin_amid_a_file() -> None:
    pair = Pair()
    with pytest.raises(RecordStreamError, match="begins at 100, where no file here can start"):
        pair.log.append(100, b"x")
    assert pair.log.is_empty


def test_bytes_that_do_not_belong_here_leave_no_trace() -> None:
    pair = Pair()
    pair.put(3)
    pair.copy()
    end = pair.log.log_end
    with pytest.raises(RecordStreamError):
        pair.log.append(end, b"garbage!" * 20)
    assert pair.received_end == pair.log.log_end == end
    pair.put(3)
    pair.copy()
    pair.check()


def test_a_record_whose_parts_do_not_fit_is_cut_off_again() -> None:
    pair = Pair()
    pair.put(3)
    pair.copy()
    end = pair.log.log_end
    told: list[str] = []
    pair.log.on_damage = told.append
    pair.ledger.put(pair.master, ("TopicA", 0))
    (piece,) = [body for _, body in _whole(pair, end)]
    damaged = bytearray(piece)
    damaged[84:88] = b"\0\0\0\x01"  # the body length
    pair.log.append(end, bytes(damaged))
    pair.machine.advance(VIEWS_PAUSE_MS)
    assert pair.log.log_end == end
    assert "the sum of the parts is not the total size" in told[0]
    pair.copy()
    pair.check()


def _whole(pair: Pair, start: int) -> Iterator[tuple[int, bytes]]:
    lease = pair.master.log.lease(start, pair.master.log.max_offset - start)
    assert lease is not None
    with lease:
        yield start, bytes(lease.view)


def test_a_full_disk_is_an_error_of_the_append_and_passes() -> None:
    plan = FaultPlan(1)
    pair = Pair(plan=plan)
    pair.put(5)
    plan.at("files.create", nth=1, error=28)
    with pytest.raises(StoreFullError):
        pair.copy()
    assert pair.log.log_end == 0
    pair.copy()
    pair.check()


def test_a_blank_at_the_end_is_given_up_by_a_new_connection() -> None:
    pair = Pair()
    pair.put(12)
    blank_end = pair.master.log.files.files[0].end_offset
    record_end = max(it.end for it in pair.ledger.messages if it.end <= blank_end)
    pair.copy(record_end + 9)
    assert pair.log.log_end == record_end + 9
    pair.copy(record_end)
    assert pair.log.log_end == record_end
    tail = pair.log.tail()
    assert tail is not None
    assert tail.log_offset == record_end
    assert log_checksum(pair.master.log.files, *tail) == pair.log.checksum(*tail) is not None
    pair.copy(blank_end)
    assert pair.log.log_end == blank_end
    pair.copy()
    pair.check()


def test_tails_of_different_logs_differ() -> None:
    pair, other = Pair(1), Pair(2)
    pair.put(20)
    other.put(30)
    pair.copy()
    tail = pair.log.tail()
    assert tail is not None
    assert log_checksum(other.master.log.files, *tail) != pair.log.checksum(*tail)
    assert log_checksum(pair.master.log.files, pair.master.log.max_offset + 1, 4) is None
    assert log_checksum(pair.master.log.files, 10, 11) is None


@pytest.mark.parametrize("delta", [0, 1, -1, 150])
def test_what_the_master_lacks_can_be_given_up(delta: int) -> None:
    pair = Pair(3)
    pair.put(30)
    pair.copy()
    pair.check()
    cut = pair.ledger.messages[len(pair.ledger.messages) // 2].end + delta
    pair.log.truncate(cut)
    kept = max(it.end for it in pair.ledger.messages if it.end <= cut)
    assert pair.log.log_end == kept
    for queue in pair.slave.queues:
        assert queue.max_log_offset <= kept
    pair.machine.settle()
    pair.copy()
    pair.check()
    pair.machine.close(pair.slave)
    pair.slave = pair.open_slave()
    pair.check()


def test_everything_can_be_given_up() -> None:
    pair = Pair(3)
    pair.put(20)
    pair.copy()
    pair.machine.settle()
    pair.log.truncate(0)
    assert pair.log.is_empty
    assert pair.log.tail() is None
    start = pair.master.log.files.last.start_offset
    for log_offset, body in pair.pieces(start):
        pair.log.append(log_offset, body)
    assert pair.slave.log.min_offset == start
    assert pair.log.log_end == pair.master.log.max_offset


@pytest.mark.parametrize("cut", range(0, 400, 23))
def test_a_slave_that_is_closed_amid_a_record_begins_again_with_it(cut: int) -> None:
    pair = Pair(4)
    pair.put(20)
    pair.copy(pair.master.log.max_offset - cut)
    ends = [it.end for it in pair.ledger.messages if it.end <= pair.received_end]
    pair.machine.close(pair.slave)
    pair.slave = pair.open_slave()
    assert pair.log.log_end == ends[-1]
    pair.copy()
    pair.check()


@pytest.mark.parametrize("seed", range(20))
def test_no_crash_leaves_anything_but_whole_records(seed: int) -> None:
    """Stop the slave's machine at any operation, again and again; go on where its log ends."""
    rng = random.Random(seed)
    plan = FaultPlan(seed)
    synchronous = bool(seed % 2)
    pair = Pair(seed, plan=plan, **sync_flush(synchronous))
    for _ in range(4):
        pair.put(rng.randint(3, 15))
        pair.master_machine.settle()
        if rng.random() < 0.7:
            plan.at("files.*", nth=rng.randint(1, 40), action=FaultAction.CUT)
        durable = _copy_until_crash(pair, rng)
        plan.clear()
        power = rng.random() < 0.7
        floor = durable if power else 0
        pair.disk = pair.disk.power_loss() if power else pair.disk.kill()
        pair.machine = Machine()
        pair.slave = pair.open_slave()
        end = pair.log.log_end
        assert end >= floor
        assert end in {0, *(it.end for it in pair.ledger.messages)} or end % FILE_SIZE == 0
    pair.copy()
    pair.check()
    pair.machine.close(pair.slave)
    pair.slave = pair.open_slave()
    pair.check()


def _copy_until_crash(pair: Pair, rng: random.Random) -> int:
    """Copy with turns of owner and workers in between; returns what was acknowledged as durable."""
    durable = 0
    synchronous = pair.slave.config.flush_disk_type.name == "SYNC_FLUSH"
    try:
        pair.log.restart()
        for log_offset, body in pair.pieces(pair.log.log_end):
            pair.log.append(log_offset, body)
            if synchronous and pair.disk.alive:
                durable = pair.log.durable_end
            kind = rng.random()
            if kind < 0.1:
                pair.machine.settle()
            elif kind < 0.2:
                pair.machine.turn()
            elif kind < 0.25:
                pair.machine.advance(rng.choice((1, 600, 6_000)))
            elif kind < 0.27:
                break
    except StoreError:
        if pair.disk.alive:
            raise
    return durable


def test_the_store_host_in_records_is_the_masters() -> None:
    pair = Pair()
    pair.put(1)
    pair.copy()
    lease = pair.slave.reader.record(0)
    assert lease is not None
    with lease:
        assert HOST in bytes(lease.view)
