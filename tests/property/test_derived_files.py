"""Consume queues and index against a list of records, through crashes at any point.

The log is a list that never loses what a checkpoint covers. Everything else may happen: entries
not flushed, flushed and not synced, syncs that fail, files that expire, topics that are deleted and
created again, a kill or a power loss within any file operation. After each restart, replaying the
log from the checkpoint must give every queue its messages, in order and once, with the right tags
code, and every key its record; nothing may lead beyond the end of the log.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError
from skylark.store.index import IndexService
from skylark.store.queue_registry import ConsumeQueues
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem

ROOT = Path("/store")
BATCH_TOPIC = "Batch"
TOPICS = ("A", "B", BATCH_TOPIC)


@dataclass(frozen=True)
class Record:
    log_offset: int
    size: int
    tags_code: int
    topic: str
    queue_id: int
    queue_offset: int
    message_count: int
    store_timestamp: int
    key: bytes

    @property
    def end(self) -> int:
        return self.log_offset + self.size


class Now:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


@dataclass
class Machine:
    """The derived files of a store on a disk that fails, and the log as a list."""

    seed: int
    fault_seed: int | None = None
    log: list[Record] = field(default_factory=list)
    checkpoint: int = 0
    log_min: int = 0
    crashes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.plan = FaultPlan(self.seed if self.fault_seed is None else self.fault_seed)
        self.disk = FaultyFileSystem(self.plan, write_back_probability=0.3)
        self.disk.make_directories(ROOT)
        self.disk.sync_directory(Path("/"))
        self.log_end = 0
        self.births: dict[str, int] = {}  # topic -> log offset from which its messages count
        self._open()

    def _open(self) -> None:
        dirty_ranges = self.dirty_ranges = DirtyRanges(self.disk)
        self.queues = ConsumeQueues(
            self.disk,
            ROOT,
            dirty_ranges,
            queue_file_size=4200,  # 210 entries, ending within a page
            batch_queue_file_size=46 * 50,
            open_files_max=3,
            tail_size_max=1000,
            recent_size=300,
        )
        self.index = IndexService(
            self.disk, ROOT / "index", dirty_ranges, Now(), slot_count=7, entry_count_max=100
        )

    # ---- what happens to it ----------------------------------------------------------------------

    def put(self, count: int) -> None:
        topic = self.random.choice(TOPICS)
        queue_id = self.random.randrange(2)
        for _ in range(count):
            message_count = self.random.randint(1, 9) if topic == BATCH_TOPIC else 1
            make = self.queues.get_or_create_batch if topic == BATCH_TOPIC else None
            queue = (make or self.queues.get_or_create)(topic, queue_id)
            record = Record(
                log_offset=self.log_end,
                size=self.random.randint(91, 300),
                tags_code=self.random.getrandbits(60),
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue.next_offset,
                message_count=message_count,
                store_timestamp=1_700_000_000_000 + 7 * len(self.log),
                key=b"key-%d" % len(self.log),
            )
            self.log.append(record)
            self.log_end = record.end
            if isinstance(queue, BatchQueue):
                queue.append(
                    record.log_offset,
                    record.size,
                    record.tags_code,
                    record.store_timestamp,
                    message_count,
                )
            elif isinstance(queue, ConsumeQueue):
                queue.append(record.log_offset, record.size, record.tags_code)
            queue.next_offset += message_count
            self._index(record)

    def _index(self, record: Record, *, replay: bool = False) -> None:
        put = self.index.replay_record if replay else self.index.put_record
        put(record.topic, record.log_offset, record.store_timestamp, None, record.key, b"tag")

    def flush(self, count: int) -> None:
        self.queues.start_flush().run(count)

    def sync(self, _: int) -> None:
        if self.index.behind_from is not None:
            for record in self.log:
                self._index(record, replay=True)
            self.index.caught_up()
        covered = self.log_end
        self.queues.flush()
        self.index.flush()
        batch = self.dirty_ranges.begin()
        try:
            batch.run()
        finally:
            self.dirty_ranges.finish(batch)
        self.checkpoint = covered

    def expire(self, percent: int) -> None:
        # The log keeps what derived files may still need: nothing after the checkpoint expires.
        bounds = [r.log_offset for r in self.log if r.end <= self.checkpoint] + [self.checkpoint]
        bound = bounds[percent * len(bounds) // 100]
        self.log_min = max(self.log_min, bound)
        self.queues.delete_before(self.log_min)
        self.index.delete_before(self.log_min)

    def delete_topic(self, number: int) -> None:
        topic = TOPICS[number % len(TOPICS)]
        self.births[topic] = self.log_end  # decided, and known to the broker, before it is done
        self.queues.destroy_topic(topic)

    def restart(self, _: int) -> None:
        self.sync(0)
        self.queues.close()
        self.index.close()
        self._open()
        self.queues.load(clean=True)
        self.index.load(clean=True)
        self.queues.recover()
        self.queues.truncate(self.log_end)
        self.queues.correct_min(self.log_min)

    def crash(self, _: int = 0) -> None:
        self.crashes += 1
        self.disk = self.random.choice((self.disk.kill, self.disk.power_loss))()
        self._cut_log()
        self._open()
        self.queues.load(clean=False)
        self.index.load(clean=False)
        assert self.queues.recover(self.checkpoint) <= self.checkpoint
        times = {record.log_offset: record.store_timestamp for record in self.log}
        self.index.recover(self.checkpoint, times.get)
        for record in self.log:
            if record.log_offset >= max(self.checkpoint, self.log_min):
                self._dispatch(record)
        self.queues.truncate(self.log_end)
        self.queues.correct_min(self.log_min)
        # Deletions that no checkpoint covers are the broker's to repeat.
        for queue in self.queues:
            birth = self.births.get(queue.topic, 0)
            if queue.max_log_offset <= birth:
                self.queues.destroy(queue)

    def crash_until_recovered(self) -> None:
        """Recovery meets errors, too, and is then begun again by the operator."""
        while True:
            try:
                self.crash()
            except StoreFileError as error:
                if error.errno != errno.EIO:
                    raise
            else:
                return

    def _cut_log(self) -> None:
        """The log may have lost records that no checkpoint covers."""
        bounds = [r.end for r in self.log if r.end >= self.checkpoint] or [self.log_end]
        self.log_end = max(self.random.choice(bounds), self.log_min)
        self.log = [record for record in self.log if record.end <= self.log_end]
        self.births = {topic: min(birth, self.log_end) for topic, birth in self.births.items()}

    def _dispatch(self, record: Record) -> None:
        fields = (record.log_offset, record.size, record.tags_code)
        if record.topic == BATCH_TOPIC:
            self.queues.get_or_create_batch(record.topic, record.queue_id).dispatch(
                *fields, record.store_timestamp, record.queue_offset, record.message_count
            )
        else:
            self.queues.get_or_create(record.topic, record.queue_id).dispatch(
                *fields, record.queue_offset
            )
        self._index(record)

    # ---- what must hold --------------------------------------------------------------------------

    def check(self, _: int = 0) -> None:
        expected: dict[tuple[str, int], list[Record]] = {}
        for record in self.log:
            if record.log_offset >= self.births.get(record.topic, 0):
                expected.setdefault((record.topic, record.queue_id), []).append(record)
        for (topic, queue_id), records in expected.items():
            queue = self.queues.get(topic, queue_id)
            assert queue is not None, (topic, queue_id)
            live = [record for record in records if record.log_offset >= self.log_min]
            last = records[-1]
            assert queue.max_offset == last.queue_offset + last.message_count
            assert queue.next_offset == queue.max_offset
            assert queue.max_log_offset == last.end
            assert queue.min_offset == (live[0].queue_offset if live else queue.max_offset)
            for record in live:
                assert queue.read_entry(record.queue_offset + record.message_count - 1) == (
                    record.queue_offset,
                    record.log_offset,
                    record.size,
                    record.tags_code,
                    record.message_count,
                )
        for queue in self.queues:
            assert queue.max_offset == 0 or (queue.topic, queue.queue_id) in expected, queue
        if self.index.behind_from is None:
            for record in self.log:
                if record.log_offset >= self.log_min:
                    hits = self.index.query(record.topic, record.key.decode())
                    assert hits.log_offsets == [record.log_offset]


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 60)),
    st.tuples(st.just("put"), st.integers(1, 5)),
    st.tuples(st.just("flush"), st.integers(1, 4)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("expire"), st.integers(0, 99)),
    st.tuples(st.just("delete_topic"), st.integers(0, 2)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.lists(STEPS, min_size=3, max_size=40))
def test_derived_files_equal_the_log_after_any_steps(
    seed: int, steps: list[tuple[str, int]]
) -> None:
    machine = Machine(seed)
    for name, argument in steps:
        getattr(machine, name)(argument)
        machine.check()


def run_through_stops(machine: Machine, steps: list[tuple[str, int]]) -> None:
    """Do the steps; whenever the machine stops, start it again, also if that stops, too."""
    for name, argument in [*steps, ("check", 0)]:
        try:
            getattr(machine, name)(argument)
        except StoreFileError:
            assert not machine.disk.alive
        while not machine.disk.alive:
            try:
                machine.crash()
                machine.check()
            except StoreFileError:
                assert not machine.disk.alive


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    steps=st.lists(STEPS, min_size=5, max_size=25),
    stops=st.lists(st.integers(1, 150), min_size=1, max_size=3),
)
# The first queue of its kind is deleted before it was ever written, and made again.
@example(
    seed=829705,
    steps=[
        ("put", 4), ("crash", 0), ("put", 9), ("sync", 0), ("put", 2), ("put", 5),
        ("delete_topic", 2), ("put", 1), ("sync", 0), ("crash", 0),
    ],
    stops=[1],
)  # fmt: skip
def test_derived_files_equal_the_log_after_stops_at_any_file_operation(
    seed: int, steps: list[tuple[str, int]], stops: list[int]
) -> None:
    machine = Machine(seed)
    for stop in stops:
        machine.plan.at("files.*", nth=stop, action=FaultAction.CUT)
    run_through_stops(machine, steps)


def test_derived_files_equal_the_log_after_a_stop_at_each_file_operation() -> None:
    """One run of everything a queue and the index do, stopped at its 1st, 2nd, 3rd... operation."""
    steps = [
        ("put", 30), ("put", 120), ("flush", 1), ("put", 120), ("sync", 0), ("put", 60),
        ("expire", 60), ("sync", 0), ("put", 10), ("delete_topic", 0), ("put", 20), ("put", 20),
        ("delete_topic", 1), ("delete_topic", 2), ("sync", 0), ("put", 9), ("restart", 0),
    ]  # fmt: skip
    for stop in count(1):
        machine = Machine(seed=1, fault_seed=stop)
        machine.plan.at("files.*", nth=stop, action=FaultAction.CUT)
        run_through_stops(machine, steps)
        if machine.crashes == 0:
            break
    assert stop > 150


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.lists(STEPS, min_size=5, max_size=25))
def test_errors_of_the_disk_are_survived(seed: int, steps: list[tuple[str, int]]) -> None:
    """A failed write or sync is repeated later, and the checkpoint waits for it."""
    machine = Machine(seed)
    for point in ("files.sync", "files.sync_directory", "files.write", "files.allocate"):
        machine.plan.chance(point, 0.05, error=errno.EIO)
    for name, argument in steps:
        if name in ("put", "flush", "sync", "expire"):
            try:
                getattr(machine, name)(argument)
            except StoreFileError as error:
                if error.errno != errno.EIO:
                    raise
        elif name == "crash":
            machine.crash_until_recovered()
        machine.check()
