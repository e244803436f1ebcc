"""Seeded runs of a store that loses power, again and again, at any line.

``power_run(seed)`` draws settings, then lives: in each life messages come in, workers do their jobs
now or later, time passes, files roll and expire, and then the machine stops, between two operations
on the disk or at one of them. What comes up after that is opened, sometimes with another crash in
the middle of the recovery, and compared with the ledger (:mod:`tests.support.store_machine`):

* SYNC_FLUSH: nothing acknowledged is lost, and nothing is gone that a consumer could read;
* ASYNC_FLUSH: what is left is a prefix that reaches at least the last completed sync;
* a process that was killed, on a machine that goes on, loses nothing at all (with the transient
  pool: nothing that was committed);
* the derived files are those that a rebuild from the log would make.

Everything happens in one thread and depends on the seed alone; a failure names it.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from typing import Any

from skylark.core.errors import StoreError
from skylark.store.errors import StoreFileError
from skylark.store.message_reader import GetResult
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.support.store_machine import Ledger, Machine, Queue, check_store, records_of, sync_flush

QUEUES: tuple[Queue, ...] = (("TopicA", 0), ("TopicA", 1), ("TopicB", 7), ("TopicC", 0))


class PowerRun:
    """One store through several crashes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"power/{seed}")
        self.plan = FaultPlan(seed)
        self.counts: Counter[str] = Counter()
        self.settings = self._draw_settings()
        self.synchronous = self.settings["flush_disk_type"].name == "SYNC_FLUSH"
        self.pooled = self.settings["transient_store_pool_enable"]
        crc = self.settings["enabled_append_prop_crc"]
        self.ledger = Ledger(random.Random(f"content/{seed}"), property_crc=crc)
        self.machine = Machine()
        self.disk = FaultyFileSystem(self.plan, capacity=64 << 20)
        self.synced = 0  # everything before this log offset survives a power loss
        self.floor = 0  # everything before this one must be there when the store opens
        self.retired = 0  # files of the log before this offset were deleted
        self.removed = 0  # and those before this one are gone from the directory
        self.held: list[GetResult] = []

    def _draw_settings(self) -> dict[str, Any]:
        rng = self.rng
        crc = rng.random() < 0.2
        return {
            **sync_flush(rng.random() < 0.5),
            "mapped_file_size_commit_log": rng.choice((2048, 4096, 5000, 12288)),
            "mapped_file_size_consume_queue": rng.choice((100, 400, 2000)),
            "max_index_num": rng.choice((15, 100)),
            "max_hash_slot_num": rng.choice((3, 40)),
            "message_index_enable": rng.random() < 0.8,
            "consume_queue_tail_size_max": rng.choice((20, 200, 4000)),
            "consume_queue_recent_size": rng.choice((0, 100, 2000)),
            "consume_queue_open_files_max": rng.choice((1, 3, 256)),
            "commit_log_open_files_max": rng.choice((1, 128)),
            "transient_store_pool_enable": rng.random() < 0.2,
            "transient_store_pool_size": rng.choice((1, 3)),
            "fast_fail_if_no_buffer_in_store_pool": rng.random() < 0.5,
            "message_index_safe": rng.random() < 0.2,
            "enabled_append_prop_crc": crc,
            "force_verify_prop_crc": crc and rng.random() < 0.5,
            "warm_maped_file_enable": rng.random() < 0.1,
            "file_reserved_time": 0,
            "clean_resource_interval": 1_000,
        }

    # ---- a life ----------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Live and crash until it is enough; returns what happened how often."""
        store = self._open()
        for _ in range(self.rng.randint(2, 4)):
            self._live(store)
            if self.disk.alive and self.rng.random() < 0.15:
                self._close(store)
            else:
                self._crash(store)
            store = self._open()
        self._close(store)
        store = self._open()
        self._close(store)
        return self.counts

    def _live(self, store: MessageStore) -> None:
        rng, plan = self.rng, self.plan
        if rng.random() < 0.3:
            plan.chance("files.sync", 0.1, error=errno.EIO, limit=3)
            plan.chance("files.allocate", 0.1, error=errno.ENOSPC, limit=2)
            plan.chance("files.write", 0.1, error=errno.ENOSPC, limit=2)
            plan.chance("files.sync_directory", 0.1, error=errno.EIO, limit=2)
            plan.chance("files.open", 0.05, error=errno.EMFILE, limit=2)
            plan.chance("files.create", 0.1, error=errno.EIO, limit=2)
            plan.chance("files.remove", 0.2, error=errno.EIO, limit=3)
        if rng.random() < 0.6:
            plan.at("files.*", nth=rng.randint(1, 150), action=FaultAction.CUT)
        for _ in range(rng.choice((5, 30, 90))):
            if not self.disk.alive:
                break
            try:
                self._step(store)
            except StoreError:
                if self.disk.alive:
                    raise
        plan.clear()

    def _step(self, store: MessageStore) -> None:
        rng, machine = self.rng, self.machine
        kind = rng.random()
        if kind < 0.55:
            self._put(store)
        elif kind < 0.7 and machine.busy:
            rng.choice(machine.busy).work()
        elif kind < 0.78:
            machine.turn()
        elif kind < 0.9:
            ms = rng.choice((1, 50, 300, 1_100, 6_000, 11_000))
            machine.advance(ms, worker=rng.random() < 0.7)
        elif kind < 0.92:
            machine.skew_ms += rng.choice((-7_200_000, -5_000, 3_600_000))
        elif kind < 0.95:
            store.retention.request_deletion()
            machine.advance(61_000)
        else:
            self._read(store)

    def _put(self, store: MessageStore) -> None:
        result = self.ledger.put_any(store, self.rng.choice(QUEUES))
        self.counts[result.status.name] += 1
        store.when_durable(result, lambda status: self._acknowledged(status, result))

    def _acknowledged(self, status: PutStatus, result: PutResult) -> None:
        if status is PutStatus.PUT_OK and self.synchronous and self.disk.alive:
            self.counts["acknowledged"] += 1
            self.synced = max(self.synced, result.next_offset)

    def _read(self, store: MessageStore) -> None:
        """Read somewhere, and give the bytes back at once or after a while."""
        queue = self.rng.choice(QUEUES)
        first, end = store.reader.min_offset(*queue), store.reader.max_offset(*queue)
        if self.held and self.rng.random() < 0.5:
            self.held.pop().release()
        if first == end:
            return
        offset = self.rng.randrange(first, end)
        try:
            result = store.reader.get(*queue, offset, 8, bulk=True)  # as memory views
        except StoreFileError:
            assert self.plan.hits or not self.disk.alive
            return
        expected = {it.queue_offset: it.body for it in self.ledger.find(queue)}
        for record in records_of(result.views):
            assert record.body == expected[record.queue_offset]
        self.held.append(result)
        self.counts["reads"] += 1

    # ---- the end of a life -----------------------------------------------------------------------

    def _close(self, store: MessageStore) -> None:
        self._release()
        self.machine.close(store)
        self.synced = self.floor = self.ledger.log_end
        self._note_deleted(store)
        self.counts["closed"] += 1

    def _crash(self, store: MessageStore) -> None:
        files = store.log.files
        self.counts["crashes within an operation"] += not self.disk.alive
        self.counts["crashes with unsynced bytes"] += files.wrote_end > files.flushed_where
        self.counts["crashes with jobs under way"] += bool(self.machine.busy)
        self.counts["crashes with a deleted file in use"] += bool(files.retired_count)
        self.synced = max(self.synced, files.flushed_where)
        if self.synchronous:
            self.synced = max(self.synced, *(it.max_log_offset for it in store.queues), 0)
        self.floor = max(self.synced, files.max_offset)
        self._note_deleted(store)
        self._stop_machine()

    def _note_deleted(self, store: MessageStore) -> None:
        files = store.log.files
        self.retired = max(self.retired, files.min_offset)
        self.removed = max(self.removed, files.removed_until)

    def _stop_machine(self) -> None:
        """The process is gone, and most often what was not synced as well."""
        if self.rng.random() < 0.8:
            self.disk = self.disk.power_loss()
            self.floor = self.synced
            self.counts["power losses"] += 1
        else:
            self.disk = self.disk.kill()
            self.counts["kills"] += 1
        self._release()
        skew_ms, now = self.machine.skew_ms, self.machine.now
        self.machine = Machine()
        self.machine.skew_ms, self.machine.now = skew_ms, now + 1.0

    def _release(self) -> None:
        while self.held:
            self.held.pop().release()

    # ---- and the next one ------------------------------------------------------------------------

    def _open(self) -> MessageStore:
        while self.rng.random() < 0.4:
            if self._open_and_crash():
                break
        self.plan.clear()
        store = self.machine.store(self.disk, **self.settings)
        report = store.open(index_later=self.rng.random() < 0.5)
        self._found(store, report.log_end)
        store.start()
        self.machine.settle()
        self.machine.advance(1)  # an index that is behind catches up
        check_store(store, self.ledger)
        return store

    def _found(self, store: MessageStore, log_end: int) -> None:
        assert log_end >= self.floor, f"the log ends at {log_end}, before {self.floor}"
        assert store.log.min_offset <= self.retired, "the log begins too late"
        assert store.log.min_offset >= self.removed, "a file came back that was gone for good"
        count = len(self.ledger.messages)
        self.ledger.cut(log_end)
        self.counts["messages lost with their crash"] += count - len(self.ledger.messages)
        self.synced = self.floor = log_end

    def _open_and_crash(self) -> bool:
        """Crash within the recovery; True if it was too quick for that."""
        self.plan.at("files.*", nth=self.rng.randint(1, 40), action=FaultAction.CUT)
        store = self.machine.store(self.disk, **self.settings)
        try:
            report = store.open(index_later=self.rng.random() < 0.5)
        except StoreError:
            if self.disk.alive:
                raise
            self.counts["crashes within a recovery"] += 1
        else:
            self._found(store, report.log_end)
        self.plan.clear()
        self._stop_machine()
        return self.rng.random() < 0.3


def power_run(seed: int) -> Counter[str]:
    """One run; what happened in it."""
    run = PowerRun(seed)
    try:
        return run.run()
    except BaseException as error:
        error.add_note(f"power run with seed {seed}: {run.settings}; {run.plan}")
        raise


def summary(counts: Counter[str]) -> str:
    """What happened, most frequent first."""
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
