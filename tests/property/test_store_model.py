"""The whole store against a model: any order of puts, reads, flushes, rolls, expiry and crashes.

The model is a list of messages in the order of the log
(:class:`tests.support.store_machine.Ledger`) and what follows from it. Workers and time move only
by rules, so that a failure of hypothesis can be found again, and shrinks to the few steps that
matter.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from skylark.store.message_store import MessageStore
from skylark.store.store_results import GetStatus, PutResult, PutStatus
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import FLAG_TRANSACTION_PREPARED
from tests.support.store_machine import (
    Content,
    Ledger,
    Machine,
    Queue,
    check_store,
    records_of,
    sync_flush,
)

QUEUES: tuple[Queue, ...] = (("TopicA", 0), ("TopicA", 1), ("TopicB", 0))
queues = st.sampled_from(QUEUES)
FIXED_SIZE = 91 + len("TopicA")


class StoreModel(RuleBasedStateMachine):
    """A store, the disk below it, and what it should hold."""

    @initialize(
        synchronous=st.booleans(),
        pooled=st.booleans(),
        log_file_size=st.sampled_from([1500, 4096]),
        queue_file_size=st.sampled_from([60, 600]),
        seed=st.integers(0, 1 << 32),
    )
    def begin(
        self, synchronous: bool, pooled: bool, log_file_size: int, queue_file_size: int, seed: int
    ) -> None:
        self.settings = {
            **sync_flush(synchronous),
            "transient_store_pool_enable": pooled,
            "mapped_file_size_commit_log": log_file_size,
            "mapped_file_size_consume_queue": queue_file_size,
            "consume_queue_recent_size": 40,
            "max_index_num": 20,
            "file_reserved_time": 1,
        }
        self.synchronous = synchronous
        self.acknowledged = 0
        self.disk = FaultyFileSystem(FaultPlan(seed))
        self.ledger = Ledger(random.Random(seed))
        self.machine = Machine()
        self.store = self._open()

    def _open(self) -> MessageStore:
        store = self.machine.store(self.disk, **self.settings)
        store.open()
        store.start()
        self.machine.settle()
        self.machine.advance(1)
        return store

    # ---- writing -----------------------------------------------------------------------------

    @rule(queue=queues, body_size=st.integers(1, 700), half=st.sampled_from([False] * 9 + [True]))
    def put(self, queue: Queue, body_size: int, half: bool) -> None:
        content = self._content(body_size)
        sys_flag = FLAG_TRANSACTION_PREPARED if half else 0
        self._wait_for(self.ledger.put(self.store, queue, content, sys_flag))

    @rule(queue=queues, body_sizes=st.lists(st.integers(1, 200), min_size=1, max_size=4))
    def put_batch(self, queue: Queue, body_sizes: list[int]) -> None:
        contents = [self._content(size) for size in body_sizes]
        self._wait_for(self.ledger.put_batch(self.store, queue, contents))

    @rule(queue=queues, left=st.integers(0, 30))
    def put_almost_to_the_end_of_the_file(self, queue: Queue, left: int) -> None:
        """The next record, or the blank before it, is where a file ends."""
        file = self.store.log.files.last
        content = self._content(1)
        room = file.size - file.wrote - FIXED_SIZE - len(content.properties) - 8 - left
        if room > 0:
            self._wait_for(self.ledger.put(self.store, queue, content._replace(body=bytes(room))))

    def _content(self, body_size: int) -> Content:
        content = self.ledger.content()
        return content._replace(body=content.body.ljust(body_size, b".")[:body_size])

    def _wait_for(self, result: PutResult) -> None:
        assert result.status is PutStatus.PUT_OK
        self.store.when_durable(result, lambda status: self._answered(status, result.next_offset))

    def _answered(self, status: PutStatus, log_end: int) -> None:
        if status is PutStatus.PUT_OK and self.synchronous:
            self.acknowledged = max(self.acknowledged, log_end)

    # ---- reading -----------------------------------------------------------------------------

    @rule(queue=queues, offset=st.integers(-1, 60), count=st.integers(1, 40))
    def get(self, queue: Queue, offset: int, count: int) -> None:
        reader = self.store.reader
        first, end = reader.min_offset(*queue), reader.max_offset(*queue)
        result = reader.get(*queue, offset, count)
        bodies = [record.body for record in records_of(result.views)]
        result.release()
        if not first <= offset < end:
            status = (
                GetStatus.NO_MATCHED_LOGIC_QUEUE if self.store.queues.get(*queue) is None
                else GetStatus.NO_MESSAGE_IN_QUEUE if end == 0
                else GetStatus.OFFSET_TOO_SMALL if offset < first
                else GetStatus.OFFSET_OVERFLOW_ONE if offset == end
                else GetStatus.OFFSET_OVERFLOW_BADLY
            )  # fmt: skip
            corrected = first if status is GetStatus.OFFSET_TOO_SMALL else end
            assert (result.status, result.next_offset, bodies) == (status, corrected, [])
            return
        assert result.status is GetStatus.FOUND
        assert 1 <= len(bodies) <= count
        assert result.next_offset == offset + len(bodies)
        expected = {it.queue_offset: it.body for it in self.ledger.find(queue)}
        assert bodies == [expected[it] for it in range(offset, result.next_offset)]

    @invariant()
    def nothing_is_readable_that_was_not_put(self) -> None:
        for queue in QUEUES:
            number = self.ledger.numbers.get(queue, 0)
            found = self.store.queues.get(*queue)
            if found is not None:
                assert 0 <= found.min_offset <= found.max_offset <= number == found.next_offset

    # ---- time --------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 200, 500, 1_000, 6_000]), worker=st.booleans())
    def wait(self, ms: int, worker: bool) -> None:
        self.machine.advance(ms, worker=worker)

    @precondition(lambda self: self.machine.busy)
    @rule(number=st.integers(0, 3))
    def work(self, number: int) -> None:
        self.machine.busy[number % len(self.machine.busy)].work()

    @rule()
    def flush(self) -> None:
        self.machine.settle()

    @rule()
    def expire(self) -> None:
        self.machine.advance(3_600_000)
        self.store.retention.request_deletion()
        self.machine.advance(11_000)
        assert len(self.store.log.files.files) <= 1
        check_store(self.store, self.ledger)

    # ---- ends --------------------------------------------------------------------------------

    @rule()
    def close_and_open(self) -> None:
        self.machine.close(self.store)
        self.store = self._open()
        assert self.store.log.max_offset == self.ledger.log_end
        check_store(self.store, self.ledger)

    @rule()
    def kill(self) -> None:
        readable = self.store.log.max_offset
        self.disk = self.disk.kill()
        self._start_again(readable)

    @rule()
    def lose_power(self) -> None:
        files = self.store.log.files
        synced = max(files.flushed_where, self.acknowledged)
        if self.synchronous:
            synced = max(synced, *(queue.max_log_offset for queue in self.store.queues), 0)
        self.disk = self.disk.power_loss()
        self._start_again(synced)

    def _start_again(self, floor: int) -> None:
        now = self.machine.now
        self.machine = Machine()
        self.machine.now = now
        self.store = self._open()
        assert self.store.log.max_offset >= floor
        self.ledger.cut(self.store.log.max_offset)
        check_store(self.store, self.ledger)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=70,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
